"""Sentences of tagged words from CoNLL's columns, CoNLL-U, JSON Lines and .parquet files."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from absl import logging

from albert_tf.answers.tag import OUTSIDE, are_entities, tag_parts
from albert_tf.storage import files, parquet_files
from albert_tf.storage.text_files import (
    CARRIAGE_RETURN,
    JSON_LINES,
    json_member,
    tab_rows,
    utf8_lines,
)
from albert_tf.tasks import table

# Separates documents in CoNLL's files.
_DOCUMENT = re.compile("-DOCSTART-([ \t]|$)|#(begin|end) document")
# Before the first word of a sentence, the first is surely a comment; the second may be one.
_COMMENT, _HASH = re.compile(r"# +\S+ += "), re.compile("#([ \t]|$)")
# CoNLL-U also numbers tokens of several words (3-4) and empty nodes (3.1): neither is a word.
_NO_WORD = re.compile(r"\d+[-.]\d+")
# Only these separate columns: a word may contain other white space, such as a no-break space.
_SEPARATOR = re.compile("[ \t]+")
# No cell of a column can contain one of these.
BETWEEN_CELLS = re.compile("[ \t\r\n]")
# The columns of a word in CoNLL-U. Source: universaldependencies.org/format.html.
CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
# Marks an empty cell.
NOTHING = "_"
# Keys of words and tags in JSON Lines and .parquet; the first that is present counts.
_TOKENS, _LABELS = ("tokens", "words"), ("labels", "ner_tags", "tags")
# A tag of an entity in BIOES, BILOU or BMES; and anything that resembles one in any scheme.
_PREFIXED = re.compile(r"[BIESLUMW]-.+", re.DOTALL)
_LIKE_ENTITY = re.compile(r"B|[BIESLUMW][-_].+|.+[-_][BIESLUMW]", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class TokenExample:
    """A sentence."""

    guid: str  # The line of its file in which it begins.
    words: tuple[str, ...]
    labels: tuple[int, ...] | None  # The ids of the words' tags; None if unknown.


@dataclasses.dataclass(frozen=True)
class _Sentence:
    lines: list[int]  # The line of each word.
    words: list[str]
    tags: list[str] | None  # None if the sentence has no tags.


def order_tags(counts: Mapping[str, int], path: str) -> tuple[str, ...]:
    """Returns the tags to train on, in the order of their ids.

    O comes first or, among plain tags, the most frequent one. Each type of entity gets a tag for
    every prefix in the file, because a small file may lack some tags of a rare type.

    Args:
      counts: How often each tag occurs.
      path: The file that has the tags, for messages.
    """
    # BILOU and BMES would be read as plain tags, so that whole entities were never scored.
    others = [tag for tag in counts if tag != OUTSIDE]
    if any(tag[0] in "LUMW" for tag in others) and all(map(_PREFIXED.fullmatch, others)):
        raise ValueError(
            f"{path}: the labels {', '.join(sorted(others)[:4])}... follow the scheme BILOU or "
            "BMES: change it to BIOES, with I- for M-, E- for L-, and S- for U- or W-"
        )
    # Entities: every prefix with every type.
    if are_entities(others):
        prefixes, types = zip(*map(tag_parts, others), strict=True)
        found = {f"{prefix}-{entity}" for prefix in set(prefixes) for entity in set(types)}
        return (OUTSIDE, *sorted(found))
    if len(counts) < 2:
        raise ValueError(f"{path}: expected several labels, got only {next(iter(counts))!r}")
    if any(map(_LIKE_ENTITY.fullmatch, others)):
        logging.warning(
            "%s: the labels are read as plain tags, not as entities: those would be O, or a type "
            "with the prefix B-, I-, E- or S-, unlike %s",
            *(path, next(tag for tag in others if not are_entities([tag]))),
        )
    # The first plain tag is the default, which words without pieces get.
    first = OUTSIDE if OUTSIDE in counts else max(counts, key=counts.__getitem__)
    return (first, *sorted(counts.keys() - {first}))


def find_tags(path: str) -> tuple[str, ...]:
    """Returns the tags of a training file; see order_tags."""
    counts = Counter(tag for each in _sentences(path, True) for tag in each.tags)
    return order_tags(counts, path)


def read_sentences(path: str, classes: Sequence[str], labelled: bool = True) -> list[TokenExample]:
    """Reads sentences with tagged words.

    Args:
      path: A file in UTF-8. In .jsonl (or .json) each line is an object with `tokens` and
        `labels`, and .parquet has these columns. Any other file has CoNLL's columns: a word per
        line, columns separated by spaces or tabs, the tag in the last one, and an empty line
        between sentences. If words are numbered in ten columns, as in CoNLL-U, the tag is UPOS.
        Comments before a sentence and -DOCSTART- lines are skipped.
      classes: The tags in the order of their ids.
      labelled: Whether the file must have tags; if not, all words have one or none has.
    """
    ids = {tag: i for i, tag in enumerate(classes)}
    examples = []
    for sentence in _sentences(path, labelled):
        labels = None
        if sentence.tags is not None:
            for line, tag in zip(sentence.lines, sentence.tags, strict=True):
                if tag not in ids:
                    raise ValueError(
                        f"{path}:{line}: label {tag!r} is not one of those trained on: "
                        f"{', '.join(classes)}"
                    )
            labels = tuple(ids[tag] for tag in sentence.tags)
        # The line of its first word is the sentence's id.
        examples.append(TokenExample(str(sentence.lines[0]), tuple(sentence.words), labels))
    return examples


def _sentences(path: str, labelled: bool) -> Iterator[_Sentence]:
    files.check_file(path)
    # The first sentence decides whether all have tags.
    has_objects = path.lower().endswith((*JSON_LINES, parquet_files.ENDING))
    found = _of_objects(path) if has_objects else _of_columns(path)
    first = None
    for sentence in found:
        line, has_tags = sentence.lines[0], sentence.tags is not None
        if labelled and not has_tags:
            raise ValueError(f"{path}:{line}: {sentence.words[0]!r} has no label")
        first = first or (line, has_tags)
        if has_tags != first[1]:
            raise ValueError(
                f"{path}:{line}: the sentence {'has' if has_tags else 'lacks'} labels, unlike the "
                f"one in line {first[0]}: label all sentences or none"
            )
        yield sentence
    if first is None:
        raise ValueError(f"{path} has no sentences")


def _of_columns(path: str) -> Iterator[_Sentence]:
    # A line that separates documents also ends a sentence.
    lines = []
    for number, line in utf8_lines(path):
        line = line.rstrip("\r\n").strip(" \t")
        if "\r" in line:
            raise ValueError(f"{path}:{number}: {CARRIAGE_RETURN}")
        lines.append((number, "" if _DOCUMENT.match(line) else line))

    # Other words decide whether a line that begins with # is a comment.
    words = [line for _, line in lines if line and not _HASH.match(line)]
    tags = {OUTSIDE, *(_SEPARATOR.split(line)[-1] for line in words)}
    sentences: list[list[tuple[int, list[str]]]] = [[]]
    first = None
    for number, line in lines:
        cells = _SEPARATOR.split(line)
        if not line:
            sentences.append([])
        elif sentences[-1] or not (words and _is_comment(line, words[0], tags, f"{path}:{number}")):
            # The first word tells how many columns there are.
            first = first or (number, len(cells))
            if len(cells) != first[1]:
                raise ValueError(
                    f"{path}:{number}: expected {first[1]} column(s) as in line {first[0]}, got "
                    f"{len(cells)}: {line[:60]!r}"
                )
            sentences[-1].append((number, cells))

    # Where the first column only counts the words, drop it, and the lines that are no words.
    sentences = [rows for rows in sentences if rows]
    if all(map(_is_numbered, sentences)) and any(len(rows) > 1 for rows in sentences):
        tag = CONLLU_COLUMNS.index("upos") if first[1] == len(CONLLU_COLUMNS) else -1
        sentences = [
            [(n, [cells[1], cells[tag]]) for n, cells in rows if not _NO_WORD.fullmatch(cells[0])]
            for rows in sentences
        ]
    for rows in filter(None, sentences):
        # The tag is in the last column; with one column there are only words.
        last = [cells[-1] for _, cells in rows] if len(rows[0][1]) > 1 else None
        yield _Sentence([n for n, _ in rows], [cells[0] for _, cells in rows], last)


def _is_comment(line: str, word: str, tags: Collection[str], where: str) -> bool:
    """Whether the first line of a sentence is a comment, and not the word "#".

    `word` is the line of another word, and `tags` are the tags of all other words.
    """
    cells = _SEPARATOR.split(line)
    if cells[0] != "#" or len(cells) != len(_SEPARATOR.split(word)):
        return cells[0] == "#"
    if line.partition("\t")[0].rstrip() == "#":
        return False
    # If columns are separated by tabs, a tab would follow the word "#".
    is_comment = bool(_COMMENT.match(line)) or "\t" in line + word
    if not is_comment and cells[-1] not in tags:
        raise ValueError(
            f"{where}: {line[:60]!r} could be a comment, or the word '#' with a label that no "
            "other word has: write comments as '# name = value', or a tab after the word"
        )
    return is_comment


def _is_numbered(rows: Sequence[tuple[int, list[str]]]) -> bool:
    """Whether a sentence's first column counts its words, as in CoNLL-U."""
    numbers = [cells[0] for _, cells in rows if not _NO_WORD.fullmatch(cells[0])]
    return len(rows[0][1]) > 2 and numbers == [str(1 + i) for i in range(len(numbers))]


def _of_objects(path: str) -> Iterator[_Sentence]:
    names = table.stored_class_names(path)
    for number, row in table.table_records(path, (), (*_TOKENS, *_LABELS)):
        where = f"{path}:{number}"
        # A missing key raises an error that names the first of _TOKENS.
        words = _strings(row, next((x for x in _TOKENS if x in row), _TOKENS[0]), where)
        if not words:
            raise ValueError(f"{where}: there are no tokens")
        labels = None
        if key := next((x for x in _LABELS if row.get(x) is not None), ""):
            labels = _strings(row, key, where, names.get(key, ()))
            if len(labels) != len(words):
                raise ValueError(
                    f"{where}: expected a label for each of {len(words)} tokens, got {len(labels)}"
                )
            # Predictions are written in CoNLL's columns, where such a label would be two cells.
            for label in labels:
                if BETWEEN_CELLS.search(label):
                    raise ValueError(
                        f"{where}: expected labels without spaces, tabs and line ends, as in "
                        f"CoNLL's columns, got {label!r}"
                    )
        yield _Sentence([number] * len(words), words, labels)


def _strings(row: object, key: str, where: str, names: Sequence[str] = ()) -> list[str]:
    """Returns a list of strings; ids are replaced by the names that they stand for."""
    known = {str(i): name for i, name in enumerate(names)}
    values = [known.get(str(each), each) for each in json_member(row, key, where, list)]
    for i, value in enumerate(values):
        if not isinstance(value, str) or not value:
            raise ValueError(f"{where}: expected strings in {key!r}, got {value!r} at index {i}")
    return values


def conllu_sentences(path: str, column: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yields the words of each sentence, and their cells in a column; NOTHING is an empty cell.

    Comments and tokens that are not syntactic words (ranges such as 3-4, empty nodes such as 3.1)
    are skipped.

    Args:
      path: A CoNLL-U file, in UTF-8.
      column: One of CONLLU_COLUMNS.
    """
    files.check_file(path)
    place = CONLLU_COLUMNS.index(column)
    words: list[str] = []
    values: list[str] = []
    seen: set[str] = set()
    # An empty line ends a sentence; the last one may lack it.
    for number, cells in itertools.chain(tab_rows(path), [(0, [""])]):
        if cells == [""]:
            if words:
                yield tuple(words), tuple(values)
            words, values = [], []
        elif not cells[0].startswith("#"):
            if len(cells) != len(CONLLU_COLUMNS):
                raise ValueError(
                    f"{path}:{number}: expected the {len(CONLLU_COLUMNS)} columns of CoNLL-U, "
                    f"between tabs, got {len(cells)}: {cells[0][:60]!r}"
                )
            # Ranges and empty nodes have other ids.
            if cells[0].isdecimal():
                words.append(cells[1])
                values.append(cells[place])
                seen.add(cells[place])
    if not seen:
        raise ValueError(f"{path} has no sentences")
    # A column without any value would silently leave nothing to learn.
    if seen == {NOTHING}:
        raise ValueError(
            f"{path}: the column {column} is empty for all words: name another `column`"
        )
