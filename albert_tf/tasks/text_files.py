"""What is read from users' files: lines of UTF-8, and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any


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


def parse_json(content: bytes | str, where: str | os.PathLike[str]) -> Any:
    """Returns the value of a JSON text.

    Args:
      content: The text; bytes are UTF-8.
      where: Where it stands, for messages.

    Raises:
      ValueError: It isn't UTF-8, or no JSON.
    """
    try:
        return json.loads(content if isinstance(content, str) else content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}") from error
