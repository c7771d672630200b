"""Reads users' .parquet files, row by row, a few megabytes at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from albert_tf.storage import files

ENDING = ".parquet"

# Decoded bytes to hold at once, estimated from the sizes that the file states.
_BATCH_BYTES = 2**23
_MOST_ROWS = 1024
_BUFFER_BYTES = 2**20
_NESTED = ("list", "large_list", "fixed_size_list", "struct")


def class_names(feature: Any) -> tuple[str, ...]:
    """Returns the names of a ClassLabel of Hugging Face's datasets, or of a list of them.

    Args:
      feature: A column's declaration, as an object or as it is stored. Other features have no
        names: the result is ().
    """

    def member(name: str) -> Any:
        return feature.get(name) if isinstance(feature, dict) else getattr(feature, name, None)

    # Older versions of datasets declare a list of features by a list of one.
    while isinstance(feature, list) or member("_type") in ("List", "LargeList", "Sequence"):
        feature = feature[0] if isinstance(feature, list) else member("feature")
    return tuple(member("names")) if member("_type") == "ClassLabel" else ()


class ParquetFile:
    """An open .parquet file, used in a `with` statement; `columns` are the names of its columns.

    `class_names` are the names of each column's class ids, if Hugging Face's datasets stored any.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise ValueError(
                "the package 'pyarrow', which reads .parquet files, is not installed: "
                "pip install 'albert_tf[parquet]'"
            ) from error
        self._pyarrow = pyarrow
        self._stored = files.open_bytes(path)
        try:
            # With pyarrow's defaults a column of a row group is read as a whole.
            self._file = self._pyarrow.parquet.ParquetFile(
                self._stored, buffer_size=_BUFFER_BYTES, pre_buffer=False
            )
            self._schema = self._file.schema_arrow
            self.columns = tuple(self._schema.names)
            # Hugging Face's datasets store their features as JSON in the schema's metadata.
            stored = json.loads((self._schema.metadata or {}).get(b"huggingface", b"{}"))
            features = stored.get("info", {}).get("features", {})
            self.class_names = {name: class_names(features.get(name)) for name in self.columns}
        except Exception as error:
            self._stored.close()
            raise self._failed(error) from error
        self.num_rows = self._file.metadata.num_rows

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stored.close()

    def rows(
        self, columns: Sequence[str], errors: str = "strict"
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields row numbers from 1, and cells by column, in JSON's types.

        `errors` is "strict", which requires UTF-8, or "ignore", which drops bytes that are not.
        """
        self.check(columns)
        # Row groups are decoded in batches of a few megabytes.
        number = 0
        try:
            for batch in self._file.iter_batches(self._batch_rows(), columns=list(columns)):
                cells = [self._cells(batch.column(name), errors) for name in columns]
                for row in zip(*cells, strict=True):
                    number += 1
                    yield number, dict(zip(columns, row, strict=True))
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path}: not UTF-8 text after row {number}") from error
        except files.errors(self._pyarrow.ArrowException) as error:
            raise self._failed(error, number) from error
        # Arrow may raise no error at the end of a truncated file.
        if number != self.num_rows:
            raise self._failed(EOFError(f"expected {self.num_rows} rows"), number)

    def check(self, columns: Sequence[str]) -> None:
        """Checks that the columns can be read."""
        if missing := [name for name in columns if self.columns.count(name) != 1]:
            raise ValueError(
                f"{self.path}: expected the columns {', '.join(map(repr, missing))}, each once, "
                f"got {', '.join(map(repr, self.columns))}"
            )
        for name in columns:
            column_type = self._schema.field(name).type
            if not self._is_json(column_type):
                raise ValueError(
                    f"{self.path}: column {name!r} holds {column_type}, expected text or numbers"
                )

    def _is_json(self, column_type: Any) -> bool:
        types = self._pyarrow.types
        if types.is_dictionary(column_type):
            return self._is_json(column_type.value_type)
        if any(getattr(types, f"is_{each}")(column_type) for each in _NESTED):
            fields = map(column_type.field, range(column_type.num_fields))
            return all(self._is_json(field.type) for field in fields)
        names = ("string", "large_string", "string_view", "integer", "floating", "boolean", "null")
        return any(getattr(types, f"is_{each}")(column_type) for each in names)

    def _batch_rows(self) -> int:
        metadata = self._file.metadata
        groups = range(metadata.num_row_groups)
        total = sum(metadata.row_group(i).total_byte_size for i in groups)
        return max(1, min(_MOST_ROWS, _BATCH_BYTES * self.num_rows // max(total, 1)))

    def _cells(self, column: Any, errors: str) -> list[Any]:
        try:
            return column.to_pylist()
        except UnicodeDecodeError:  # pyarrow doesn't check UTF-8 until here.
            if errors == "strict":
                raise
        # Decode the bytes ourselves, dropping those that are not UTF-8.
        contents = column.cast(self._pyarrow.large_binary()).to_pylist()
        return [content and content.decode("utf-8", errors) for content in contents]

    def _failed(self, error: Exception, number: int = 0) -> Exception:
        """Returns what to raise for an error after row `number`."""
        reason = files.reason(error)
        # Arrow raises OSError for damaged content as well, but without an errno.
        if isinstance(error, files.errors()) and getattr(error, "errno", 0) is not None:
            return OSError(f"can't read {self.path} after row {number}: {reason}")
        return ValueError(
            f"{self.path} is not a .parquet file, or is damaged after row {number} ({reason}): "
            "copy or write it again"
        )
