"""The index of a TensorFlow bundle, checked before TensorFlow's reader touches it.

That reader takes what an index declares for granted: a crafted one makes it ask for any memory, or
end the process. Here an index may declare no more than its data files hold.

Source: tensorflow/core/util/tensor_bundle; the index is a table of LevelDB's format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import tensor_bundle_pb2

from albert_tf import files

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER_BYTES = 48
# After each block: its compression, and a checksum.
_TRAILER_BYTES = 5
_MOST_RANKS = 254
_STRING = tf.string.as_datatype_enum
# The types that are read -> bytes of an element. Others, as handles, are no numbers.
_SIZES = {
    dtype.as_datatype_enum: dtype.size
    for dtype in vars(tf.dtypes).values()
    if isinstance(dtype, tf.DType)
    and (dtype.is_floating or dtype.is_integer or dtype.is_complex or dtype.is_bool)
} | {_STRING: 1}


def check(prefix: str) -> None:
    """Checks that a bundle's index declares only what its data files hold.

    Args:
      prefix: The bundle's.

    Raises:
      ValueError: If it declares something else, or is damaged; the message does not name it.
      OSError: If a file can't be read; or one of TensorFlow's errors.
    """
    try:
        entries = _entries(files.read_bytes(f"{prefix}.index", files.SMALL_BYTES))
        header = tensor_bundle_pb2.BundleHeaderProto.FromString(next(entries, (b"", b""))[1])
        total, held = 0, {}
        for key, value in entries:
            entry = tensor_bundle_pb2.BundleEntryProto.FromString(value)
            if entry.slices:
                raise ValueError(f"{key!r} is stored in slices, which are not read")
            shard = f"{prefix}.data-{entry.shard_id:05d}-of-{header.num_shards:05d}"
            if shard not in held:
                files.check_regular(shard)
                held[shard] = tf.io.gfile.stat(shard).length
            if min(entry.offset, entry.size) < 0 or entry.offset + entry.size > held[shard]:
                raise ValueError(f"{key!r} lies beyond the end of {shard}")
            needed = _least_bytes(key, entry)
            if needed > entry.size:
                raise ValueError(f"{key!r} declares {needed:,} bytes and has {entry.size:,}")
            if entry.dtype == _STRING:
                _check_strings(key, shard, entry)
            total += entry.size
    except (DecodeError, IndexError) as error:
        raise ValueError(f"its index is none: {error}") from None
    if total > sum(held.values()):
        raise ValueError(
            f"it declares {total:,} bytes, and its data files hold {sum(held.values()):,}"
        )


def _least_bytes(key: bytes, entry: tensor_bundle_pb2.BundleEntryProto) -> int:
    """Returns how many bytes a tensor has at least by its shape; a string has one or more."""
    if entry.dtype not in _SIZES:
        raise ValueError(f"{key!r} is of a type that is not read ({entry.dtype})")
    sizes = [dim.size for dim in entry.shape.dim]
    if entry.shape.unknown_rank or len(sizes) > _MOST_RANKS or min(sizes, default=0) < 0:
        raise ValueError(f"{key!r} is of an impossible shape")
    # Zeros are left out, as TensorFlow multiplies the others first, and can't hold what overflows.
    if math.prod(size or 1 for size in sizes) >= 2**63:
        raise ValueError(f"{key!r} is of an impossible shape")
    return math.prod(sizes) * _SIZES[entry.dtype]


def _check_strings(key: bytes, shard: str, entry: tensor_bundle_pb2.BundleEntryProto) -> None:
    """Checks the lengths that lie before a tensor's strings; a checksum is between them."""
    if entry.size > files.SMALL_BYTES:
        raise ValueError(f"{key!r} has {entry.size:,} bytes of text: too many beside weights")
    with tf.io.gfile.GFile(shard, "rb") as file:
        file.seek(entry.offset)
        content = file.read(entry.size)
    position = declared = 0
    for _ in range(math.prod(dim.size for dim in entry.shape.dim)):
        length, position = _varint(content, position)
        declared += length
    if position + 4 + declared != entry.size:
        raise ValueError(f"the strings of {key!r} do not fill their {entry.size:,} bytes")


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values; there is none but of blocks that lie one behind the other."""
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or not footer.endswith(_MAGIC):
        raise ValueError("its index is none, or truncated")
    _, _, position = _handle(footer, 0)  # Of what TensorFlow does not read.
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
    if len(block) != size or size < 4 or content[offset + size : offset + size + 1] != b"\0":
        raise ValueError("a block of its index is truncated, or compressed")
    end = size - 4 * (1 + int.from_bytes(block[-4:], "little"))
    key, position = b"", 0
    while position < end:
        shared, position = _varint(block, position)
        added, position = _varint(block, position)
        length, position = _varint(block, position)
        start, position = position, position + added + length
        if shared > len(key) or position > end:
            raise ValueError("an entry of its index is damaged")
        key = key[:shared] + block[start : start + added]
        yield key, block[start + added : position]


def _handle(content: bytes, position: int) -> tuple[int, int, int]:
    """Returns a block's offset and size, and where their bytes end."""
    offset, position = _varint(content, position)
    size, position = _varint(content, position)
    return offset, size, position


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
        if shift > 63:
            raise ValueError("a number in its index is too long")
