"""The tensors of a TensorFlow bundle, read without TensorFlow.

Source: tensorflow/core/util/tensor_bundle.
"""

from __future__ import annotations

import math
import struct
from typing import Any, BinaryIO

import numpy as np

from albert_tf import bundle_index, files, wire
from albert_tf.bundle_index import Entry


def read(prefix: str) -> dict[str, Any]:
    """Reads all tensors of a bundle.

    Args:
      prefix: The bundle's prefix.

    Returns:
      Arrays by name; for strings, arrays of bytes, or bytes if scalar.

    Raises:
      ValueError: If it is damaged; the message does not name it.
      OSError: If a file can't be read; or one of TensorFlow's errors.
    """
    by_shard: dict[str, list[Entry]] = {}
    for entry in bundle_index.read(prefix):
        by_shard.setdefault(entry.shard, []).append(entry)
    tensors = {}
    for shard, entries in by_shard.items():
        with files.open_bytes(shard) as file:
            tensors.update({entry.name: _read(file, entry) for entry in entries})
    return dict(sorted(tensors.items()))


def _read(file: BinaryIO, entry: Entry) -> Any:
    file.seek(entry.offset)
    content = file.read(entry.size)
    if len(content) != entry.size:
        raise ValueError(f"{entry.shard} was truncated while it was being read")
    if entry.dtype == bundle_index.STRING:
        return _strings(content, entry)
    if math.prod(entry.shape) * bundle_index.width(entry.dtype) != entry.size:
        raise ValueError(f"{entry.key!r} has {entry.size:,} bytes, more than its shape needs")
    _check(content, entry)
    # A copy: an array over bytes is read-only.
    return np.frombuffer(content, _dtype(entry.dtype)).reshape(entry.shape).copy()


def _dtype(number: int) -> np.dtype:
    name = bundle_index.DTYPES[number]
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name).newbyteorder("<")


def _check(summed: bytes, entry: Entry) -> None:
    if wire.masked_checksum(summed) != entry.checksum:
        raise ValueError(f"{entry.key!r} does not match its checksum in the index")


def _strings(content: bytes, entry: Entry) -> Any:
    """Returns strings; their lengths and a checksum of these come first."""
    lengths, position = [], 0
    for _ in range(math.prod(entry.shape)):
        length, position = wire.varint(content, position)
        lengths.append(length)
    start = position + 4
    if start + sum(lengths) != entry.size:
        raise ValueError(f"the strings of {entry.key!r} do not fill their {entry.size:,} bytes")
    # The entry's checksum covers fixed-width lengths, their own checksum, and the strings.
    widths = b"".join(struct.pack("<I" if n < 1 << 32 else "<Q", n) for n in lengths)
    if wire.masked_checksum(widths) != content[position:start]:
        raise ValueError(f"the string lengths of {entry.key!r} do not match their checksum")
    _check(widths + content[position:], entry)
    array = np.empty(len(lengths), object)
    for i, length in enumerate(lengths):
        array[i], start = content[start : start + length], start + length
    return array.reshape(entry.shape)[()]
