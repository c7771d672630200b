"""A bad record ends a run in the input pipeline, wherever it stands, and is named."""

from __future__ import annotations

import functools
import itertools
import math
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records import input_files, input_pipeline, spec
from albert_tf.records.input_files import untuned
from tests import pretraining_runs as runs
from tests import tiny

# The early look ends before the bad record. It is neither the first nor the last of its batch.
BAD, COUNT, SLOTS = 71, 83, 3
VOCAB_SIZE = tiny.CONFIG["vocab_size"]
SPECS = {
    "static": spec.pretraining_spec(runs.LENGTH, runs.PREDICTIONS, 1, VOCAB_SIZE),
    "packed": spec.pretraining_spec(runs.LENGTH, runs.PREDICTIONS, SLOTS, VOCAB_SIZE),
    "dynamic": spec.compact_spec(runs.LENGTH, VOCAB_SIZE).expecting(
        {"row_format": np.array(spec.RowFormat(runs.LENGTH, VOCAB_SIZE, 0, 2, 3, 4))}
    ),
}
# Kind of record, feature on disk, place, value, and what the error says.
VALUES = [
    ("static", "input_ids", 3, VOCAB_SIZE, "has input_ids from 0 to 53, expected 0 to 52"),
    ("static", "input_ids", 0, 2**32 + 9, "to 4294967305, expected 0 to 52"),
    ("static", "input_ids", 0, 2**63 - 1, "to 9223372036854775807, expected 0 to 52"),
    ("static", "input_mask", 5, 2, "has input_mask from 0 to 2, expected 0 to 1"),
    ("static", "input_mask", 5, -1, "has input_mask from -1 to 1, expected 0 to 1"),
    ("static", "segment_ids", 1, 2, "has segment_ids from 0 to 2, expected 0 to 1"),
    ("static", "masked_lm_positions", 4, -1, "has masked_lm_positions from -1 to"),
    ("static", "masked_lm_positions", 0, 23, "to 23, expected 0 to 22"),
    ("static", "masked_lm_ids", 0, VOCAB_SIZE, "has masked_lm_ids from .* to 53"),
    ("static", "masked_lm_weights", 4, math.nan, "has masked_lm_weights of nan, expected 0 or 1"),
    ("static", "masked_lm_weights", 4, math.inf, "of inf, expected 0 or 1"),
    ("static", "masked_lm_weights", 4, -1.0, "of -1.0, expected 0 or 1"),
    ("static", "masked_lm_weights", 4, 1e-30, "of 1.*e-30, expected 0 or 1"),
    ("static", "next_sentence_labels", 0, 2, "next_sentence_labels from 2 to 2, expected 0 to 1"),
    ("packed", "next_sentence_labels", 1, -2, "next_sentence_labels from -2 to"),
    ("packed", "next_sentence_weights", 2, math.nan, "next_sentence_weights of nan"),
    ("packed", "cls_positions", 1, 2**32 + 1, "cls_positions from 0 to 4294967297"),
    ("packed", "input_ids", 1, -7, "input_ids from -7 to"),
    ("dynamic", "ids", 0, VOCAB_SIZE, "has ids from .* to 53, expected 0 to 52"),
    ("dynamic", "ids", 2, -1, "has ids from -1 to"),
    ("dynamic", "lengths", 0, 0, r"contradicts itself \(.* tokens, segment lengths \[0, "),
    ("dynamic", "lengths", 1, 20, "has lengths from .* to 20, expected 0 to 19"),
    ("dynamic", "lengths", 1, 18, r"contradicts itself \(.* tokens, segment lengths \[.*, 18\]"),
    ("dynamic", "lengths", 1, 2**32 + 1, "has lengths from .* to 4294967297"),
    (
        "dynamic",
        "format",
        5,
        7,
        r"has format \[23, 53, 0, 2, 3, 7\], other records have \[23, 53, 0, 2, 3, 4",
    ),
    ("dynamic", "labels", 0, 2, "has labels from 2 to 2, expected 0 to 1"),
]


@functools.cache
def examples(kind: str) -> list[dict[str, np.ndarray]]:
    if kind == "dynamic":
        return runs.compact_examples(COUNT)
    if kind == "packed":
        return runs.packed(runs.examples(3 * COUNT), SLOTS)[:COUNT]
    return runs.examples(COUNT)


def write(path: pathlib.Path, kind: str, feature: str, place: int, value: Any) -> str:
    """Writes records of which one has another value; a place of None takes the last one away."""
    spec = SPECS[kind]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, row in enumerate(examples(kind)):
            record = spec.serialize(row)
            if number == BAD:
                example = tf.train.Example.FromString(record)
                stored = example.features.feature[feature]
                values = getattr(stored, stored.WhichOneof("kind")).value
                if place is None:
                    values[:] = values[:-1]
                else:
                    values[place] = value
                record = example.SerializeToString()
            writer.write(record)
    return str(path)


def batches(files: list[str], kind: str, training: bool):
    context = tf.distribute.InputContext()
    if training:
        indexes = input_files.index_records(files)
        return input_pipeline.training_dataset(files, indexes, SPECS[kind], 9, 0, 0, context)
    counts = [COUNT] * len(files)
    return input_pipeline.evaluation_dataset(files, counts, SPECS[kind], 9, 100, context)


def parse(path: str, kind: str) -> dict[str, tf.Tensor]:
    """Parses the batch around the bad record, which is its row 5."""
    batch = untuned(tf.data.TFRecordDataset(path).skip(BAD - 5).batch(9))
    return SPECS[kind].parse(next(iter(batch)))


@pytest.mark.parametrize(
    ("kind", "feature", "place", "value", "message"),
    [
        *VALUES,
        ("static", "input_ids", None, None, "has 22 values of input_ids, this run expects 23"),
        ("static", "next_sentence_labels", None, None, "has 0 values of next_sentence_labels"),
        ("dynamic", "ids", None, None, r"contradicts itself \("),
        ("dynamic", "starts", None, None, r"contradicts itself \(.*, 0 word-start flags\)"),
    ],
)
def test_what_a_record_may_not_hold_is_named(tmp_path, kind, feature, place, value, message):
    path = write(tmp_path / "a.tfrecord", kind, feature, place, value)
    input_files.check_features([path], SPECS[kind])  # It ends before.
    with (
        pytest.raises(ValueError, match=f"^{re.escape(path)}, record {BAD} .*{message}") as caught,
        input_files.naming_bad_records([path], SPECS[kind]),
    ):
        parse(path, kind)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("training", [True, False])
def test_the_input_pipeline_checks_every_record(tmp_path, training):
    path = write(tmp_path / "a.tfrecord", "static", "masked_lm_weights", 4, math.nan)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a record has out-of-range"):
        for _ in itertools.islice(batches([path], "static", training), COUNT // 9 + 1):
            pass


@pytest.mark.parametrize("kind", SPECS)
def test_good_records_of_every_kind_pass(tmp_path, kind):
    feature = {"dynamic": "labels"}.get(kind, "next_sentence_labels")
    path = write(tmp_path / "a.tfrecord", kind, feature, 0, 1)
    parsed = {name: values.numpy() for name, values in parse(path, kind).items()}
    rows = [dict(row) for row in examples(kind)[BAD - 5 : BAD + 4]]
    labels = np.array(rows[5]["sentence_order_labels"])
    labels.flat[0] = 1
    rows[5]["sentence_order_labels"] = labels
    assert set(parsed) == set(rows[0]) - {"token_boundary", "row_format"}
    for name, values in parsed.items():
        for value, row in zip(values, rows, strict=True):
            # Features of any length are filled up with zeros.
            expected = np.zeros_like(value)
            expected[tuple(map(slice, np.shape(row[name])))] = row[name]
            np.testing.assert_array_equal(value, expected, err_msg=name)


def test_another_error_stays_what_it_is(tmp_path):
    path = write(tmp_path / "a.tfrecord", "static", "input_ids", 0, 7)
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match="of something else"),
        input_files.naming_bad_records([path], SPECS["static"]),
    ):
        raise tf.errors.InvalidArgumentError(None, None, "of something else")


def test_training_ends_in_one_line(tmp_path):
    runs.write_config(tmp_path / "albert_config.json")
    write(tmp_path / "a.tfrecord", "static", "masked_lm_positions", 2, 2**32 + 9)
    with pytest.raises(
        SystemExit,
        match=f"^error: .*a.tfrecord, record {BAD} has masked_lm_positions from .* to 4294967305",
    ) as caught:
        runs.main(runs.command(tmp_path))
    assert "\n" not in caught.value.code
