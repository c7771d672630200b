"""How much a request may hold and its answer may have: counted before anything is built of it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

# Lists and objects within each other.
_DEPTH = 32
# Values of an answer, padding included. 256 vectors of ALBERT-xxlarge are a quarter of it.
_ANSWER_VALUES = 1 << 22
_OTHERS = bytes({*range(256)} - {*b"[]{}"})
# Part of a cell of CSV: between quotation marks, or else up to where the cell ends.
_PART = re.compile(rb'"[^"]*"?|[^",\r\n][^,\r\n]*|([,\r\n])')


def most_values(rows: int) -> int:
    """Returns how many values a request of at most so many rows and endings may have."""
    # An ending may be an object of base64, which is two values. The rest is members of requests.
    return 1000 + 2 * rows * rows


def check_json(body: bytes | bytearray, most: int) -> None:
    """Raises ValueError if JSON in UTF-8 has more than `most` values, or is nested too deeply.

    Two bytes may be a list of 90. To build millions of them takes as many seconds as to drop them.
    """
    # Where there are few marks, even if those in texts are counted, nothing is to do.
    lists, commas = body.count(b"[") + body.count(b"{"), body.count(b",")
    if lists <= _DEPTH and lists + commas <= most:
        return
    # Leave out escaped characters, then all texts. Each value has at most a name and one text.
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    few_texts = bare.count(b'"') <= 4 * most
    marks = b"".join(bare.split(b'"')[::2]) if few_texts else b""
    if not few_texts or sum(map(marks.count, (b"[", b"{", b","))) > most:
        raise ValueError(f"the JSON must have at most {most} values: send fewer rows at a time")
    depth = 0
    for mark in marks.translate(None, _OTHERS):
        depth += 1 if mark in b"[{" else -1
        if depth > _DEPTH:
            raise ValueError(f"lists in JSON must be nested at most {_DEPTH} deep")
        if depth < 0:  # This is no JSON, as the parser will say.
            return


def check_csv(body: bytes | bytearray, most: int) -> None:
    """Raises ValueError if CSV has more than `most` cells."""
    if sum(map(body.count, (b",", b"\n", b"\r"))) <= most:
        return
    cells = (part for part in _PART.finditer(body) if part[1])
    if next(itertools.islice(cells, most, None), None):
        raise ValueError(f"the body must have at most {most} cells: send fewer rows at a time")


def at_most(given: Iterable[Any], where: str, most: int) -> Iterator[Any]:
    """Yields 1 to `most` elements, and raises ValueError where there are none or more."""
    count = 0
    for count, each in enumerate(given, 1):
        if count > most:
            raise ValueError(f"{where} must have 1 to {most} elements, got more")
        yield each
    if not count:
        raise ValueError(f"{where} must have 1 to {most} elements, got 0")


def axes_of(shape: Any, where: str, most: int) -> tuple[int, int]:
    """Returns rows, and texts of a row, of a tensor's shape: [B], [B, 1] or [B, E]."""
    axes = shape if isinstance(shape, list) and 1 <= len(shape) <= 2 else [0]
    if not all(type(axis) is int and 1 <= axis <= most for axis in axes):
        raise ValueError(
            f"{where}.shape must be 1 or 2 numbers from 1 to {most}, got {shape!s:.80}"
        )
    return axes[0], axes[-1] if len(axes) > 1 else 1


def check_answer(size: int) -> None:
    """Raises ValueError if an answer would have too many values."""
    if size > _ANSWER_VALUES:
        raise ValueError(
            f"the answer may have {_ANSWER_VALUES} values, but would have {size}, since rows are "
            "padded to the longest: send long texts alone"
        )
