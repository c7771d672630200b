"""TFRecord files of pre-training: static, packed and compact."""

from __future__ import annotations

import functools
import pathlib
import random
import struct
from typing import Any

import tensorflow as tf

from albert_tf.cli import pretrain
from albert_tf.records import input_files, input_pipeline
from albert_tf.records.example_encoding import frame_records
from tests.kit import pretraining_runs as runs
from tests.kit import tiny
from tools.campaign import mutators
from tools.campaign.file_types import Evidence, FileType

_EXTREMES = (-1, 2**32 + 9, 2**31, 10**6, -(2**63), 2**63 - 1)
_WEIGHTS = (float("nan"), float("inf"), -1.0, 0.5, 1e30)
_BATCH = 8


def records(content: bytes) -> list[bytes]:
    """Returns the records of a TFRecord file, without checks and without an incomplete last one."""
    found, at = [], 0
    while at + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        found.append(content[at + 12 : at + 12 + length])
        at += 16 + length
    return found


def _frame(serialized: list[bytes]) -> bytes:
    return b"".join(frame_records(serialized))


def rewrite(content: bytes, rng: random.Random) -> bytes:
    """Changes a value, or the number of values, in one record, and updates its checksums."""
    serialized = records(content)
    if not serialized:
        return content
    # Any record, because readers must check more than the first ones.
    number = rng.randrange(len(serialized))
    example = tf.train.Example.FromString(serialized[number])
    features = example.features.feature
    name = rng.choice(sorted(features))
    list_type = features[name].WhichOneof("kind")
    values = getattr(features[name], list_type).value
    way = rng.choice(("value", "value", "value", "length", "delete"))
    if way == "delete":
        del features[name]
    elif list_type == "bytes_list":
        values[0] = values[0] + b"\xff" if rng.random() < 0.5 else values[0][:-1]
    elif way == "length":
        values.append(values[0]) if rng.random() < 0.5 else values.pop()
    else:
        choices = _WEIGHTS if list_type == "float_list" else _EXTREMES
        values[rng.randrange(len(values))] = rng.choice(choices)
    serialized[number] = example.SerializeToString(deterministic=True)
    return _frame(serialized)


def reorder(content: bytes, rng: random.Random) -> bytes:
    """Drops, duplicates or swaps whole records, which leaves a valid file."""
    serialized = records(content)
    i, j = rng.randrange(len(serialized)), rng.randrange(len(serialized))
    serialized[i], serialized[j] = serialized[j], serialized[i]
    return _frame(serialized[: rng.randint(1, len(serialized))] + serialized[i : i + 1])


def end_in_length(content: bytes, rng: random.Random) -> bytes:
    """Cuts the file within a record's length, or within the checksum of the length."""
    before = len(_frame(records(content)[: rng.randrange(len(records(content)))]))
    return content[: before + rng.randrange(1, 12)]


def _read(changes: dict[str, Any], folder: pathlib.Path) -> list[bytes]:
    """Checks a folder as a run does and reads it once; returns the stored records."""
    values = runs.parse(runs.command(folder, **changes))
    found = input_files.find_files(values.input_file)
    checked = pretrain.check_records(values, found, tiny.config(), None)
    make = functools.partial(
        input_pipeline.evaluation_dataset,
        checked.files,
        checked.counts,
        checked.spec,
        _BATCH,
        10**6,
        finish=checked.masking(values.mask_settings, -1),
    )
    with input_files.naming_bad_records(checked.files, checked.spec):
        for _ in make(tf.distribute.InputContext(1, 0, 1)):
            pass
    return [record for path in found for record in records(pathlib.Path(path).read_bytes())]


def _judge(evidence: Evidence) -> str | None:
    if _frame(records(evidence.after)) != evidence.after:
        return "bytes that are no whole record are accepted"
    known = set(evidence.expected)
    for record in evidence.result:
        if record not in known and _is_bad(record, records(evidence.before)[0]):
            return "a record with out-of-range values is fed"
    return None


def _is_bad(record: bytes, model: bytes) -> bool:
    """Whether a record is malformed beyond what is allowed, compared with a well-formed one."""
    features = tf.train.Example.FromString(record).features.feature
    expected = tf.train.Example.FromString(model).features.feature
    for name in expected:
        if name == "token_boundary":  # We don't read it.
            continue
        if name == "format" and features[name] != expected[name]:
            return True
        list_type = features[name].WhichOneof("kind")
        if list_type != expected[name].WhichOneof("kind"):
            return True
        values = getattr(features[name], list_type).value
        if list_type == "float_list" and any(value not in (0.0, 1.0) for value in values):
            return True
        if list_type == "int64_list" and any(not 0 <= value < 2**31 for value in values):
            return True
        bound = tiny.CONFIG["vocab_size"] if name in ("input_ids", "masked_lm_ids", "ids") else None
        if bound and any(value >= bound for value in values):
            return True
        of_any_length = name in ("ids", "starts")
        if not of_any_length and len(values) != len(getattr(expected[name], list_type).value):
            return True
    return False


def _make(masking: str, folder: pathlib.Path) -> None:
    runs.write_config(folder / "albert_config.json")
    path = folder / "a.tfrecord"
    count = 180  # More records than a run checks before it begins.
    if masking == "dynamic":
        runs.write_records(path, runs.compact_examples(count))
    elif masking == "packed":
        # As long as one example: rows that are full, and rows with room for two.
        rows = runs.examples(count, length=11)
        wide = [_widen(row) for row in rows]
        runs.write_records(path, runs.packed(wide, 3))
    else:
        runs.write_records(path, runs.examples(count))


def _widen(row: dict[str, Any]) -> dict[str, Any]:
    room = runs.LENGTH - len(row["input_ids"])
    names = ("input_ids", "input_mask", "segment_ids", "token_boundary")
    pad = tf.constant([[0, room]])
    return {k: tf.pad(v, pad).numpy() if k in names else v for k, v in row.items()}


_FLAGS: dict[str, dict[str, Any]] = {
    "static": {},
    "packed": {"max_examples_per_row": 3},
    "dynamic": {"masking": "dynamic", "max_predictions_per_seq": None},
}
_DAMAGE = (*mutators.BINARY, *[rewrite] * 4, reorder, end_in_length, end_in_length)
FILE_TYPES = tuple(
    FileType(
        f"{name} records",
        functools.partial(_make, name),
        _DAMAGE,
        functools.partial(_read, changes),
        _judge,
        "*.tfrecord",
    )
    for name, changes in _FLAGS.items()
)
