"""Reads text from plain or compressed files, line by line, and from .parquet files."""

from __future__ import annotations

import bz2
import codecs
import functools
import gzip
import io
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from albert_tf.console.errors import of_extra
from albert_tf.storage import files
from albert_tf.storage.parquet_files import ParquetFile

# Longer lines are cut at white space, so that text without line breaks can't exhaust memory.
MAX_LINE_BYTES = 2**20

_MEND = "convert the file to UTF-8, or drop such bytes with `input_file_mode=rb`"


class TextSource:
    """Base class of open files of text; used in a `with` statement.

    Args:
      path: A path that tf.io.gfile can open.
      errors: "strict" requires UTF-8, "ignore" drops bytes that are not.

    Attributes:
      number: Number of the last line, or row, read, from 1; 0 before the first.
    """

    unit = "line"

    def __init__(self, path: str, errors: str) -> None:
        self.path = path
        self.errors = errors
        self.number = 0

    def __enter__(self) -> Any:
        return self

    @property
    def here(self) -> str:
        """The path and line, or row, to begin an error message with."""
        return f"{self.path}, {self.unit} {self.number}"

    def lines_within(self, text: str) -> Iterator[str]:
        """Yields the lines of a text from the line or row read last, as TextFile.lines does."""
        try:
            content = io.BytesIO(text.encode("utf-8", self.errors))
        except UnicodeEncodeError as error:
            raise ValueError(f"{self.here} is not Unicode ({error.reason}); {_MEND}") from error
        for _, line in _split_lines(content, MAX_LINE_BYTES):
            yield from self._lines_of(line)

    def _lines_of(self, line: bytes) -> list[str]:
        return [part.strip() for part in self._decode(line).split("\r")]

    def _decode(self, line: bytes) -> str:
        line = line.removeprefix(codecs.BOM_UTF8).replace(b"\0", b"")
        try:
            return line.decode("utf-8", self.errors).strip()
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.here} is not UTF-8 ({error.reason}); {_MEND}") from error


class ParquetText(TextSource):
    """Texts in a column of a .parquet file."""

    unit = "row"

    def __init__(self, path: str, errors: str) -> None:
        super().__init__(path, errors)
        self._size = files.size(path)
        self._file = ParquetFile(path)

    def __exit__(self, *exception: object) -> None:
        self._file.__exit__(*exception)

    def consumed_bytes(self) -> int:
        """Returns the file's size times the share of rows read."""
        return self._size * self.number // max(self._file.num_rows, 1)

    def check(self, column: str) -> None:
        """Checks that there is such a column; see ParquetFile.check."""
        self._file.check([column])

    def cells(self, column: str) -> Iterator[Any]:
        """Yields one cell after another; see ParquetFile.rows."""
        for number, row in self._file.rows([column], self.errors):
            self.number = number
            yield row[column]


class TextFile(TextSource):
    """A file of UTF-8 text, compressed if its name ends in .gz, .bz2 or .zst.

    A line ends in a line feed, a carriage return, or both. White space around a line, NUL bytes
    and a byte order mark before it, as where files were joined, are dropped.
    """

    def __init__(self, path: str, errors: str) -> None:
        super().__init__(path, errors)
        # A missing package is reported before the file is opened.
        if path.endswith(".zst"):
            if sys.version_info >= (3, 14):
                from compression import zstd
            else:
                with of_extra("data", path):
                    from backports import zstd
        self._stored = files.open_bytes(path)
        self._failures: tuple[type[Exception], ...] = files.errors(EOFError, zlib.error)
        raw: Any = self._stored
        if path.endswith(".gz"):
            raw = gzip.GzipFile(fileobj=self._stored)
        elif path.endswith(".bz2"):
            raw = bz2.BZ2File(self._stored)
        elif path.endswith(".zst"):
            self._failures += (zstd.ZstdError,)
            # Reads files of `zstd --long=31`; others take no more memory than by default.
            widest = zstd.DecompressionParameter.window_log_max
            raw = zstd.ZstdFile(self._stored, options={widest: widest.bounds()[1]})
        # Decompressors are slow to read from line by line, so a buffer stands between.
        self._text = raw if raw is self._stored else io.BufferedReader(raw, 2**16)

    def __exit__(self, *exception: object) -> None:
        self._stored.close()

    def consumed_bytes(self) -> int:
        """Returns the stored bytes up to here, a decompressor's read-ahead included."""
        return self._stored.tell()

    def lines(self) -> Iterator[str]:
        """Yields one line after another, long ones in parts of at most MAX_LINE_BYTES."""
        for line in self._read(_split_lines(self._text, MAX_LINE_BYTES)):
            yield from self._lines_of(line)

    def whole_lines(self, max_bytes: int) -> Iterator[str]:
        """Yields one whole line after another."""
        lines = iter(functools.partial(self._text.readline, max_bytes + 1), b"")
        for line in self._read(enumerate(lines, 1)):
            if len(line) > max_bytes:
                raise ValueError(f"{self.here} has more than {max_bytes:,} bytes: split it")
            yield self._decode(line)

    def _read(self, numbered_lines: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        try:
            for number, line in numbered_lines:
                self.number = number
                yield line
            if self._text is not self._stored and not self._stored.tell():
                # Even empty text has bytes once compressed, but gzip accepts an empty file.
                raise EOFError("it is empty, which a compressed file never is")
        except self._failures as error:
            reason = getattr(error, "message", error)  # TensorFlow's errors have a message.
            raise OSError(f"can't read {self.path} after line {self.number}: {reason}") from error


def _split_lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yields line numbers and bytes, long lines in parts of at most `max_bytes`.

    Parts that are only white space are dropped: they would pass for blank lines.
    """
    # `rest` is what the last cut left of a long line, and `is_begun` whether that line was cut.
    number, rest, is_begun = 1, b"", False
    while part := file.readline(max_bytes - len(rest)):
        line = rest + part
        is_whole = line.endswith(b"\n")
        cut = len(line) if is_whole or len(line) < max_bytes else _find_cut(line)
        if not (is_begun and line[:cut].isspace()):
            yield number, line[:cut]
        rest, is_begun = line[cut:], not is_whole
        number += is_whole
    if rest and not rest.isspace():
        yield number, rest


def _find_cut(line: bytes) -> int:
    """Returns where to cut a line: at its last space, or else between characters."""
    cut = max(line.rfind(space, len(line) // 2) for space in (b" ", b"\t"))
    if cut > 0:
        return cut
    # A UTF-8 character has up to four bytes; those after its first are 0b10......
    ends = range(len(line) - 1, max(len(line) - 4, 0), -1)
    return next((end for end in ends if line[end] & 0xC0 != 0x80), len(line))
