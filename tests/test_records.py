"""Records: what is written is read back, and what the release wrote is read the same."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import records
from albert_tf.tokenization import Tokenizer

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
        "masked_lm_weights": np.array([1.0, 1.0, 1.0, 0.25, 0.0]),
        "sentence_order_labels": np.array(1),
    }


def _assert_is_batch_of(parsed: dict[str, tf.Tensor], example: dict[str, np.ndarray], size: int):
    assert parsed.keys() == example.keys() - {"token_boundary"}
    for name, tensor in parsed.items():
        assert tensor.dtype == (tf.float32 if name == "masked_lm_weights" else tf.int32), name
        np.testing.assert_array_equal(tensor, np.stack([example[name]] * size), err_msg=name)


def test_parse_reads_what_serialize_wrote_eagerly_and_in_a_dataset(example):
    spec = records.pretraining_spec(S, P)
    serialized = [spec.serialize(example)] * 3
    _assert_is_batch_of(spec.parse(tf.constant(serialized)), example, 3)
    dataset = tf.data.Dataset.from_tensor_slices(serialized).batch(3).map(spec.parse)
    _assert_is_batch_of(next(iter(dataset)), example, 3)


def test_record_on_disk_has_the_names_and_kinds_of_the_release(example):
    record = tf.train.Example.FromString(records.pretraining_spec(S, P).serialize(example))
    stored = {
        name: (feature.WhichOneof("kind"), list(getattr(feature, feature.WhichOneof("kind")).value))
        for name, feature in record.features.feature.items()
    }
    example["next_sentence_labels"] = example.pop("sentence_order_labels").reshape(1)
    kinds = dict.fromkeys(example, "int64_list") | {"masked_lm_weights": "float_list"}
    assert stored == {name: (kinds[name], list(value)) for name, value in example.items()}


def test_golden_records_parse_to_the_instances_of_the_release(golden):
    folder = golden / "pretrain_data"
    serialized = list(tf.data.TFRecordDataset(str(folder / "en_small_first50.tfrecord")))
    parsed = records.pretraining_spec(128, 20).parse(tf.stack(serialized))
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


def test_serialize_refuses_another_shape(example):
    example["segment_ids"] = example["segment_ids"][:-1]
    with pytest.raises(ValueError, match=r"segment_ids: expected shape \(13,\), got \(12,\)"):
        records.pretraining_spec(S, P).serialize(example)


def test_serialize_refuses_missing_and_unknown_features(example):
    example["next_sentence_labels"] = example.pop("sentence_order_labels")
    with pytest.raises(ValueError, match="expected the features .*sentence_order_labels"):
        records.pretraining_spec(S, P).serialize(example)
