"""The building blocks of TensorFlow's files, without it: protocol buffers and checksums.

Source: the encoding of protocol buffers; tensorflow/core/lib/hash/crc32c.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import google_crc32c

_MASK_DELTA = 0xA282EAD8
# Wire type -> bytes of a fixed-width number.
_FIXED_BYTES = {1: 8, 5: 4}
_VARINT, _LENGTH_DELIMITED = 0, 2


def masked_checksum(content: bytes) -> bytes:
    """Returns the four-byte checksum that is stored with `content`."""
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def varint(content: bytes, position: int) -> tuple[int, int]:
    """Returns the number at a position, and where its bytes end."""
    value = shift = 0
    while True:
        byte = content[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def field(number: int, value: bytes | int) -> bytes:
    """Encodes a field: a number of at least 0, or bytes."""
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    content = bytearray()
    while value > 127:
        content.append(value & 127 | 128)
        value >>= 7
    content.append(value)
    return bytes(content)


def signed(value: int) -> int:
    """Reinterprets the bits of an unsigned number as int64."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields a message's fields: field numbers, and values as unsigned numbers or bytes."""
    position = 0
    while position < len(message):
        # A field begins with its number and its wire type, packed into one varint.
        tag, position = varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = varint(message, position)
            yield number, value
            continue
        if wire_type == _LENGTH_DELIMITED:
            size, position = varint(message, position)
        elif wire_type in _FIXED_BYTES:
            size = _FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"a field has an unknown wire type ({wire_type})")
        # Every type but a varint has a known size, so a truncated field is noticed.
        content = message[position : position + size]
        if len(content) < size:
            raise IndexError("a field is truncated")
        position += size
        is_bytes = wire_type == _LENGTH_DELIMITED
        yield number, content if is_bytes else int.from_bytes(content, "little")
