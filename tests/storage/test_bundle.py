"""Indexes of bundles that declare what is not there, with checksums that are right.

TensorFlow's own reader ends the process at many of them.
"""

import os
import pathlib
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from albert_tf.storage import bundle, checkpoint, protobuf

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
# Values that a field may not survive.
NUMBERS = (0, 1, -1, 7, 99, 2**31, 2**32, 10**9, 2**62, 2**63 - 1, -(2**63))

Entries = list[tuple[bytes, bytes]]


def varints(*values: int) -> bytes:
    encoded = bytearray()
    for value in values:
        while value > 127:
            encoded.append(value & 127 | 128)
            value >>= 7
        encoded.append(value)
    return bytes(encoded)


def table(entries: Sequence[tuple[bytes, bytes]], shared: int = 0, kind: bytes = b"\0") -> bytes:
    """Returns an index of one block, as TensorFlow writes it; `shared` is a lie about each key."""
    stored, handles = b"", []
    for members in (entries, (), [(b"~", None)]):
        block = b""
        for key, value in members:
            value = handles[0] if value is None else value
            block += varints(shared, len(key), len(value)) + key + value
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


def entries_of(prefix: str) -> Entries:
    return list(bundle._entries(pathlib.Path(f"{prefix}.index").read_bytes()))


def rewrite(prefix: str, **changes: Callable[[BundleEntryProto], object]) -> None:
    """Changes entries by name."""
    changed = []
    for key, value in entries_of(prefix):
        entry = BundleEntryProto.FromString(value)
        if key.decode() in changes:
            changes[key.decode()](entry)
            value = entry.SerializeToString()
        changed.append((key, value))
    pathlib.Path(f"{prefix}.index").write_bytes(table(changed))


def test_an_index_here_is_read_as_tensorflow_writes_it(prefix):
    stored = entries_of(prefix)
    assert [key for key, _ in stored] == [b"", b"a", b"b", b"c", b"d"]
    before = checkpoint.read(prefix)
    rewrite(prefix)
    assert entries_of(prefix) == stored
    after = checkpoint.read(prefix)
    assert after["b"].tolist() == [b"one", b""] and after["d"] == 11
    assert set(before) == set(after)


BAD = {
    "a string of a billion": ("b", lambda e: setattr(e.shape.dim[0], "size", 10**9), "needs 1,0"),
    "negative": ("a", lambda e: setattr(e.shape.dim[0], "size", -3), "impossible shape"),
    "a wide nothing": ("c", lambda e: setattr(e.shape.dim[1], "size", 2**40), None),
    "overflow beside zero": (
        "c",
        lambda e: [setattr(e.shape.dim.add(), "size", 2**62) for _ in range(2)],
        "impossible shape",
    ),
    "ranks": ("d", lambda e: [e.shape.dim.add(size=1) for _ in range(255)], "impossible shape"),
    "no rank": ("a", lambda e: setattr(e.shape, "unknown_rank", True), "impossible shape"),
    "larger": (
        "a",
        lambda e: setattr(e.shape.dim[0], "size", 4),
        "needs 80 bytes for its shape, but has 60",
    ),
    "type": ("a", lambda e: setattr(e, "dtype", 99), r"has an unsupported type \(99\)"),
    "beyond": ("a", lambda e: setattr(e, "offset", 10**6), "lies beyond the end of"),
    "negative size": ("a", lambda e: setattr(e, "size", -1), "lies beyond the end of"),
    "shard": ("a", lambda e: setattr(e, "shard_id", 3), "m.data-00003-of-00001"),
    "slices": ("a", lambda e: e.slices.add().extent.add(length=-(2**63)), "stored in slices"),
    "text": ("b", lambda e: setattr(e, "size", e.size - 1), "the strings of 'b' do not fill"),
    "number as text": ("d", lambda e: setattr(e, "dtype", 7), "the strings of 'd' do not fill"),
    "twice": (
        "d",
        lambda e: (
            [e.shape.dim.add(size=size) for size in (3, 5)],
            setattr(e, "dtype", 1),
            setattr(e, "size", 60),
            e.ClearField("offset"),
        ),
        "data files contain",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_an_index_may_not_declare(prefix, case):
    name, change, message = BAD[case]
    rewrite(prefix, **{name: change})
    if message is None:
        assert checkpoint.read(prefix)["c"].size == 0
        return
    with pytest.raises(ValueError, match=f"checkpoint {prefix} is damaged .*{message}") as error:
        checkpoint.read(prefix)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda entries: b"", "its index is truncated, or not an index"),
        (lambda entries: table(entries)[:-1], "its index is truncated, or not an index"),
        (lambda entries: bytes(47) + MAGIC, "a block of its index is truncated"),
        (lambda entries: b"\xff" * 40 + MAGIC, "a number has more than 64 bits"),
        (lambda entries: table(entries, kind=b"\1"), "truncated, or compressed"),
        (lambda entries: table(entries, shared=9), "an entry of its index is damaged"),
        (lambda entries: table([(b"", b"\xff")]), "its index can't be parsed"),
        (lambda entries: table([(b"", b"\x08\x01\x10\x01")]), "it is big-endian"),
        (lambda entries: bytes(65 << 20), "has more than 67,108,864 bytes"),
    ],
)
def test_what_is_no_index(prefix, content, message):
    pathlib.Path(f"{prefix}.index").write_bytes(content(entries_of(prefix)))
    with pytest.raises(ValueError, match=f"checkpoint {prefix} is damaged .*{message}"):
        checkpoint.read(prefix)


def test_no_mutation_ends_the_process(prefix):
    """Of the fields of an entry, or of the header; each is read or refused in one line."""
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


@pytest.mark.parametrize("name", ["m.index", "m.data-00000-of-00001", "checkpoint"])
def test_a_pipe_is_not_waited_for(prefix, name):
    directory = pathlib.Path(prefix).parent
    (directory / "checkpoint").write_text('model_checkpoint_path: "m"\n')
    (directory / name).unlink()
    os.mkfifo(directory / name)
    with pytest.raises(ValueError, match=f"{name} (is a pipe|can't be read)|the end of .*{name}"):
        checkpoint.read(str(directory))
