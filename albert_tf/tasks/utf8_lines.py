"""The lines of a text file that must be UTF-8."""

from __future__ import annotations

import os
from collections.abc import Iterator


def utf8_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yields numbers from 1, and lines with their ends; a byte order mark is left out.

    Raises:
      ValueError: A line isn't UTF-8; the message names file and line.
    """
    with open(path, "rb") as file:
        for number, content in enumerate(file, start=1):
            try:
                yield number, content.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}:{number}: not UTF-8 text") from error
