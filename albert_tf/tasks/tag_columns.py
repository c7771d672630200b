"""Finds the columns of words and tags in files of CoNLL, CoNLL-U and CoNLL-2012."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from absl import logging

from albert_tf.answers.tag import OUTSIDE
from albert_tf.storage.text_files import csv_rows, whole_lines
from albert_tf.tasks.table import TableSettings

# Separates documents in CoNLL's files.
_DOCUMENT = re.compile("-DOCSTART-([ \t]|$)|#(begin|end) document")
# Lines before a sentence's first word: the first matches comments, the second possible ones.
_COMMENT, _HASH = re.compile(r"# +\S+ += "), re.compile("#([ \t]|$)")
# CoNLL-U also numbers tokens of several words (3-4) and empty nodes (3.1): neither is a word.
_NUMBER, _NO_WORD = re.compile("[0-9]{1,9}"), re.compile(r"\d+[-.]\d+")
# Only these separate columns: a word may contain other white space, such as a no-break space.
_TAB, _SPACES = re.compile(" *\t *"), re.compile(" +")
# The columns of a word in CoNLL-U. Source: universaldependencies.org/format.html.
CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
# Marks an empty cell.
NOTHING = "_"
# CoNLL-2012 begins with document, part, number, word; entities follow the part of speech, parse,
# lemma, frame set, sense and speaker, and a varying number of columns follows them.
_NUMBER_2012, _ENTITY_2012, _LEAST_2012 = 2, 10, 11
# Placeholder for each word in CoNLL-2012 until OntoNotes' words are filled in.
_MASK_2012 = "[WORD]"
# Names in a header: of words, of tags, of tags if no other column has any, and of sentences.
_WORD_NAME = re.compile("words?|tokens?|form|text")
_TAG_NAME = re.compile("tags?|labels?|ner([-_ ]?tags?)?|entit(y|ies)|iob2?|bio")
_POS_NAME = re.compile("u?pos([-_ ]?tags?)?")
_SENTENCE_NAME = re.compile("sent(ence)?s?([-_ :]*(#|ids?|idx|index|no|num|number|nr))?")
# Anything that resembles an entity tag in some scheme; below it, the tags outside entities.
LIKE_ENTITY = re.compile(
    r"(?-i:B)|[BIESLUMW][-_:/|].+|.+[-_:/|][BIESLUMW]|[(<].+|.+[)>]|\".+\"",
    re.DOTALL | re.IGNORECASE,
)
_OUTSIDE = {OUTSIDE, "o", "*"}
DEFAULTS = TableSettings()
# The number, the cells and the text of a line.
_Line = tuple[int, list[str], str]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Tagged words as a file has them."""

    lines: list[int]  # The line of each word.
    words: list[str]
    tags: list[str] | None  # None if the sentence has no tags.


def read_columns(path: str, settings: TableSettings) -> tuple[str, list[Sentence]]:
    """Returns where a file's words and tags were found, and its sentences; see _columns."""
    # A line that separates documents also ends a sentence.
    lines = [(n, x, "" if _DOCUMENT.match(line) else line) for n, x, line in _lines(path)]

    # Leave out the header. Words decide whether other lines that begin with # are comments.
    words = [line for line in lines if line[2] and not _HASH.match(line[2])]
    if header := _header(words):
        lines = [(n, x, "" if [*map(str.lower, x)] == header else line) for n, x, line in lines]
        words = [line for line in words if [*map(str.lower, line[1])] != header]
    # If lines differ in their number of cells, several tabs in a row may align columns.
    widths = {len(cells) for _, cells, line in words if line[0] != "#"}
    if len(widths) > 1 or not any(cells[0] for _, cells, _ in words):
        lines = [(number, [*filter(None, cells)], line) for number, cells, line in lines]
    # A column of the header may number sentences, perhaps without empty lines between them, and
    # perhaps in their first lines alone.
    ids = [i for i, name in enumerate(header) if _SENTENCE_NAME.fullmatch(name)]
    for (_, above, _), (_, cells, _) in itertools.pairwise(lines):
        for i in ids:
            cells[i : i + 1] = [*filter(None, cells[i : i + 1])] or above[i : i + 1]
    of = itertools.groupby(lines, lambda x: x[2] and [True, *(x[1][i : i + 1] for i in ids)])
    blocks = [[*block] for full, block in of if full]
    # Where words are numbered, each line that begins with # is a comment.
    read = ([line for line in each if line[2][0] != "#"] for each in blocks)
    sentences = [*filter(None, read)]
    numbers = None if ids else _numbers(sentences, path)
    if numbers is None:
        tags = {OUTSIDE, *(cells[-1] for _, cells, _ in words)}
        is_comment = functools.partial(_is_comment, words=words, tags=tags, path=path)
        sentences = [*filter(None, ([*itertools.dropwhile(is_comment, x)] for x in blocks))]

    # The first word's line sets the number of columns; in CoNLL-2012 each sentence has its own.
    for each in sentences:
        first = each[0] if numbers else sentences[0][0]
        wanted = f"{len(first[1])} column(s) as in line {first[0]}"
        if numbers and len(first[1]) < _LEAST_2012:
            first, wanted = (0, [], ""), f"{_LEAST_2012} columns of CoNLL-2012, or more"
        for number, cells, line in each:
            if len(cells) != len(first[1]):
                got = f"got {len(cells)}: {line[:60]!r}"
                raise ValueError(f"{path}:{number}: expected {wanted}, {got}")
    if numbers == 0:
        read = ([x for x in each if not _NO_WORD.fullmatch(x[1][0])] for each in sentences)
        sentences = [*filter(None, read)]
    if not sentences:
        return "", []
    word, tag = _columns(sentences, numbers, header, path, settings)
    for number, cells, _ in itertools.chain(*sentences):
        if not (cells[word] and cells[word if tag is None else tag]):
            raise ValueError(f"{path}:{number}: the cell of the word, or of its label, is empty")
    places = f"column {word + 1}" + (f", tags in column {tag + 1}" if tag is not None else "")
    separator = "commas or tabs" if any("\t" in line for _, _, line in words) else "spaces"
    found = f"words in {places} of {len(sentences[0][0][1])} between {separator}"
    return found, [
        Sentence(
            [number for number, _, _ in each],
            [cells[word] for _, cells, _ in each],
            None if tag is None else [cells[tag] for _, cells, _ in each],
        )
        for each in sentences
    ]


def _lines(path: str) -> Iterator[_Line]:
    if path.lower().endswith(".csv"):
        for number, cells in csv_rows(path):
            cells = [cell.strip(" \t") for cell in cells]
            yield number, cells, "\t".join(cells).strip()
        return
    for number, line in whole_lines(path):
        line = line.rstrip(" \t").lstrip(" ")
        # Words may contain spaces where tabs separate them from tags.
        yield number, (_TAB if "\t" in line else _SPACES).split(line), line


def _header(lines: Sequence[_Line]) -> list[str]:
    """Returns the names of columns in the first line, in lower case; none if it has a word."""
    names = [*map(str.lower, lines[0][1])] if lines else []
    if not any(map(_WORD_NAME.fullmatch, names)) or not any(
        _TAG_NAME.fullmatch(name) or _POS_NAME.fullmatch(name) for name in names
    ):
        return []
    # If other lines end in the same cell, it is a tag, and the line no header.
    others = ([*map(str.lower, cells)] for _, cells, _ in lines)
    return names if all(x == names or x[-1] != names[-1] for x in others) else []


def _is_comment(line: _Line, words: Sequence[_Line], tags: Collection[str], path: str) -> bool:
    """Whether the first line of a sentence is a comment, and not the word "#".

    `words` are the lines that surely have words, and `tags` are their tags.
    """
    number, cells, text = line
    if not words or not _HASH.match(text) or len(cells) != len(words[0][1]):
        return bool(words and _HASH.match(text))
    if text.partition("\t")[0].rstrip() == "#":
        return False
    # If columns are separated by tabs, a tab would follow the word "#".
    is_comment = bool(_COMMENT.match(text)) or "\t" in text + words[0][2]
    # In the Penn Treebank "#" is also the tag of that word.
    if not is_comment and cells[-1] not in tags and {*cells} != {"#"}:
        raise ValueError(
            f"{path}:{number}: {text[:60]!r} could be a comment, or the word '#' with a label that "
            "no other word has: write comments as '# name = value', or a tab after the word"
        )
    return is_comment


def _numbers(sentences: Sequence[Sequence[_Line]], path: str) -> int | None:
    """Returns the column that numbers the words of each sentence; None if there is none.

    The majority of lines decides, and a line with another number is refused: otherwise a single
    wrong line would turn the whole column of numbers into words.
    """
    width = len(sentences[0][0][1]) if sentences else 0
    for place, least in ((0, 3), (_NUMBER_2012, _LEAST_2012)):
        odd, total, values, after = [], 0, 0, 1
        for rows in sentences if width >= least else ():
            # Numbers begin anew in each sentence, or go on.
            expected = {0, 1, after}
            for number, cells, _ in rows:
                cell = cells[place] if place < len(cells) else ""
                if not _NO_WORD.fullmatch(cell):
                    value = int(cell) if _NUMBER.fullmatch(cell) else None
                    total += 1
                    values += value is not None
                    if value not in expected:
                        odd.append(f"{path}:{number}: expected {after}, got {cell[:60]!r}")
                    after = 1 + (after if value is None else value)
                    expected = {after}
        # Outside CoNLL-U, a number may be the only word of each sentence.
        is_conllu = place == 0 and width == len(CONLLU_COLUMNS)
        hits = values if is_conllu else total - len(odd)
        if 2 * hits > total and (is_conllu or place or max(map(len, sentences)) > 1):
            if odd:
                raise ValueError(f"{odd[0]}: column {place + 1} numbers the words of sentences")
            return place
    return None


def _columns(
    sentences: Sequence[Sequence[_Line]],
    numbers: int | None,
    header: list[str],
    path: str,
    settings: TableSettings,
) -> tuple[int, int | None]:
    """Returns which column has the words and which the tags, if any, of a whole file.

    Words are in the first column and tags in the last one. If column `numbers` numbers the words,
    they follow it; tags are in UPOS of CoNLL-U's ten columns, and in the entities of CoNLL-2012's.
    A header or the settings name others. A file whose cells contradict that is refused.
    """
    line, first, _ = sentences[0][0]
    width = len(first)
    if width == 1:
        return 0, None
    word, tag = 0 if numbers is None else numbers + 1, width - 1
    is_conllu = numbers == 0 and width == len(CONLLU_COLUMNS)
    if numbers:
        tag = _ENTITY_2012
    elif is_conllu:
        tag = CONLLU_COLUMNS.index("upos")
    elif header:
        if len(header) != width:
            raise ValueError(f"{path}:{line}: expected the header's {header}, got {width} columns")
        word = next(i for i, name in enumerate(header) if _WORD_NAME.fullmatch(name))
        # Parts of speech are the tags if no column has a better name.
        names = [[x for x in header if name.fullmatch(x)] for name in (_TAG_NAME, _POS_NAME)]
        tag = header.index((names[0] or names[1])[-1])

    # Columns that the settings name; a file to predict may lack the column of tags.
    named = {name: i for i, name in enumerate(header or CONLLU_COLUMNS * is_conllu)}
    named |= {str(1 + i): i for i in range(width)}
    text, label = settings.text_column, settings.label_column
    has_text, has_label = text != DEFAULTS.text_column, label != DEFAULTS.label_column
    if has_text and text.lower() not in named:
        raise ValueError(f"{path}:{line}: `text_column` {text!r} is none of {', '.join(named)}")
    word = named[text.lower()] if has_text else word
    if has_label:
        return word, named.get(label.lower())

    # The cells must fit: an empty tag column means no tags, and wrong columns are refused.
    rows = [cells for each in sentences for _, cells, _ in each]
    columns = [Counter(cells) for cells in zip(*rows, strict=False)]
    if {*columns[tag]} in ({NOTHING}, {"-"}):
        return word, None
    likely = [i for i, counts in enumerate(columns) if not numbers and _are_likely(counts)]

    def varies(place: int) -> bool:
        """Whether a column varies within a sentence, which a document's name, say, does not."""
        return any(len({cells[place] for _, cells, _ in each}) > 1 for each in sentences)

    wrong = ""
    if word == tag:
        wrong = f"column {tag + 1} can't have both the words and their tags"
    elif {*columns[word]} == {_MASK_2012}:
        wrong = f"column {word + 1} has {_MASK_2012} in place of OntoNotes' words"
    elif word == 0 and not (header or has_text or varies(0)) and any(map(varies, range(1, tag))):
        wrong = f"column 1 repeats {first[0]!r} in place of words"
    elif likely and tag not in likely and not {*columns[tag]} <= _OUTSIDE:
        wrong = f"column {likely[0] + 1} has tags of entities, unlike column {tag + 1}"
    elif numbers == 0 and len(likely) > 1:
        wrong = f"columns {likely[0] + 1} and {likely[1] + 1} have tags of entities"
    elif is_conllu and NOTHING in columns[tag]:
        line = next(n for each in sentences for n, cells, _ in each if cells[tag] == NOTHING)
        wrong = f"the word has no label in column {tag + 1}"
    if wrong:
        raise ValueError(
            f"{path}:{line}: {wrong}: say which columns have words and tags, from 1, with "
            "`text_column` and `label_column`"
        )
    are_numbers = all(map(_NUMBER.fullmatch, columns[word]))
    if are_numbers or (tag not in likely and len(columns[tag]) > len(columns[word])):
        what = "all words are numbers" if are_numbers else "more different tags than words"
        logging.warning("%s: %s: are these the columns? See `text_column`", path, what)
    return word, tag


def _are_likely(counts: Mapping[str, int]) -> bool:
    """Whether most of a column's cells look like tags of entities."""
    like = {cell for cell in counts if LIKE_ENTITY.fullmatch(cell)}
    return bool(like) and 2 * sum(counts[x] for x in like | _OUTSIDE) > sum(counts.values())
