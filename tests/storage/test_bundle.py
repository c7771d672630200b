"""Indexes of bundles that declare what does not exist, with correct checksums.

TensorFlow's own reader ends the process at many of them.
"""

import os
import pathlib
import random
from collections.abc import Sequence

import numpy as np
import pytest
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from albert_tf.storage import bundle, checkpoint, protobuf

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
# Values that may break the reader of a field.
NUMBERS = (0, 1, -1, 7, 99, 2**31, 2**32, 10**9, 2**62, 2**63 - 1, -(2**63))
DATA = "m.data-00000-of-00001"
Entries = Sequence[tuple[bytes, bytes]]


def varints(*values: int) -> bytes:
    encoded = bytearray()
    for value in values:
        while value > 127:
            encoded.append(value & 127 | 128)
            value >>= 7
        encoded.append(value)
    return bytes(encoded)


def table(entries: Entries, shared: Sequence[int] = (), kind=b"\0", times=1) -> bytes:
    """Returns an index of one block, as TensorFlow writes it, which lists the block `times` times.

    `shared` has the length of the prefix that each name claims to share with the one before it;
    `kind` is the compression that each block claims.
    """
    stored, handles = b"", []
    for members in (entries, (), [(b"~", None)] * times):
        block = b""
        for i, (key, value) in enumerate(members):
            value = handles[0] if value is None else value
            same = shared[i] if members is entries and i < len(shared) else 0
            block += varints(same, len(key), len(value)) + key + value
        block += (0).to_bytes(4, "little") + (1).to_bytes(4, "little")
        handles.append(varints(len(stored), len(block)))
        stored += block + kind + protobuf.masked_checksum(block + kind)
    return stored + (handles[1] + handles[2]).ljust(40, b"\0") + MAGIC


@pytest.fixture
def prefix(tmp_path) -> str:
    """A bundle of numbers, text and nothing."""
    prefix = str(tmp_path / "m")
    tensors = {"a": np.ones((3, 5), "f"), "b": np.array([b"one", b""]), "c": np.zeros((0, 7), "f")}
    checkpoint.write(prefix, {**tensors, "d": np.int64(11)})
    return prefix


def entries_of(prefix: str) -> list[tuple[bytes, bytes]]:
    return list(bundle._entries(pathlib.Path(f"{prefix}.index").read_bytes()))


def rewrite(prefix: str, name: str = "", dims: Sequence[int] | None = None, **fields: int) -> None:
    """Rewrites the index, changing the shape and the fields of one entry."""
    entries = entries_of(prefix)
    for i, (key, value) in enumerate(entries):
        if name and key.decode() == name:
            entry = BundleEntryProto.FromString(value)
            entry.shape.unknown_rank = fields.pop("unknown_rank", False)
            if fields.pop("slices", 0):
                entry.slices.add().extent.add(length=-(2**63))
            if dims is not None:
                del entry.shape.dim[:]
                for size in dims:
                    entry.shape.dim.add(size=size)
            for field, number in fields.items():
                setattr(entry, field, number)
            entries[i] = (key, entry.SerializeToString())
    pathlib.Path(f"{prefix}.index").write_bytes(table(entries))


def test_an_index_here_is_read_as_tensorflow_writes_it(prefix):
    stored = entries_of(prefix)
    assert [key for key, _ in stored] == [b"", b"a", b"b", b"c", b"d"]
    rewrite(prefix)
    assert entries_of(prefix) == stored
    found = checkpoint.read(prefix)
    assert [*found] == ["a", "b", "c", "d"]
    assert found["b"].tolist() == [b"one", b""] and found["d"] == 11
    rewrite(prefix, "c", dims=[0, 2**40])  # Huge, but empty.
    assert checkpoint.read(prefix)["c"].shape == (0, 2**40)


def refuse(prefix: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"checkpoint {prefix} is damaged .*{message}") as error:
        checkpoint.read(prefix)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("b", {"dims": [10**9]}, "needs 1,000,000,000 bytes"),
        ("a", {"dims": [-3, 5]}, "impossible shape"),
        ("c", {"dims": [0, 7, 2**62, 2**62]}, "impossible shape"),
        ("d", {"dims": [1] * 255}, "impossible shape"),
        ("a", {"unknown_rank": True}, "impossible shape"),
        ("a", {"dims": [4, 5]}, "needs 80 bytes for its shape, but has 60"),
        ("a", {"dtype": 99}, r"unsupported type \(99\)"),
        ("a", {"offset": 10**6}, "beyond the end"),
        ("a", {"size": -1}, "beyond the end"),
        ("a", {"shard_id": 3}, "m.data-00003-of-00001"),
        ("a", {"slices": True}, "slices"),
        ("b", {"size": 8}, "the strings of 'b' do not fill"),
        ("b", {"size": 65 << 20}, "68,157,440 bytes of text"),
        ("d", {"dtype": 7}, "the strings of 'd' do not fill"),
        ("d", {"dims": [3, 5], "dtype": 1, "size": 60, "offset": 0}, "data files contain"),
    ],
)
def test_what_an_index_may_not_declare(prefix, name, changes, message):
    if changes.get("size", 0) > 60:
        os.truncate(pathlib.Path(prefix).with_name(DATA), 70 << 20)  # Sparse: takes no disk space.
    rewrite(prefix, name, **changes)
    refuse(prefix, message)


def long_names(entries: Entries) -> bytes:
    """Returns a small index: each name repeats the first."""
    (_, header), (_, entry), *_ = entries
    return table([(b"n" * 2**20, header), *[(b"", entry)] * 64], [0, *[2**20] * 64])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda entries: b"", "truncated, or not an index"),
        (lambda entries: table(entries)[:-1], "truncated, or not an index"),
        (lambda entries: bytes(47) + MAGIC, "a block of its index is truncated"),
        (lambda entries: b"\xff" * 40 + MAGIC, "more than 64 bits"),
        (lambda entries: table(entries, kind=b"\1"), "truncated, or compressed"),
        (lambda entries: table(entries, shared=[9] * 5), "an entry of its index is damaged"),
        (lambda entries: table(entries, times=2), "overlap"),
        (long_names, "the names in its index are too long"),
        (lambda entries: table([(b"", b"\xff")]), "can't be parsed"),
        (lambda entries: table([(b"", b"\x08\x01\x10\x01")]), "big-endian"),
        (lambda entries: bytes(65 << 20), "more than 67,108,864 bytes"),
    ],
)
def test_what_is_no_index(prefix, content, message):
    pathlib.Path(f"{prefix}.index").write_bytes(content(entries_of(prefix)))
    refuse(prefix, message)


def test_no_mutation_ends_the_process(prefix):
    """Mutates fields of entries or of the header; each result is read, or refused in one line."""
    rng, stored = random.Random(5), entries_of(prefix)
    refused = 0
    for _ in range(400):
        changed = list(stored)
        for _ in range(rng.choice([1, 2])):
            i = rng.randrange(len(stored))
            changed[i] = (changed[i][0], mutated(changed[i], rng))
        pathlib.Path(f"{prefix}.index").write_bytes(table(changed))
        try:
            checkpoint.read(prefix)
        except ValueError as error:
            assert "\n" not in str(error)
            refused += 1
    assert 100 < refused < 400


def mutated(stored: tuple[bytes, bytes], rng: random.Random) -> bytes:
    key, value = stored
    if not key:
        header = BundleHeaderProto.FromString(value)
        header.num_shards = rng.choice([0, 1, 2, -1, 2**31 - 1])
        header.endianness = rng.choice([0, 1])
        return header.SerializeToString()
    entry = BundleEntryProto.FromString(value)
    field = rng.choice(["dtype", "offset", "size", "dim", "dims"])
    if field == "dtype":
        entry.dtype = rng.randrange(130)
    elif field == "dims":
        entry.shape.dim.add(size=rng.choice(NUMBERS))
    elif field != "dim":
        setattr(entry, field, rng.choice(NUMBERS))
    elif entry.shape.dim:
        rng.choice(entry.shape.dim).size = rng.choice(NUMBERS)
    return entry.SerializeToString()
