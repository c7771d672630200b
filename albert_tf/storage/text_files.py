"""Reads users' files: lines of UTF-8, rows of tables, numbers, lists, and JSON."""

from __future__ import annotations

import ast
import contextlib
import csv
import json
import math
import os
import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from absl import logging

from albert_tf.storage import files

# Name endings of JSON Lines files: CLUE's end in .json.
JSON_LINES = (".jsonl", ".json")
_CARRIAGE_RETURN = "a carriage return within the line: end lines with LF or CR LF"
# An escape in a JSON text; the group is an unpaired surrogate.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
# A cell that contains a list, tuple, set or array of strings, numbers or truth values.
_COLLECTION = re.compile(
    r"\[\s*(['\"\d-].*|(true|false|null|none|nan)\b.*)?\]"
    r"|\(\s*(['\"].*|[-\d\s.]+,[-\d\s.,]*|(true|false)\b.*)?\)"
    r"|\{\s*(['\"].*|[-\d\s.,]*|(true|false)\b.*)\}"
    r"|(frozenset|set|array)\(.*\)",
    re.DOTALL | re.IGNORECASE,
)
# A whole number that is written as a float.
_WHOLE = re.compile(r"(-?[0-9]+)\.0")
_TYPE_NAMES = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "an integer",
    list: "a list",
    str: "a string",
}

# The csv module's default limit is 131,072 characters; a long document has more.
csv.field_size_limit(2**31 - 1)


def utf8_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yields line numbers from 1, and lines with their ends; a byte order mark is dropped."""
    with files.open_bytes(path) as file:
        yield from decoded_lines(file, path)


def decoded_lines(file: Iterable[bytes], name: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Does the same as utf8_lines for an open file; error messages call it `name`."""
    for number, content in enumerate(file, start=1):
        try:
            yield number, content.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}:{number}: not UTF-8 text") from error


def whole_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yields line numbers from 1, and lines without their ends; refuses a CR within a line."""
    for number, line in utf8_lines(path):
        line = line.rstrip("\r\n")
        if "\r" in line:
            raise ValueError(f"{path}:{number}: {_CARRIAGE_RETURN}")
        yield number, line


def tab_rows(path: str | os.PathLike[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields line numbers from 1, and cells; a tab always separates them, quoted or not."""
    for number, line in whole_lines(path):
        yield number, line.split("\t")


def csv_rows(path: str | os.PathLike[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields the numbers of the lines in which rows begin, and cells between commas."""
    rows = csv.reader((line for _, line in utf8_lines(path)), strict=True)
    number = 1
    try:
        for cells in rows:
            yield number, cells
            # A row may span several lines: messages name the first of them.
            number = rows.line_num + 1
    except csv.Error as error:
        reason = _CARRIAGE_RETURN if "new-line character" in str(error) else error
        raise ValueError(f"{path}:{number}: not a row of a .csv file: {reason}") from error


def named_cells(
    rows: Iterable[tuple[int, list[str]]],
    path: str,
    wanted: Sequence[str],
    columns: Sequence[str] | None = None,
    skips_short_rows: bool = False,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the rows of a table as cells by column; empty lines are skipped.

    Args:
      rows: Line numbers and cells, of the file at `path`.
      path: For error messages.
      wanted: The columns that it must have.
      columns: The names of its columns; by default its first row has them.
      skips_short_rows: Whether rows that lack cells are skipped, and counted in the log.
    """
    skipped = []
    for number, cells in rows:
        # The first row is the header, unless the columns are given.
        if columns is None:
            columns = cells
            if missing := [name for name in wanted if columns.count(name) != 1]:
                raise ValueError(
                    f"{path}:{number}: expected a header with {', '.join(map(repr, missing))}, "
                    f"each once, got {', '.join(map(repr, columns))}"
                )
        elif cells in ([], [""]):
            continue
        # A row has a cell for each column: in a shorter row it is unknown which cells are missing.
        elif len(cells) == len(columns):
            yield number, dict(zip(columns, cells, strict=True))
        elif skips_short_rows and len(cells) < len(columns):
            skipped.append(number)
        else:
            raise ValueError(
                f"{path}:{number}: expected {len(columns)} cells ({', '.join(columns)}), got "
                f"{len(cells)}"
            )
    if skipped:
        text = "%s: skipped %d rows with too few cells, the first in line %d"
        logging.warning(text, path, len(skipped), skipped[0])


def listed_values(cell: str, where: str) -> list[Any] | None:
    """Reads a list in JSON, or a list, tuple, set or array as Python (and so pandas) writes it.

    Returns None for any other cell; error messages call its place `where`.
    """
    if not _COLLECTION.fullmatch(cell):
        return None
    # Damaged cells make these readers raise several kinds of errors.
    value: Any = None
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            node: Any = ast.parse(cell, mode="eval").body
            if isinstance(node, ast.Call):  # As in frozenset({'a'}), or set().
                node = node.args[0] if node.args else ast.List([])
            nodes = getattr(node, "elts", [node])
            value = [ast.literal_eval(each) for each in nodes]
            # Without commas, as NumPy prints lists, Python would join ['a' 'b'] to one string.
            if [ast.get_source_segment(cell, each) for each in nodes] != [*map(repr, value)]:
                value = None
    if not isinstance(value, list) or not all(isinstance(x, (str, int, float)) for x in value):
        raise ValueError(
            f"{where}: expected a list in JSON or as Python writes it, such as ['a', 'b'], got "
            f"{cell[:60]}"
        )
    return value


def parse_json(content: bytes | str, where: str | os.PathLike[str]) -> Any:
    """Parses a JSON text, as UTF-8 if it is bytes; error messages call its place `where`."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    # Python's parser accepts half of a surrogate pair, which UTF-8 can't encode.
    for escape in _ESCAPE.finditer(text):
        if escape[1]:
            raise ValueError(
                f"{where}: not Unicode: {escape[0]} at character {escape.start()} is an unpaired "
                "surrogate: write the whole pair, or the character itself"
            )
    return value


def parse_json_object(content: bytes | str, where: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the object of a JSON text; see `parse_json`."""
    value = parse_json(content, where)
    if not isinstance(value, dict):
        raise ValueError(f"{where} must contain a JSON object, not {type(value).__name__}")
    return value


def read_json_object(path: str) -> dict[str, Any]:
    """Returns the object of a JSON file; see `parse_json`."""
    return parse_json_object(files.read_bytes(path, files.SMALL_BYTES), path)


def json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields line numbers from 1, and the objects of a file of JSON Lines; skips empty lines."""
    for number, line in whole_lines(path):
        if line.lstrip().startswith("["):
            raise ValueError(
                f"{path}:{number}: expected a JSON object a line, got an array: write each of its "
                f"elements in a line, as jq -c '.[]' does"
            )
        if line.strip():
            yield number, parse_json_object(line, f"{path}:{number}")


def finite_number(text: str, where: str) -> float:
    """Parses the label of a regression; error messages call its place `where`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{where}: label {text!r} is not a number")
    return value


def class_of(label: str) -> str:
    """Normalises a label, since programs write classes differently: 1.0 is 1, and True is true.

    Example:
        >>> [class_of(label) for label in ("1.0", "1.50", "TRUE", "True north")]
        ['1', '1.50', 'true', 'True north']
    """
    whole = _WHOLE.fullmatch(label)
    lower = label.lower()
    return whole[1] if whole else lower if lower in ("true", "false") else label


def json_member(value: Any, key: str, where: str, *types: type) -> Any:
    """Returns a member of a JSON object at `where`, which must have one of these types."""
    member = value.get(key) if isinstance(value, dict) else None
    # isinstance would take a bool for an int.
    if type(member) in types:
        return member
    expected = " or ".join(_TYPE_NAMES[each] for each in types)
    found = member if isinstance(value, dict) else value
    got = "nothing" if found is None else reprlib.repr(found)
    raise ValueError(f"{where}: expected an object whose {key!r} is {expected}, got {got}")
