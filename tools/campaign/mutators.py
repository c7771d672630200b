"""Ways to damage a file's bytes. Each takes the bytes and a random.Random to draw from."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

Mutator = Callable[[bytes, random.Random], bytes]

_BYTES = (b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n", b"\t", b"\xed\xa0\x80", b"\\ud800", b'"')
_NUMBERS = (
    *("-1", "0", "1e999", "nan", "-0.5", "4294967305", "9223372036854775808", "true"),
    "1" + "0" * 400,
)
_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**32 + 9, 10**12, 10**400, 0.5, float("nan"), float("inf")),
    *("", "\ud800", "\0", "../../x", [], {}, [None]),
)


def truncate(content: bytes, rng: random.Random) -> bytes:
    """Cuts off the end."""
    return content[: rng.randrange(len(content))] if content else content


def empty(content: bytes, rng: random.Random) -> bytes:
    """Removes everything."""
    del content, rng
    return b""


def flip(content: bytes, rng: random.Random) -> bytes:
    """Flips one to three bits."""
    damaged = bytearray(content)
    for _ in range(rng.randint(1, 3)) if content else ():
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def overwrite(content: bytes, rng: random.Random) -> bytes:
    """Overwrites up to 64 bytes with noise or zeros."""
    length = min(rng.randint(1, 64), len(content))
    at = rng.randrange(len(content) - length + 1)
    noise = rng.randbytes(length) if rng.random() < 0.5 else bytes(length)
    return content[:at] + noise + content[at + length :]


def cut(content: bytes, rng: random.Random) -> bytes:
    """Removes a part from the middle."""
    at = rng.randrange(len(content) + 1)
    return content[:at] + content[at + rng.randint(1, 64) :]


def append(content: bytes, rng: random.Random) -> bytes:
    """Appends noise, or a part of itself."""
    if rng.random() < 0.5:
        return content + rng.randbytes(rng.randint(1, 64))
    return content + content[rng.randrange(len(content) + 1) :]


def insert(content: bytes, rng: random.Random) -> bytes:
    """Inserts NUL, half a character, a byte order mark, a line end, a tab..."""
    at = rng.choice((0, len(content), rng.randrange(len(content) + 1)))
    return content[:at] + rng.choice(_BYTES) + content[at:]


def lines(content: bytes, rng: random.Random) -> bytes:
    """Drops, duplicates or swaps lines."""
    parts = content.splitlines(keepends=True)
    if not parts:
        return content
    i, j = rng.randrange(len(parts)), rng.randrange(len(parts))
    way = rng.choice(("drop", "double", "swap"))
    if way == "drop":
        del parts[i]
    elif way == "double":
        parts.insert(j, parts[i])
    else:
        parts[i], parts[j] = parts[j], parts[i]
    return b"".join(parts)


def cells(content: bytes, rng: random.Random) -> bytes:
    """Drops, duplicates or changes a cell of a table's line."""
    parts = content.split(b"\n")
    i = rng.randrange(len(parts))
    separator = b"\t" if b"\t" in content else b","
    row = parts[i].split(separator)
    j = rng.randrange(len(row))
    way = rng.choice(("drop", "double", "empty", "swap"))
    if way == "drop":
        del row[j]
    elif way == "double":
        row.insert(j, row[j])
    elif way == "empty":
        row[j] = b""
    else:
        k = rng.randrange(len(row))
        row[j], row[k] = row[k], row[j]
    parts[i] = separator.join(row)
    return b"\n".join(parts)


def number(content: bytes, rng: random.Random) -> bytes:
    """Replaces a number by one that is negative, huge, not a number..."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", content))
    if not found:
        return insert(content, rng)
    match = rng.choice(found)
    new = rng.choice(_NUMBERS).encode()
    return content[: match.start()] + new + content[match.end() :]


def member(content: bytes, rng: random.Random) -> bytes:
    """Replaces, deletes or adds a member of a JSON object or line."""
    parts = content.splitlines() if not _parses(content) else [content]
    parts = [part for part in parts if part.strip()]
    if not parts:
        return content
    i = rng.randrange(len(parts))
    if not _parses(parts[i]):
        return number(content, rng)
    value = json.loads(parts[i])
    containers = list(_containers(value))
    if not containers:
        return json.dumps(rng.choice(_VALUES)).encode()
    _change(rng.choice(containers), rng)
    parts[i] = json.dumps(value).encode()
    return b"\n".join(parts) + b"\n"


def _parses(content: bytes) -> bool:
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


def _containers(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        if value:
            yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)


def _change(container: dict | list, rng: random.Random) -> None:
    keys = list(container) if isinstance(container, dict) else range(len(container))
    key = rng.choice(keys)
    way = rng.choice(("delete", "replace", "replace", "add"))
    if way == "delete":
        del container[key]
    elif way == "replace":
        container[key] = rng.choice(_VALUES)
    elif isinstance(container, dict):
        container[f"{key}_x"] = container[key]
    else:
        container.append(container[key])


# Damage that a disk may do to a file without a checksum that was complete when renamed.
LOST = (truncate, empty)
BINARY = (truncate, empty, flip, flip, flip, overwrite, cut, append)
TEXT = (truncate, empty, flip, overwrite, cut, append, insert, insert, lines, number)
TABLE = (*TEXT, cells, cells)
JSON = (*TEXT, member, member, member, member)
