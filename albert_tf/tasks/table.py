"""A user's own table (.csv, .tsv, .jsonl, .parquet) -> examples."""

from __future__ import annotations

import ast
import csv
import dataclasses
import functools
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from albert_tf.answers.classify import LABEL_SEPARATOR
from albert_tf.console.settings import Settings, setting
from albert_tf.storage import files, parquet_files
from albert_tf.storage.text_files import (
    CARRIAGE_RETURN,
    JSON_LINES,
    class_of,
    finite_number,
    json_lines,
    json_member,
    named_cells,
    tab_rows,
    utf8_lines,
)
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample

FORMATS = (".csv", ".tsv", *JSON_LINES, parquet_files.ENDING)
# Spellings of 0 and 1 in multi-hot labels.
_BITS = {"0": False, "1": True, "false": False, "true": True}
_NUMBER = re.compile(r"-?\d+(\.\d+)?|true|false")
# A cell that contains a list of strings, numbers or truth values.
_LIST = re.compile(r"\s*\[\s*((['\"\d-]|[Tt]rue|[Ff]alse).*)?\]\s*", re.DOTALL)

# The csv module's default limit is 131,072 characters; a long document has more.
csv.field_size_limit(2**31 - 1)


def text_rows(
    path: str, wanted: Sequence[str], of_several: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields line numbers, and the wanted cells by column as text.

    Cells in the columns `of_several` may be empty or lists, whose parts LABEL_SEPARATOR joins.
    """
    for number, record in table_records(path, wanted):
        row = {}
        for name in wanted:
            where = f"{path}:{number}: column {name!r}"
            text = _joined if name in of_several else _text
            row[name] = text(record.get(name), where).strip()
        # An empty list of labels is a value: the text has none of them.
        missing = [
            name for name in wanted if name not in record or not (row[name] or name in of_several)
        ]
        if missing:
            raise ValueError(
                f"{path}:{number}: expected a value for {', '.join(map(repr, missing))}, got none"
            )
        yield number, row


def table_records(
    path: str, wanted: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields line numbers (for .parquet, row numbers), and cells by column, in JSON's types.

    Args:
      path: Path of a table in one of FORMATS.
      wanted: Columns that a .csv, .tsv or .parquet file must have; in JSON they are not checked.
      optional: Further columns to read from a .parquet file if it has them.
    """
    files.check_file(path)
    ending = os.path.splitext(path)[1].lower()
    if ending not in FORMATS:
        raise ValueError(f"{path}: expected a file name that ends in {', '.join(FORMATS)}")
    # Each reader yields line numbers and cells by column.
    if ending in JSON_LINES:
        rows = json_lines(path)
    elif ending == parquet_files.ENDING:
        rows = _parquet_rows(path, wanted, optional)
    else:
        cells = _csv_rows(path) if ending == ".csv" else tab_rows(path)
        rows = named_cells(cells, path, wanted)
    number = 0
    for number, record in rows:
        yield number, record
    if not number:
        raise ValueError(f"{path} has no examples")


def _parquet_rows(
    path: str, wanted: Sequence[str], optional: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    with parquet_files.ParquetFile(path) as file:
        columns = [*wanted, *(name for name in optional if name in file.columns)]
        yield from file.rows(columns or optional[:1])


def _text(value: Any, where: str) -> str:
    if isinstance(value, (list, dict)):
        raise ValueError(f"{where}: expected text or a number, got {json.dumps(value)[:60]}")
    if isinstance(value, str):
        return value
    # A missing value is null if pandas wrote it, or else NaN, which is unequal to itself.
    return "" if value is None or value != value else json.dumps(value)


def _joined(value: Any, where: str) -> str:
    if isinstance(value, str) and _LIST.fullmatch(value):
        value = _list(value.strip(), where)
    if not isinstance(value, list):
        return _text(value, where)
    parts = [_text(part, where) for part in value]
    for part in parts:
        if LABEL_SEPARATOR in part:
            raise ValueError(
                f"{where}: a label in a list must not contain {LABEL_SEPARATOR}, got {part!r}"
            )
    return LABEL_SEPARATOR.join(parts)


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader((line for _, line in utf8_lines(path)), strict=True)
    number = 1
    try:
        for cells in rows:
            yield number, cells
            # A row may span several lines: messages name the first of them.
            number = rows.line_num + 1
    except csv.Error as error:
        reason = CARRIAGE_RETURN if "new-line character" in str(error) else error
        raise ValueError(f"{path}:{number}: not a row of a .csv file: {reason}") from error


# Group heading of --help.
COLUMNS = "Columns of a table"
_column = functools.partial(setting, group=COLUMNS)


def _list(cell: str, where: str) -> Any:
    """Reads a list in JSON, or in Python's form, which pandas writes to .csv files."""
    # Damaged cells make these readers raise several kinds of errors.
    value: Any = None
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(cell)
            break
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    is_flat = isinstance(value, list) and all(isinstance(x, (str, int, float)) for x in value)
    # Without commas, as NumPy prints lists, Python would join ['a' 'b'] to one string.
    if not is_flat or (read is ast.literal_eval and repr(value) != cell):
        raise ValueError(
            f"{where}: expected labels separated by {LABEL_SEPARATOR}, or a list in JSON or as "
            f"Python writes it, got {cell[:60]}"
        )
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSettings(Settings):
    """The columns of a table (or the keys of JSON objects) that texts and labels are read from.

    Example:
        >>> TableSettings(text_column="review").columns(labelled=True)
        ['review', 'label']
    """

    text_column: str = _column("text", "Column of the text or, with choices, of their context.")
    text_pair_column: str | None = _column(
        None,
        "Column of the second text or, with choices, of a question that precedes each of them. By "
        "default there is none.",
    )
    label_column: str = _column(
        "label",
        "Column of the labels; for multilabel, the labels of a text are separated by |, or in a "
        "list, or the list has 0 or 1 for each class.",
    )
    label_names: tuple[str, ...] = _column(
        (),
        "Names of the classes, separated by commas, where labels are their numbers from 0, or 0 or "
        "1 for each. By default those that a .parquet file has for them.",
    )
    choice_columns: tuple[str, ...] = _column((), "Columns of the choices, separated by commas.")

    def columns(self, labelled: bool) -> list[str]:
        """Returns the columns that a file of texts, or pairs of texts, must have."""
        pair = [self.text_pair_column] if self.text_pair_column else []
        return [self.text_column, *pair, *([self.label_column] if labelled else [])]


def stored_class_names(path: str) -> Mapping[str, tuple[str, ...]]:
    """Returns the names of the ids in each column, which only a .parquet file can hold."""
    if not path.lower().endswith(parquet_files.ENDING):
        return {}
    with parquet_files.ParquetFile(path) as file:
        return file.class_names


def _class_names(path: str, settings: TableSettings) -> tuple[str, ...]:
    """Returns the names of the classes if the file's labels are ids; () if unknown."""
    files.check_file(path)
    return settings.label_names or stored_class_names(path).get(settings.label_column, ())


def find_labels(path: str, settings: TableSettings, several: bool = False) -> tuple[str, ...]:
    """Returns the classes of a training file, sorted as numbers if all are numbers, else by name.

    If the settings or the file name the classes, their order counts. The classes of multi-hot
    labels are positions. The arguments are those of read_texts; labels are named as by class_of.
    """
    if named := _class_names(path, settings):
        return named
    # Collect the labels of each row.
    given: dict[int, list[str]] = {}
    of_several = [settings.label_column] if several else []
    for number, row in text_rows(path, settings.columns(labelled=True), of_several):
        cell = row[settings.label_column]
        if any(each in cell for each in "\t\r\n"):
            raise ValueError(
                f"{path}:{number}: expected a label without tabs and line ends, which separate "
                f"cells and rows of predictions.tsv, got {cell!r}"
            )
        given[number] = _parts(cell, several)
    # Multi-hot labels have no names: their classes are called by their positions.
    if several and multi_hot(given, f"{path}:") is not None:
        return tuple(map(str, range(len(next(iter(given.values()))))))
    # Names or ids: 1 and 1.0 are the same class.
    labels = {class_of(part) for parts in given.values() for part in parts}
    if len(labels) < 2:
        found = f"only one label: {labels.pop()!r}" if labels else "no label"
        raise ValueError(
            f"{path}: expected several labels in column {settings.label_column!r}, got {found}"
        )
    # Sort numbers as numbers, so that class 10 comes after class 9.
    numbers = all(label.isascii() and label.isdigit() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))


def read_texts(
    path: str,
    settings: TableSettings,
    labels: Sequence[str],
    labelled: bool = True,
    several: bool = False,
) -> list[TextExample]:
    """Reads texts, or pairs of them, to be classified or scored.

    Args:
      path: A .csv file (quotes around cells with commas, quotes or line ends), a .tsv file (a tab
        always separates cells, quotes are text), a .jsonl or .json file (an object per line) or a
        .parquet file. Text is UTF-8; the first line of a .csv or .tsv file names the columns.
      settings: The columns of texts and labels.
      labels: The classes in the order of their ids; empty for a regression.
      labelled: Whether the file has labels; if not, all are None.
      several: Whether a text may have any number of labels: joined by LABEL_SEPARATOR, in a list,
        or multi-hot.
    """
    column = settings.label_column
    rows = dict(text_rows(path, settings.columns(labelled), [column] * several))
    names: Sequence[str] = _class_names(path, settings) if labels else ()
    given = {n: _parts(row[column], several) for n, row in rows.items() if labelled}
    # Multi-hot labels become ids: they count positions, whatever the names are.
    positions = multi_hot(given, f"{path}:", len(names or labels)) if several and labelled else None
    if positions is not None:
        names, given = names or labels, positions

    # A label is the name of a class, or an id among `names`.
    examples = []
    ids = {class_of(name): i for i, name in enumerate(labels)}
    named = {str(i): name for i, name in enumerate(names)}
    for number, row in rows.items():
        second = row[settings.text_pair_column] if settings.text_pair_column else None
        label = None
        if labelled:
            found = [_label(named.get(p, p), ids, f"{path}:{number}") for p in given[number]]
            # A text may repeat a label, which then counts once.
            label = tuple(sorted({int(each) for each in found})) if several else found[0]
        examples.append(TextExample(str(number), row[settings.text_column], second, label))
    return examples


def multi_hot(
    labels: Mapping[int, Sequence[str]], where: str, num_classes: int = 0
) -> dict[int, list[str]] | None:
    """Returns the positions of the 1s in multi-hot labels, or None if labels are names or ids.

    All texts together decide, because ids are neither repeated within a text nor written as 1.0 or
    true.

    Args:
      labels: The labels of each text, by its number.
      where: Precedes the number of a text in messages.
      num_classes: The number of classes; 0 if unknown.
    """
    spelt = {number: [*map(class_of, parts)] for number, parts in labels.items()}
    # A text that repeats a number has no ids: it, or else the first text, tells the width.
    repeating = (
        n for n, x in spelt.items() if all(map(_NUMBER.fullmatch, x)) and len({*x}) < len(x)
    )
    first = next(repeating, None)
    width = num_classes or len(spelt[next(iter(spelt)) if first is None else first])
    # All other texts must have that width and be made of 0 and 1.
    others = [n for n, x in spelt.items() if len(x) != width or not _BITS.keys() >= {*x}]
    if first is not None and others:
        raise ValueError(
            f"{where}{others[0]}: expected 0 or 1 for each of {width} labels, as in "
            f"{where}{first}, which has a number twice; got {'|'.join(labels[others[0]])!r}"
        )
    if others or width < 2:
        return None
    # Rows such as [0, 1] alone could be both.
    if first is None and {*itertools.chain(*labels.values())} <= {"0", "1"}:
        raise ValueError(
            f"{where}{next(iter(labels))}: 0 and 1, as in all rows, could be two ids, or say which "
            "labels a text has: write the names of labels, or 0.0 and 1.0 for each"
        )
    return {n: [str(i) for i, part in enumerate(x) if _BITS[part]] for n, x in spelt.items()}


def read_questions(path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields the location of each row, its context, and its question as in SQuAD's JSON.

    The columns are those of Hugging Face's data sets: `id`, `question`, `context` and `answers`, an
    object of two lists, `text` and `answer_start`, which are empty if there is no answer. A file to
    predict needs no answers; then all rows lack them, or have null.

    Args:
      path: Path of a .jsonl or .parquet file.
    """
    first = None
    for number, row in table_records(path, ("id", "question", "context"), ("answers",)):
        where = f"{path}:{number}"
        answers = None if row.get("answers") is None else _answers(row["answers"], where)
        is_labelled = answers is not None or row.get("is_impossible") is True
        # The first row decides whether the file has labels.
        first = is_labelled if first is None else first
        if is_labelled != first:
            raise ValueError(
                f"{where}: the question {'has' if is_labelled else 'lacks'} answers, unlike the "
                "first: label all questions or none (empty lists mean no answer)"
            )
        question = {"is_impossible": answers == [], **row, "answers": answers or []}
        yield where, json_member(row, "context", where, str), question


def _answers(columns: Any, where: str) -> list[dict[str, Any]]:
    texts, starts = (json_member(columns, name, where, list) for name in ("text", "answer_start"))
    if len(texts) != len(starts):
        raise ValueError(
            f"{where}: expected as many answer_start as text, got {len(starts)} and {len(texts)}"
        )
    pairs = zip(texts, starts, strict=True)
    return [{"text": text, "answer_start": start} for text, start in pairs]


def read_choices(path: str, settings: TableSettings, labelled: bool = True) -> list[ChoiceExample]:
    """Reads questions with choices; a label names the right choice's column or its index from 0."""
    question, choices = settings.text_pair_column, settings.choice_columns
    examples = []
    for number, row in text_rows(path, [*settings.columns(labelled), *choices]):
        before = f"{row[question]} " if question else ""
        endings = tuple(f"{before}{row[choice]}" for choice in choices)
        label = None
        if labelled:
            label = _choice(row[settings.label_column], choices, f"{path}:{number}")
        examples.append(ChoiceExample(str(number), row[settings.text_column], endings, label))
    return examples


def _label(text: str, ids: Mapping[str, int], where: str) -> int | float:
    if not ids:
        return finite_number(text, where)
    if class_of(text) not in ids:
        raise ValueError(
            f"{where}: label {text!r} is not one of those trained on: {', '.join(ids)}"
        )
    return ids[class_of(text)]


def _parts(cell: str, several: bool) -> list[str]:
    parts = cell.split(LABEL_SEPARATOR) if several else [cell]
    return [part.strip() for part in parts if part.strip()]


def _choice(text: str, choices: Sequence[str], where: str) -> int:
    # A column may be named like the number of another one.
    found = {i for i, name in enumerate(choices) if text == name or class_of(text) == str(i)}
    if len(found) > 1:
        raise ValueError(
            f"{where}: label {text!r} could mean the column of that name or the choice of that "
            "number: rename the columns"
        )
    if not found:
        raise ValueError(
            f"{where}: label {text!r} must be a column of choices ({', '.join(choices)}) or a "
            f"number from 0 to {len(choices) - 1}"
        )
    return found.pop()
