"""CoNLL's columns, JSON Lines or CoNLL-U -> sentences; the schemes of their tags."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from albert_tf.answers.tag import OUTSIDE, are_entities, tag_parts
from albert_tf.storage import files
from albert_tf.storage.text_files import (
    CARRIAGE_RETURN,
    JSON_LINES,
    json_lines,
    json_member,
    tab_rows,
    utf8_lines,
)

# A line that begins a document in CoNLL's files.
_DOCUMENT = "-DOCSTART-"
# Not all white space: a word may hold a no-break space.
_SEPARATOR = re.compile("[ \t]+")
# Separators, which no cell of a column can hold.
BETWEEN_CELLS = re.compile("[ \t\r\n]")
# The columns of a word in CoNLL-U. Source: universaldependencies.org/format.html.
CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
# Fills a column in which a word has nothing, as most words have in some.
NOTHING = "_"
_BILOU = re.compile(r"[BILU]-.+", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class TokenExample:
    """A sentence.

    Attributes:
      guid: The line of its file in which it begins.
      words: Its words.
      labels: The ids of their tags; None if unknown.
    """

    guid: str
    words: tuple[str, ...]
    labels: tuple[int, ...] | None


@dataclasses.dataclass(frozen=True)
class _Sentence:
    """A sentence of a file: its words, the lines they stand in, and their tags, if it has any."""

    lines: list[int]
    words: list[str]
    tags: list[str] | None


def order_tags(counts: Mapping[str, int], path: str) -> tuple[str, ...]:
    """Returns the tags to train on, in the order of their ids.

    O or, of plain tags, the most frequent one comes first. Types of entities get a tag for each of
    the prefixes that the file has: of a rare one it may lack some.

    Args:
      counts: How often each tag occurs.
      path: The file they are from, for messages.
    """
    others = [tag for tag in counts if tag != OUTSIDE]
    if any(tag[:2] in ("L-", "U-") for tag in others) and all(map(_BILOU.fullmatch, others)):
        raise ValueError(
            f"{path}: the labels {', '.join(sorted(others)[:4])}... follow the scheme BILOU: "
            "change it to BIOES, with E- for L- and S- for U-"
        )
    if are_entities(others):
        prefixes, types = zip(*map(tag_parts, others), strict=True)
        found = {f"{prefix}-{kind}" for prefix in set(prefixes) for kind in set(types)}
        return (OUTSIDE, *sorted(found))
    if len(counts) < 2:
        raise ValueError(f"{path}: expected several labels, got only {next(iter(counts))!r}")
    first = OUTSIDE if OUTSIDE in counts else max(counts, key=counts.__getitem__)
    return (first, *sorted(counts.keys() - {first}))


def find_tags(path: str) -> tuple[str, ...]:
    """Returns the tags of a training file in the order of their ids; see order_tags."""
    counts = Counter(tag for each in _sentences(path, True) for tag in each.tags)
    return order_tags(counts, path)


def read_sentences(path: str, classes: Sequence[str], labelled: bool = True) -> list[TokenExample]:
    """Reads sentences with tagged words.

    Args:
      path: Path of a .jsonl (or .json) file, with an object of `tokens` and `labels` in each line;
        or of a file in CoNLL's columns: a word a line, its tag in the last of the columns between
        spaces or tabs, and an empty line between sentences. Lines of -DOCSTART- are skipped. UTF-8.
      classes: The tags in the order of their ids.
      labelled: Whether it must have tags; if not, it has one for each word or none at all.
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
        examples.append(TokenExample(str(sentence.lines[0]), tuple(sentence.words), labels))
    return examples


def _sentences(path: str, labelled: bool) -> Iterator[_Sentence]:
    """Yields a file's sentences; all have tags, or none."""
    files.check_file(path)
    is_json = path.lower().endswith(JSON_LINES)
    found = _of_objects(path) if is_json else _of_columns(path)
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
    rows: list[tuple[int, list[str]]] = []
    first = None
    for number, line in utf8_lines(path):
        line = line.rstrip("\r\n").strip(" \t")
        if "\r" in line:
            raise ValueError(f"{path}:{number}: {CARRIAGE_RETURN}")
        cells = _SEPARATOR.split(line) if line else []
        if cells and cells[0] != _DOCUMENT:
            first = first or (number, len(cells))
            if len(cells) != first[1]:
                raise ValueError(
                    f"{path}:{number}: expected {first[1]} column(s) as in line {first[0]}, got "
                    f"{len(cells)}: {line[:60]!r}"
                )
            rows.append((number, cells))
        elif rows:
            yield _sentence(rows)
            rows = []
    if rows:
        yield _sentence(rows)


def _sentence(rows: Sequence[tuple[int, list[str]]]) -> _Sentence:
    lines, cells = [line for line, _ in rows], [cells for _, cells in rows]
    last = [row[-1] for row in cells] if len(cells[0]) > 1 else None
    return _Sentence(lines, [row[0] for row in cells], last)


def _of_objects(path: str) -> Iterator[_Sentence]:
    for number, row in json_lines(path):
        where = f"{path}:{number}"
        words = _strings(row, "tokens", where)
        if not words:
            raise ValueError(f"{where}: there are no tokens")
        labels = None
        if row.get("labels") is not None:
            labels = _strings(row, "labels", where)
            if len(labels) != len(words):
                raise ValueError(
                    f"{where}: expected a label for each of {len(words)} tokens, got {len(labels)}"
                )
            for label in labels:
                if BETWEEN_CELLS.search(label):
                    raise ValueError(
                        f"{where}: expected labels without spaces, tabs and line ends, as in "
                        f"CoNLL's columns, got {label!r}"
                    )
        yield _Sentence([number] * len(words), words, labels)


def _strings(row: object, key: str, where: str) -> list[str]:
    values = json_member(row, key, where, list)
    for i, value in enumerate(values):
        if not isinstance(value, str) or not value:
            raise ValueError(f"{where}: expected strings in {key!r}, got {value!r} at index {i}")
    return values


def conllu_sentences(path: str, column: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yields the words of each sentence, and what stands in a column for each, perhaps NOTHING.

    Comments, and tokens that are not syntactic words (ranges such as 3-4, and empty nodes such as
    3.1), are skipped.

    Args:
      path: A CoNLL-U file, in UTF-8.
      column: One of CONLLU_COLUMNS.
    """
    files.check_file(path)
    words: list[str] = []
    values: list[str] = []
    empty = valueless = True
    for number, cells in tab_rows(path):
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
            if cells[0].isdecimal():
                words.append(cells[1])
                values.append(cells[CONLLU_COLUMNS.index(column)])
                empty, valueless = False, valueless and values[-1] == NOTHING
    if words:
        yield tuple(words), tuple(values)
    if empty:
        raise ValueError(f"{path} has no sentences")
    if valueless:
        raise ValueError(
            f"{path}: no word has anything in the column {column}: name another `column`"
        )
