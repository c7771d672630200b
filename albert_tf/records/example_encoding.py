"""Encodes tf.train.Example and TFRecord files, many rows at once and without TensorFlow.

A process that only writes records then starts in a fraction of a second and saves the hundreds of
megabytes that TensorFlow takes.

Source: tensorflow/core/example/{example,feature}.proto; the encoding of protocol buffers;
tensorflow/core/lib/io/record_writer.h for the frame of a record.
"""

from __future__ import annotations

import array
import functools
import itertools
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.storage.protobuf import field, masked_checksum

# Field numbers of the `oneof` in feature.proto.
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3

# Size of a record's frame: its length and two checksums.
FRAME_BYTES = 16
# One feature of many rows: an array with a leading row axis, or one array or string per row.
Column = np.ndarray | Sequence[np.ndarray] | Sequence[bytes]


def encode_examples(columns: Mapping[str, Column]) -> list[bytes]:
    """Serializes each row as a tf.train.Example, with its features sorted by name.

    Args:
      columns: Name on disk -> B rows. Integers become an int64_list, floats a float_list, bytes
        a bytes_list of one string. Rows that are arrays are flattened and may differ in size.

    Returns:
      The bytes that SerializeToString(deterministic=True) gives, B times.
    """
    # Columns are encoded whole; then the entries of each row are joined.
    names = sorted(columns)
    entries = [_encode_feature(name, columns[name]) for name in names]
    rows = map(b"".join, zip(*entries, strict=True))
    return [field(1, row) for row in rows]


def frame_records(records: Iterable[bytes]) -> Iterator[bytes]:
    """Frames records as in a TFRecord file: each with its length and two checksums."""
    for record in records:
        length = struct.pack("<Q", len(record))
        yield length + masked_checksum(length) + record + masked_checksum(record)


def find_frames(content: bytes | mmap.mmap) -> np.ndarray:
    """Returns where each framed record begins `<int64>[N + 1]`, and the size of the content."""
    bounds = array.array("q", [0])
    while bounds[-1] < len(content):
        (size,) = struct.unpack_from("<Q", content, bounds[-1])
        bounds.append(bounds[-1] + size + FRAME_BYTES)
    return np.asarray(bounds)


def _encode_feature(name: str, column: Column) -> list[bytes]:
    """Returns the entry in the feature map for each row."""
    list_type, rows = _encode_values(column)
    key = field(1, name.encode())

    @functools.cache
    def header(size: int) -> bytes:
        """Returns the bytes before a row's values, which take `size` bytes."""
        # An empty list of packed numbers has no field; a string has one even if empty.
        values = field(1, bytes(size)) if size or list_type == _BYTES_LIST else b""
        entry = field(1, key + field(2, field(list_type, values)))
        return entry[: len(entry) - size]

    return [header(len(values)) + values for values in rows]


def _encode_values(column: Any) -> tuple[int, Sequence[bytes]]:
    """Returns the list type of a column, and the values of each row without any tag."""
    if isinstance(column[0], bytes):
        return _BYTES_LIST, column
    counts: np.ndarray
    if isinstance(column, np.ndarray):
        flat, counts = column.ravel(), np.full(len(column), column[0].size)
    else:
        flat, counts = np.concatenate(column), np.array([row.size for row in column])
    ends = np.cumsum(counts)
    if np.issubdtype(flat.dtype, np.floating):
        list_type, encoded, ends = _FLOAT_LIST, flat.astype("<f4").tobytes(), 4 * ends
    else:
        encoded_array, starts = _encode_varints(flat)
        list_type, encoded, ends = _INT64_LIST, encoded_array.tobytes(), starts[ends]
    bounds = [0, *ends.tolist()]
    return list_type, [encoded[begin:end] for begin, end in itertools.pairwise(bounds)]


def _encode_varints(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encodes <int>[N] by seven bits per byte, lowest first; the top bit means that more follow.

    Returns the bytes <uint8>[T], and where each value begins <int64>[N + 1], with T at the end.
    """
    # In most features every value fits into one byte.
    largest, smallest = values.max(initial=0), values.min(initial=0)
    if smallest < 0:
        raise ValueError(f"expected integers of at least 0, got {smallest}")
    if largest < 128:
        return values.astype(np.uint8), np.arange(len(values) + 1)
    # All values are split into as many groups as the largest needs; unused ones are dropped.
    width = -(-int(largest).bit_length() // 7)
    groups = np.empty((len(values), width), np.uint8)
    is_used = np.ones((len(values), width), bool)
    for k in range(width):
        rest = values >> 7 * k
        groups[:, k] = rest & 127
        if k:
            is_used[:, k] = rest > 0
    groups[:, :-1] |= is_used[:, 1:].view(np.uint8) << np.uint8(7)
    widths = sum(is_used[:, k].view(np.uint8) for k in range(width))
    return groups[is_used], np.concatenate([[0], np.cumsum(widths, dtype=np.int64)])
