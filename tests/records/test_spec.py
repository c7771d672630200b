"""Records are read as written, by the release too; a bad one ends a run, and is named."""

import collections
import functools
import itertools
import json
import math
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records import example_encoding, input_files, input_pipeline, spec
from albert_tf.records.input_files import untuned
from albert_tf.records.spec import RowFormat, compact_spec, pretraining_spec
from albert_tf.text.tokenization import Tokenizer
from tests.kit import pretraining_runs as runs
from tests.kit import tiny

S, P = 13, 5


@pytest.fixture
def example() -> dict[str, np.ndarray]:
    return {
        "input_ids": np.arange(S) * 2503 + 1,  # one to three bytes each on disk
        "input_mask": np.arange(S) < 11,
        "segment_ids": np.arange(S) > 7,
        "token_boundary": np.arange(S) % 3 > 0,
        "masked_lm_positions": np.array([2, 3, 5, 7, 0]),
        "masked_lm_ids": np.array([29989, 127, 128, 16384, 0]),
        "masked_lm_weights": np.array([1.0, 1.0, 1.0, 1.0, 0.0]),
        "sentence_order_labels": np.array(1),
    }


def test_record_on_disk_has_the_names_and_kinds_of_the_release(example):
    (serialized,) = runs.serialized([example], pretraining_spec(S, P))
    record = tf.train.Example.FromString(serialized)
    stored = {
        name: (feature.WhichOneof("kind"), list(getattr(feature, feature.WhichOneof("kind")).value))
        for name, feature in record.features.feature.items()
    }
    example["next_sentence_labels"] = example.pop("sentence_order_labels").reshape(1)
    kinds = dict.fromkeys(example, "int64_list") | {"masked_lm_weights": "float_list"}
    assert stored == {name: (kinds[name], list(value)) for name, value in example.items()}


def test_golden_records_parse_to_the_instances_of_the_release(golden):
    folder = golden / "pretrain_data"
    serialized = list(untuned(tf.data.TFRecordDataset(str(folder / "en_small_first50.tfrecord"))))
    parsed = pretraining_spec(128, 20).parse(tf.stack(serialized))
    lines = (folder / "en_small_first50.jsonl").read_text().splitlines()
    assert len(lines) == len(serialized) == 50
    tokenizer = Tokenizer(spm_model_file=golden / "spm" / "en_small.model")
    for row, instance in enumerate(map(json.loads, lines)):
        length, labels = len(instance["tokens"]), len(instance["masked_lm_labels"])
        expected = {
            "input_ids": tokenizer.convert_tokens_to_ids(instance["tokens"]),
            "input_mask": [1] * length,
            "segment_ids": instance["segment_ids"],
            "masked_lm_positions": instance["masked_lm_positions"],
            "masked_lm_ids": tokenizer.convert_tokens_to_ids(instance["masked_lm_labels"]),
            "masked_lm_weights": [1] * labels,
        }
        for name, values in expected.items():
            padded = np.pad(values, (0, parsed[name].shape[1] - len(values)))
            np.testing.assert_array_equal(parsed[name][row], padded, err_msg=f"{name} of {row}")
        assert parsed["sentence_order_labels"][row] == int(instance["is_random_next"])


COMPACT = {"token_ids": np.arange(10), "segment_lengths": np.array([3, 7])}
COMPACT |= {"word_starts": np.ones(16, bool)}
COMPACT |= {"row_format": np.array(RowFormat(512, 30_000, 0, 2, 3, 4))}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("segment_lengths", [3, 8], r"10 tokens, .* \[3, 8\], 16 word-start flags"),
        ("segment_lengths", [0, 10], r"10 tokens, .* \[0, 10\], 16 word-start flags"),
        ("word_starts", [True] * 24, "10 tokens, .*, 24 word-start flags"),
        ("row_format", [12, 99, 0, 2, 3, 4], "10 tokens and 3 special tokens in a row of 12"),
        ("row_format", [512, 4, 0, 2, 3, 4], "special ids .* in a vocabulary of 4"),
    ],
)
def test_contradictions_of_a_compact_record_are_named(name, value, message):
    spec = compact_spec()
    assert spec.contradiction(COMPACT) is None
    assert re.fullmatch(message, spec.contradiction({**COMPACT, name: np.array(value)}))


# The check before a run ends ahead of the bad record, which is in the middle of its batch.
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
    ("static", "input_mask", 5, -1, "has input_mask from -1 to 1, expected 0 to 1"),
    ("static", "masked_lm_positions", 4, -1, "has masked_lm_positions from -1 to"),
    ("static", "masked_lm_positions", 0, 23, "to 23, expected 0 to 22"),
    ("static", "masked_lm_ids", 0, VOCAB_SIZE, "has masked_lm_ids from .* to 53"),
    ("static", "masked_lm_weights", 4, math.nan, "has masked_lm_weights of nan, expected 0 or 1"),
    ("static", "masked_lm_weights", 4, -1.0, "of -1.0, expected 0 or 1"),
    ("static", "next_sentence_labels", 0, 2, "next_sentence_labels from 2 to 2, expected 0 to 1"),
    ("packed", "next_sentence_weights", 2, math.nan, "next_sentence_weights of nan"),
    ("packed", "cls_positions", 1, 2**32 + 1, "cls_positions from 0 to 4294967297"),
    ("dynamic", "ids", 0, VOCAB_SIZE, "has ids from .* to 53, expected 0 to 52"),
    ("dynamic", "lengths", 0, 0, r"contradicts itself \(.* tokens, segment lengths \[0, "),
    ("dynamic", "lengths", 1, 20, "has lengths from .* to 20, expected 0 to 19"),
    ("dynamic", "lengths", 1, 18, r"contradicts itself \(.* tokens, segment lengths \[.*, 18\]"),
    ("dynamic", "lengths", 1, 2**32 + 1, "has lengths from .* to 4294967297"),
    ("dynamic", "format", 5, 7, r"has format \[23, 53, 0, 2, 3, 7\], other records have"),
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
    """Writes records, one with a changed value; a place of None removes its last value."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, record in enumerate(runs.serialized(examples(kind), SPECS[kind])):
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


def parse(path: str, kind: str, in_dataset: bool = False) -> dict[str, tf.Tensor]:
    """Parses the batch around the bad record, which is its row 5."""
    batches = tf.data.TFRecordDataset(path).skip(BAD - 5).batch(9)
    if in_dataset:
        return next(iter(untuned(batches.map(SPECS[kind].parse))))
    return SPECS[kind].parse(next(iter(untuned(batches))))


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
    input_files.check_features([path], SPECS[kind])  # It does not look that far.
    with (
        pytest.raises(ValueError, match=f"^{re.escape(path)}, record {BAD} .*{message}") as caught,
        input_files.naming_bad_records([path], SPECS[kind]),
    ):
        parse(path, kind)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("training", [True, False])
def test_the_input_pipeline_checks_every_record(tmp_path, training):
    files = [write(tmp_path / "a.tfrecord", "static", "masked_lm_weights", 4, math.nan)]
    context, spec = tf.distribute.InputContext(), SPECS["static"]
    if training:
        indexes = input_files.index_records(files)
        found = input_pipeline.training_dataset(files, indexes, spec, 9, 0, 0, context)
    else:
        found = input_pipeline.evaluation_dataset(files, [COUNT], spec, 9, 100, context)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a record has out-of-range"):
        collections.deque(itertools.islice(found, COUNT // 9 + 1), maxlen=0)


DTYPES = {"word_starts": tf.bool}
DTYPES |= dict.fromkeys(("masked_lm_weights", "sentence_order_weights"), tf.float32)


@pytest.mark.parametrize("in_dataset", [False, True])
@pytest.mark.parametrize("kind", SPECS)
def test_good_records_of_every_kind_are_read_as_written(tmp_path, kind, in_dataset):
    feature = {"dynamic": "labels"}.get(kind, "next_sentence_labels")
    path = write(tmp_path / "a.tfrecord", kind, feature, 0, 1)
    parsed = parse(path, kind, in_dataset)
    rows = [dict(row) for row in examples(kind)[BAD - 5 : BAD + 4]]
    labels = np.array(rows[5]["sentence_order_labels"])
    labels.flat[0] = 1
    rows[5]["sentence_order_labels"] = labels
    assert set(parsed) == set(rows[0]) - {"token_boundary", "row_format"}
    for name, values in parsed.items():
        assert values.dtype == DTYPES.get(name, tf.int32), name
        for value, row in zip(values.numpy(), rows, strict=True):
            # Features of any length are filled up with zeros.
            expected = np.zeros_like(value)
            expected[tuple(map(slice, np.shape(row[name])))] = row[name]
            np.testing.assert_array_equal(value, expected, err_msg=name)


def test_another_error_stays_what_it_is(tmp_path):
    path = write(tmp_path / "a.tfrecord", "static", "input_ids", 0, 7)
    error = tf.errors.InvalidArgumentError(None, None, "of something else")
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match="of something else"),
        input_files.naming_bad_records([path], SPECS["static"]),
    ):
        raise error


def test_training_ends_in_one_line(tmp_path):
    runs.write_config(tmp_path / "albert_config.json")
    write(tmp_path / "a.tfrecord", "static", "masked_lm_positions", 2, 2**32 + 9)
    message = f"^error: .*a.tfrecord, record {BAD} has masked_lm_positions from .* to 4294967305"
    with pytest.raises(SystemExit, match=message) as caught:
        runs.main(runs.command(tmp_path))
    assert "\n" not in caught.value.code


# Values at which a varint gets another byte.
EDGES = [0, 1, 127, 128, 2**14 - 1, 2**14, 2**21, 2**31 - 1, 2**35, 2**63 - 1]
DRAWS = np.random.default_rng(0)
ENCODED: dict[str, dict[str, Any]] = {
    **{
        f"{size} values": {
            "words": DRAWS.integers(0, 30_000, (3, size)).astype(np.int32),
            "flags": DRAWS.integers(0, 2, (3, size)).astype(np.int64),
            "a": DRAWS.standard_normal((3, size)).astype(np.float32),
        }
        for size in (0, 1, 2, 5, 63, 127, 128, 4001)
    },
    "no axis": {"label": np.array([0, 1, 300], np.int32), "w": np.float32([0, 0.1, -2])},
    "all integers": {"x": np.array([EDGES, EDGES[::-1]])},
    "rows of different sizes": {
        "ids": [DRAWS.integers(0, 2**15, size).astype(np.int32) for size in (7, 0, 131)],
        "weights": [DRAWS.random(size, np.float32) for size in (7, 0, 131)],
        "bits": [bytes(size) for size in (7, 0, 131)],
    },
}


@pytest.mark.parametrize("columns", ENCODED.values(), ids=ENCODED)
def test_values_are_encoded_as_protobuf_does(columns):
    examples = [tf.train.Example() for _ in range(len(next(iter(columns.values()))))]
    for name, column in columns.items():
        for example, row in zip(examples, column, strict=True):
            feature = example.features.feature[name]
            if isinstance(row, bytes):
                feature.bytes_list.value.append(row)
            elif np.issubdtype(row.dtype, np.floating):
                feature.float_list.value.extend(row.ravel().tolist())
            else:
                feature.int64_list.value.extend(row.ravel().tolist())
    expected = [example.SerializeToString(deterministic=True) for example in examples]
    assert example_encoding.encode_examples(columns) == expected


def test_tensorflow_reads_the_files(tmp_path):
    contents = [b"", b"x", bytes(range(256)) * 17]
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(example_encoding.frame_records(contents)))
    assert list(untuned(tf.data.TFRecordDataset(str(path))).as_numpy_iterator()) == contents
    with tf.io.TFRecordWriter(str(tmp_path / "b.tfrecord")) as writer:
        for content in contents:
            writer.write(content)
    assert path.read_bytes() == (tmp_path / "b.tfrecord").read_bytes()
