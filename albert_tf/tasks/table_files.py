"""Tables in files: line numbers, and cells by column."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from albert_tf import files, parquet_files
from albert_tf.text_files import CARRIAGE_RETURN, JSON_LINES, json_lines, tab_cells, utf8_lines

FORMATS = (".csv", ".tsv", *JSON_LINES, parquet_files.ENDING)
# Between the labels of a text that has several.
LABEL_SEPARATOR = "|"

# A long document is more than the csv module's own limit, 131,072 characters.
csv.field_size_limit(2**31 - 1)


def text_rows(
    path: str, wanted: Sequence[str], of_several: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields line numbers, and the wanted cells by column as text.

    Cells of the columns `of_several` may be empty, or lists, which LABEL_SEPARATOR joins.

    Raises: see records; also ValueError if another cell is empty or no text.
    """
    for number, record in records(path, wanted):
        row = {}
        for name in wanted:
            where = f"{path}:{number}: column {name!r}"
            text = _joined if name in of_several else _text
            row[name] = text(record.get(name), where).strip()
        missing = [
            name for name in wanted if name not in record or not (row[name] or name in of_several)
        ]
        if missing:
            raise ValueError(
                f"{path}:{number}: expected a value for {', '.join(map(repr, missing))}, got none"
            )
        yield number, row


def records(
    path: str, wanted: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields line numbers (of .parquet, row numbers), and cells by column, in JSON's types.

    Args:
      path: Path of a table in one of FORMATS.
      wanted: Columns that a .csv, .tsv or .parquet file must have; in JSON they are not checked.
      optional: Of a .parquet file only the wanted columns are read, and those of these it has.

    Raises:
      OSError: If there is no such file.
      ValueError: If it has another format, lacks a column or any row, or is damaged. The message
        names file and line.
    """
    files.check_file(path)
    ending = os.path.splitext(path)[1].lower()
    if ending not in FORMATS:
        raise ValueError(f"{path}: expected a file name that ends in {', '.join(FORMATS)}")
    if ending in JSON_LINES:
        rows = json_lines(path)
    elif ending == parquet_files.ENDING:
        rows = _parquet_rows(path, wanted, optional)
    else:
        rows = _cells(path, ending, wanted)
    number = 0
    for number, record in rows:
        yield number, record
    if not number:
        raise ValueError(f"{path} has no examples")


def _parquet_rows(
    path: str, wanted: Sequence[str], optional: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    with parquet_files.ParquetFile(path) as file:
        yield from file.rows([*wanted, *(name for name in optional if name in file.columns)])


def _text(value: Any, where: str) -> str:
    if isinstance(value, (list, dict)):
        raise ValueError(f"{where}: expected text or a number, got {json.dumps(value)[:60]}")
    if isinstance(value, str):
        return value
    # pandas writes what is missing as null, other programs as NaN, which equals nothing.
    return "" if value is None or value != value else json.dumps(value)


def _joined(value: Any, where: str) -> str:
    if not isinstance(value, list):
        return _text(value, where)
    parts = [_text(part, where) for part in value]
    for part in parts:
        if LABEL_SEPARATOR in part:
            raise ValueError(
                f"{where}: a label in a list must not contain {LABEL_SEPARATOR}, got {part!r}"
            )
    return LABEL_SEPARATOR.join(parts)


def _cells(path: str, ending: str, wanted: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    columns: list[str] | None = None
    for number, cells in _csv_rows(path) if ending == ".csv" else _tsv_rows(path):
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
            f"{path}:1: expected a header with {', '.join(map(repr, missing))}, each once, got "
            f"{', '.join(map(repr, columns))}"
        )
