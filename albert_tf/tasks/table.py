"""A user's own table: texts, or questions with choices, from .csv, .tsv, .jsonl or .parquet."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from albert_tf import files, parquet_files
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample
from albert_tf.text_files import CARRIAGE_RETURN, finite_number, parse_json, tab_cells, utf8_lines

# CLUE's .json files hold what others call .jsonl.
_OBJECTS = (".jsonl", ".json")
_FORMATS = (".csv", ".tsv", *_OBJECTS, parquet_files.ENDING)


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """Which columns of a table (or keys of its JSON objects) hold what.

    Attributes:
      text: The text; with choices, the context.
      text_pair: The second text; with choices, a question that is put before each of them. None
        if there is none.
      label: The class, a regression's number, or the right choice: its column or its index from 0.
      choices: The choices, one column each; empty if the task has none.
    """

    text: str = "text"
    text_pair: str | None = None
    label: str = "label"
    choices: tuple[str, ...] = ()

    def names(self, labelled: bool) -> list[str]:
        """Returns all columns required in a file."""
        pair = [self.text_pair] if self.text_pair else []
        return [self.text, *pair, *self.choices, *([self.label] if labelled else [])]


def find_labels(path: str, columns: TableColumns) -> tuple[str, ...]:
    """Returns the classes of a training file, sorted as numbers if all are, else by name.

    Raises:
      ValueError: If there are fewer than two; see also read_texts.
    """
    labels = {row[columns.label] for _, row in _rows(path, columns.names(labelled=True))}
    if len(labels) < 2:
        raise ValueError(f"{path}: column {columns.label!r} holds one label only: {labels.pop()!r}")
    numbers = all(label.isascii() and label.isdigit() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))


def read_texts(
    path: str, columns: TableColumns, labels: Sequence[str], labelled: bool = True
) -> list[TextExample]:
    """Reads texts, or pairs of them, to be classified or scored.

    Args:
      path: Path of a .csv file (cells in quotes if they hold commas, quotes or line ends), a .tsv
        file (a tab always separates cells, quotes are text), a .jsonl or .json file (one object per
        line), in UTF-8, or a .parquet file. The first line of a .csv or .tsv file names the columns.
      columns: The columns of texts and labels.
      labels: The classes in the order of their ids; empty for a regression.
      labelled: Whether the file has labels; if not, all are None.

    Raises:
      FileNotFoundError: If the file doesn't exist.
      ValueError: If it has another format, lacks a column, a text or any row, or has an unknown
        label, or for a regression one that isn't a number. The message names file and line, or row.
    """
    return [
        TextExample(
            guid=str(number),
            text_a=row[columns.text],
            text_b=row[columns.text_pair] if columns.text_pair else None,
            label=_label(row[columns.label], labels, path, number) if labelled else None,
        )
        for number, row in _rows(path, columns.names(labelled))
    ]


def read_choices(path: str, columns: TableColumns, labelled: bool = True) -> list[ChoiceExample]:
    """Reads questions with choices; see read_texts."""
    return [
        ChoiceExample(
            guid=str(number),
            context=row[columns.text],
            endings=tuple(_ending(row, columns, choice) for choice in columns.choices),
            label=_choice(row[columns.label], columns.choices, path, number) if labelled else None,
        )
        for number, row in _rows(path, columns.names(labelled))
    ]


def _label(text: str, labels: Sequence[str], path: str, line: int) -> int | float:
    if labels:
        if text not in labels:
            raise ValueError(
                f"{path}:{line}: label {text!r} is not one of those trained on: {', '.join(labels)}"
            )
        return labels.index(text)
    return finite_number(text, f"{path}:{line}")


def _choice(text: str, choices: Sequence[str], path: str, line: int) -> int:
    numbers = [str(number) for number in range(len(choices))]
    if text in choices and text in numbers and choices.index(text) != numbers.index(text):
        raise ValueError(
            f"{path}:{line}: label {text!r} may be the column of that name, or the choice of that "
            "number: rename the columns"
        )
    names = [*choices, *numbers]
    if text not in names:
        raise ValueError(
            f"{path}:{line}: label {text!r} is neither a column of choices "
            f"({', '.join(choices)}) nor a number from 0 to {len(choices) - 1}"
        )
    return names.index(text) % len(choices)


def _ending(row: dict[str, str], columns: TableColumns, choice: str) -> str:
    return f"{row[columns.text_pair]} {row[choice]}" if columns.text_pair else row[choice]


def _rows(path: str, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields line numbers, and the wanted cells by column, none of them empty."""
    for number, record in _records(path, wanted):
        row = {name: _text(record.get(name)).strip() for name in wanted}
        missing = [name for name in wanted if not row[name]]
        if missing:
            raise ValueError(f"{path}:{number}: nothing stands in {', '.join(map(repr, missing))}")
        yield number, row


def _records(path: str, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields line numbers (of .parquet, row numbers), and cells by column, in JSON's types."""
    if not files.is_file(path):
        raise FileNotFoundError(f"{path} does not exist")
    ending = os.path.splitext(path)[1].lower()
    if ending not in _FORMATS:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(_FORMATS)}")
    readers = {parquet_files.ENDING: _parquet_rows, **dict.fromkeys(_OBJECTS, _objects)}
    number = 0
    for number, record in readers.get(ending, _cells)(path, wanted):
        yield number, record
    if not number:
        raise ValueError(f"{path} has no examples")


def _parquet_rows(path: str, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    with parquet_files.ParquetFile(path) as file:
        yield from file.rows(wanted)


def _objects(path: str, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in utf8_lines(path):
        if not line.strip():
            continue
        try:
            row = parse_json(line, f"{path}:{number}")
        except ValueError as error:
            raise ValueError(f"{error}; each line must be one object") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number}: expected a JSON object, got {line.strip()[:40]}")
        yield number, row


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value)


def _cells(path: str, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    columns: list[str] | None = None
    for number, cells in _csv_rows(path) if path.lower().endswith(".csv") else _tsv_rows(path):
        if columns is None:
            columns = cells
            _check_header(path, columns, wanted)
        elif cells not in ([], [""]):
            if len(cells) != len(columns):
                raise ValueError(
                    f"{path}:{number}: expected {len(columns)} cells as in the header, got "
                    f"{len(cells)}"
                )
            yield number, dict(zip(columns, cells, strict=True))


def _tsv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in utf8_lines(path):
        yield number, tab_cells(line, f"{path}:{number}")


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader((line for _, line in utf8_lines(path)), strict=True)
    number = 1
    try:
        for cells in rows:
            yield number, cells
            # A row may span several lines; messages name its first.
            number = rows.line_num + 1
    except csv.Error as error:
        reason = CARRIAGE_RETURN if "new-line character" in str(error) else error
        raise ValueError(f"{path}:{number}: not a row of a .csv file: {reason}") from error


def _check_header(path: str, columns: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if columns.count(name) != 1]
    if missing:
        raise ValueError(
            f"{path}:1: expected a header that names {', '.join(map(repr, missing))} once, got "
            f"{', '.join(map(repr, columns))}"
        )
