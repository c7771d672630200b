"""Records of finished steps: cells.jsonl, a line for each, in the order of their keys."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any


class Kept:
    """The records of finished steps in one file, which each change replaces atomically.

    Studies that run at the same time may write to one file: each change starts from the file's
    current content.

    Args:
      path: The file, which need not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = pathlib.Path(path)
        self._read_as: tuple[int, int, int] | None = None
        self._records: dict[str, dict[str, Any]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._read()

    def get(self, key: str) -> dict[str, Any] | None:
        """Returns a step's record, or None."""
        return self._read().get(key)

    def put(self, *records: dict[str, Any]) -> None:
        """Adds records, or replaces those of the same steps."""
        with self._locked() as found:
            self._write(found | {record["key"]: record for record in records})

    def discard(self, *keys: str) -> None:
        """Removes the records of steps, where there are any."""
        with self._locked() as found:
            if set(keys) & set(found):
                self._write({key: record for key, record in found.items() if key not in keys})

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, dict[str, Any]]]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield self._read()
        finally:
            os.close(directory)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return {}
        # Each change replaces the file, so this differs.
        seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if seen != self._read_as:
            self._records = {}
            lines = self._path.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines, start=1):
                try:
                    record = json.loads(line)
                    self._records[record["key"]] = record
                except (KeyError, TypeError, ValueError) as error:
                    raise ValueError(
                        f"line {number} of {self._path} is damaged ({error}): remove it to run its "
                        "step again"
                    ) from None
            self._read_as = seen
        return self._records

    def _write(self, records: dict[str, dict[str, Any]]) -> None:
        text = "".join(f"{to_line(records[key])}\n" for key in sorted(records))
        replace(self._path, text.encode())


def to_line(record: dict[str, Any]) -> str:
    """Returns a record as a line of JSON; reports show metrics in the record's order."""
    return json.dumps(record)


def replace(path: pathlib.Path, content: bytes) -> None:
    """Replaces a file atomically: it has either the new content or its earlier one."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
