"""Reads TensorFlow's bundles without TensorFlow, whose own reader aborts at a crafted index.

A bundle is <prefix>.index, a sorted table of names and BundleEntryProtos in blocks, and the
tensors' bytes in <prefix>.data-?????-of-?????. The index is not trusted: every size that it
declares is compared with the size of the files before memory is allocated.

Source: tensorflow/core/util/tensor_bundle, tensorflow/core/lib/io/format.cc.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from albert_tf.storage import files, protobuf

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER_BYTES = 48
# Each block ends with its compression type (1 byte) and a checksum (4 bytes).
_TRAILER_BYTES = 5
_MOST_RANKS = 254
# Fields of a BundleEntryProto.
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _CHECKSUM, _SLICES = range(1, 8)
_STRING = 7
# TensorFlow's type numbers -> NumPy's names. Types without numbers, such as handles, are not read.
_DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """The place of a tensor: `size` bytes from `offset` in the data file `shard`."""

    name: str
    dtype: int  # TensorFlow's number.
    shape: tuple[int, ...]
    shard: str
    offset: int
    size: int
    checksum: bytes  # See protobuf.masked_checksum.


def read(prefix: str) -> dict[str, Any]:
    """Returns all tensors of a bundle by name; strings are arrays of bytes, or bytes if scalar."""
    # Open each data file once.
    by_shard: dict[str, list[Entry]] = {}
    for entry in read_index(prefix):
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
    if entry.dtype == _STRING:
        return _strings(content, entry)
    _check(content, entry)
    # An array over bytes is read-only, so it is copied.
    dtype = _dtype(entry.dtype).newbyteorder("<")
    return np.frombuffer(content, dtype).reshape(entry.shape).copy()


def _strings(content: bytes, entry: Entry) -> Any:
    """Returns an array of strings, stored after their lengths and a checksum of the lengths."""
    # Layout: the lengths as varints, 4 bytes of checksum, then the strings without any gap.
    lengths, position = [], 0
    for _ in range(math.prod(entry.shape)):
        length, position = protobuf.varint(content, position)
        lengths.append(length)
    start = position + 4
    if start + sum(lengths) != entry.size:
        raise ValueError(f"the strings of {entry.name!r} do not fill their {entry.size:,} bytes")
    # The entry's checksum covers the lengths at a fixed width, their own checksum, and the strings.
    widths = b"".join(struct.pack("<I" if n < 1 << 32 else "<Q", n) for n in lengths)
    _check(widths + content[position:], entry)
    array = np.empty(len(lengths), object)
    for i, length in enumerate(lengths):
        array[i], start = content[start : start + length], start + length
    return array.reshape(entry.shape)[()]


def _check(summed: bytes, entry: Entry) -> None:
    if protobuf.masked_checksum(summed) != entry.checksum:
        raise ValueError(f"{entry.name!r} does not match its checksum in the index")


def read_index(prefix: str) -> list[Entry]:
    """Reads a bundle's index, and checks that it declares only what its data files hold."""
    try:
        # The first entry is the header, whose name is empty.
        entries = _entries(files.read_bytes(f"{prefix}.index", files.SMALL_BYTES))
        header = dict(protobuf.fields(next(entries, (b"", b""))[1]))
        if header.get(2, 0):
            raise ValueError("it is big-endian, which is not supported")
        num_shards = protobuf.signed(header.get(1, 0))
        found, held = [], {}
        for key, value in entries:
            name = key.decode(errors="backslashreplace")
            entry = _entry(name, value, prefix, num_shards)
            # The tensor's bytes must lie within its data file, and be as many as its shape needs.
            if entry.shard not in held:
                held[entry.shard] = files.size(entry.shard)
            if min(entry.offset, entry.size) < 0 or entry.offset + entry.size > held[entry.shard]:
                raise ValueError(f"{name!r} lies beyond the end of {entry.shard}")
            needed = _least_bytes(entry)
            if needed > entry.size or (needed < entry.size and entry.dtype != _STRING):
                raise ValueError(
                    f"{name!r} needs {needed:,} bytes for its shape, but has {entry.size:,}"
                )
            if entry.dtype == _STRING and entry.size > files.SMALL_BYTES:
                raise ValueError(f"{name!r} has {entry.size:,} bytes of text: too many")
            found.append(entry)
    except (IndexError, TypeError) as error:
        raise ValueError(f"its index can't be parsed: {error}") from None
    # If entries shared bytes, a small file could demand any amount of memory.
    total = sum(entry.size for entry in found)
    if total > sum(held.values()):
        raise ValueError(
            f"its index declares {total:,} bytes, but its data files contain {sum(held.values()):,}"
        )
    return found


def _entry(name: str, message: bytes, prefix: str, num_shards: int) -> Entry:
    """Parses a BundleEntryProto."""
    values = dict.fromkeys((_DTYPE, _SHARD, _OFFSET, _SIZE, _CHECKSUM), 0)
    dims: list[int] = []
    for number, value in protobuf.fields(message):
        if number == _SLICES:
            raise ValueError(f"{name!r} is stored in slices, which is not supported")
        if number == _SHAPE:
            dims += _dims(name, value)
        elif number in values:
            values[number] = protobuf.signed(value)
    shard = f"{prefix}.data-{values[_SHARD]:05d}-of-{num_shards:05d}"
    checksum = (values[_CHECKSUM] & 0xFFFFFFFF).to_bytes(4, "little")
    return Entry(name, values[_DTYPE], tuple(dims), shard, values[_OFFSET], values[_SIZE], checksum)


def _dims(name: str, shape: bytes) -> list[int]:
    """Parses a TensorShapeProto."""
    dims = []
    for number, value in protobuf.fields(shape):
        if number == 2:
            dims.append(protobuf.signed(dict(protobuf.fields(value)).get(1, 0)))
        elif number == 3 and value:
            raise ValueError(f"{name!r} has an impossible shape")
    return dims


def _least_bytes(entry: Entry) -> int:
    """Returns the fewest bytes that a tensor of this shape takes; a string takes at least one."""
    if entry.dtype != _STRING and entry.dtype not in _DTYPES:
        raise ValueError(f"{entry.name!r} has an unsupported type ({entry.dtype})")
    if (
        len(entry.shape) > _MOST_RANKS
        or min(entry.shape, default=0) < 0
        # Count zeros as ones: NumPy rejects a shape that overflows even if the array is empty.
        or math.prod(size or 1 for size in entry.shape) >= 2**63
    ):
        raise ValueError(f"{entry.name!r} has an impossible shape")
    width = 1 if entry.dtype == _STRING else _dtype(entry.dtype).itemsize
    return math.prod(entry.shape) * width


def _dtype(number: int) -> np.dtype:
    name = _DTYPES[number]
    # NumPy itself has no bfloat16.
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values; the blocks must follow one another without overlap."""
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or not footer.endswith(_MAGIC):
        raise ValueError("its index is truncated, or not an index")
    # The first handle is the metaindex's, which TensorFlow doesn't read either. The second is the
    # index block's, whose values are the handles of the data blocks.
    _, _, position = _handle(footer, 0)
    offset, size, _ = _handle(footer, position)
    end = names = 0
    for _, value in _block(content, offset, size):
        offset, size, _ = _handle(value, 0)
        if offset < end:
            raise ValueError("blocks of its index overlap")
        end = offset + size
        for key, entry in _block(content, offset, size):
            names += len(key)
            if names > files.SMALL_BYTES:
                raise ValueError("the names in its index are too long")
            yield key, entry


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    block = content[offset : offset + size]
    # A block is only read if it is whole, uncompressed and matches its checksum.
    trailer = content[offset + size : offset + size + _TRAILER_BYTES]
    if len(block) != size or size < 4 or trailer[:1] != b"\0":
        raise ValueError("a block of its index is truncated, or compressed")
    if trailer[1:] != protobuf.masked_checksum(block + trailer[:1]):
        raise ValueError("a block of its index does not match its checksum")
    # After the entries a block lists restart points, 4 bytes each, and their number: skip these.
    end = size - 4 * (1 + int.from_bytes(block[-4:], "little"))
    # A key is stored without the prefix that it shares with the key before it.
    key, position = b"", 0
    while position < end:
        shared, position = protobuf.varint(block, position)
        added, position = protobuf.varint(block, position)
        length, position = protobuf.varint(block, position)
        start, position = position, position + added + length
        if shared > len(key) or position > end:
            raise ValueError("an entry of its index is damaged")
        key = key[:shared] + block[start : start + added]
        yield key, block[start + added : position]


def _handle(content: bytes, position: int) -> tuple[int, int, int]:
    """Returns a block's offset and size, and the position after them."""
    offset, position = protobuf.varint(content, position)
    size, position = protobuf.varint(content, position)
    return offset, size, position
