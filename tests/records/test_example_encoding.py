"""Bytes of records, against the protocol buffers library and TensorFlow's own writer and reader."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records import example_encoding
from albert_tf.records.input_files import untuned

# Where a varint gets another byte.
EDGES = [0, 1, 127, 128, 2**14 - 1, 2**14, 2**21, 2**31 - 1, 2**35, 2**63 - 1]


def _with_protobuf(columns: dict) -> list[bytes]:
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
    return [example.SerializeToString(deterministic=True) for example in examples]


def _assert_same_bytes(columns: dict) -> None:
    assert example_encoding.encode_examples(columns) == _with_protobuf(columns)


@pytest.mark.parametrize("size", [0, 1, 2, 5, 63, 127, 128, 4001])
def test_arrays_of_every_size_are_encoded_as_protobuf_does(size):
    draws = np.random.default_rng(size)
    _assert_same_bytes(
        {
            "words": draws.integers(0, 30_000, (3, size)).astype(np.int32),
            "flags": draws.integers(0, 2, (3, size)).astype(np.int64),
            "a": draws.standard_normal((3, size)).astype(np.float32),
        }
    )


def test_one_number_a_row_needs_no_axis():
    _assert_same_bytes({"label": np.array([0, 1, 300], np.int32), "w": np.float32([0, 0.1, -2])})


def test_whole_range_of_integers():
    _assert_same_bytes({"x": np.array([EDGES, EDGES[::-1]])})
    with pytest.raises(ValueError, match="expected integers of at least 0, got -1"):
        example_encoding.encode_examples({"x": np.array([[3, -1]])})


def test_rows_of_different_sizes():
    draws = np.random.default_rng(0)
    sizes = (7, 0, 131)
    _assert_same_bytes(
        {
            "ids": [draws.integers(0, 2**15, size).astype(np.int32) for size in sizes],
            "weights": [draws.random(size, np.float32) for size in sizes],
            "bits": [bytes(size) for size in sizes],
        }
    )


def test_tensorflow_reads_the_files(tmp_path):
    contents = [b"", b"x", bytes(range(256)) * 17]
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(example_encoding.frame_records(contents)))
    assert list(untuned(tf.data.TFRecordDataset(str(path))).as_numpy_iterator()) == contents
    with tf.io.TFRecordWriter(str(tmp_path / "b.tfrecord")) as writer:
        for content in contents:
            writer.write(content)
    assert path.read_bytes() == (tmp_path / "b.tfrecord").read_bytes()
