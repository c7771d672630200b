"""Records: what is written is read back, and what the release wrote is read the same."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records.input_files import untuned
from albert_tf.records.spec import RowFormat, compact_spec, pretraining_spec
from albert_tf.text.tokenization import Tokenizer

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


def _assert_is_batch_of(parsed: dict[str, tf.Tensor], example: dict[str, np.ndarray], size: int):
    assert parsed.keys() == example.keys() - {"token_boundary"}
    for name, tensor in parsed.items():
        assert tensor.dtype == (tf.float32 if name == "masked_lm_weights" else tf.int32), name
        np.testing.assert_array_equal(tensor, np.stack([example[name]] * size), err_msg=name)


def test_parse_reads_what_serialize_wrote_eagerly_and_in_a_dataset(example):
    spec = pretraining_spec(S, P)
    serialized = [spec.serialize(example)] * 3
    _assert_is_batch_of(spec.parse(tf.constant(serialized)), example, 3)
    dataset = tf.data.Dataset.from_tensor_slices(serialized).batch(3).map(spec.parse)
    _assert_is_batch_of(next(iter(untuned(dataset))), example, 3)


def test_a_packed_row_has_slots_for_its_examples(example):
    example["sentence_order_labels"] = np.array([1, 0, 0])
    example["sentence_order_weights"] = np.array([1.0, 1.0, 0.0], "float32")
    example["cls_positions"] = np.array([0, 7, 0])
    spec = pretraining_spec(S, P, max_examples_per_row=3)
    serialized = spec.serialize(example)
    parsed = spec.parse(tf.constant([serialized] * 2))
    for name in ("sentence_order_labels", "sentence_order_weights", "cls_positions"):
        np.testing.assert_array_equal(parsed[name], [example[name]] * 2, err_msg=name)
    stored = tf.train.Example.FromString(serialized).features.feature
    assert list(stored["next_sentence_labels"].int64_list.value) == [1, 0, 0]
    assert list(stored["next_sentence_weights"].float_list.value) == [1, 1, 0]
    assert list(stored["cls_positions"].int64_list.value) == [0, 7, 0]


def test_one_example_a_row_is_the_releases_record(example):
    spec = pretraining_spec(S, P, max_examples_per_row=1)
    assert spec.serialize(example) == pretraining_spec(S, P).serialize(example)
    assert not {"cls_positions", "sentence_order_weights"} & spec.features.keys()


def test_record_on_disk_has_the_names_and_kinds_of_the_release(example):
    record = tf.train.Example.FromString(pretraining_spec(S, P).serialize(example))
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


# --- compact records ------------------------------------------------------------------------


def _compact(length_a: int, length_b: int, seed: int = 0) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(seed)
    size = length_a + length_b
    return {
        "token_ids": draws.integers(0, 30_000, size),
        "segment_lengths": np.array([length_a, length_b]),
        "word_starts": draws.random(size) < 0.7,
        "sentence_order_labels": np.array(seed % 2),
        "row_format": np.array(RowFormat(512, 30_000, 0, 2, 3, 4)),
    }


def test_compact_records_of_several_lengths_are_read_back_eagerly_and_in_a_dataset():
    examples = [_compact(3, 7, seed=0), _compact(19, 5, seed=1), _compact(1, 1, seed=2)]
    spec = compact_spec()
    serialized = [spec.serialize(example) for example in examples]
    dataset = tf.data.Dataset.from_tensor_slices(serialized).batch(3).map(spec.parse)
    for parsed in (spec.parse(tf.constant(serialized)), next(iter(untuned(dataset)))):
        assert parsed.keys() == examples[0].keys() - {"row_format"}
        for name in ("segment_lengths", "sentence_order_labels"):
            np.testing.assert_array_equal(parsed[name], [example[name] for example in examples])
        for name, dtype in (("token_ids", tf.int32), ("word_starts", tf.bool)):
            assert parsed[name].dtype == dtype
            expected = np.zeros(parsed[name].shape)
            for row, example in enumerate(examples):
                expected[row, : len(example[name])] = example[name]
            np.testing.assert_array_equal(parsed[name], expected, err_msg=name)


def test_a_full_compact_record_takes_two_bytes_a_token_at_most():
    # Uniform ids take 2.45 bytes each; English, whose frequent pieces come first, about 1.5.
    example = _compact(200, 309)
    example["token_ids"] %= 16_384
    assert len(compact_spec().serialize(example)) < 512 * 2 + 512 / 8 + 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segment_lengths": np.array([3, 8])}, r"10 tokens, .* \[3, 8\], 16 word-start flags"),
        ({"segment_lengths": np.array([0, 10])}, r"10 tokens, .* \[0, 10\], 16 word-start flags"),
        ({"word_starts": np.ones(24, bool)}, "10 tokens, .*, 24 word-start flags"),
        (
            {"row_format": np.array([12, 99, 0, 2, 3, 4])},
            "10 tokens and 3 special tokens in a row of 12",
        ),
        ({"row_format": np.array([512, 4, 0, 2, 3, 4])}, r"special ids .* in a vocabulary of 4"),
    ],
)
def test_contradictions_of_a_compact_record_are_named(change, message):
    values = _compact(3, 7)
    values["word_starts"] = np.resize(values["word_starts"], 16)
    spec = compact_spec()
    assert spec.contradiction(values) is None
    assert re.fullmatch(message, spec.contradiction({**values, **change}))


# --- what is refused ------------------------------------------------------------------------


def test_serialize_refuses_another_shape(example):
    example["segment_ids"] = example["segment_ids"][:-1]
    with pytest.raises(ValueError, match=r"segment_ids: expected shape \(13,\), got \(12,\)"):
        pretraining_spec(S, P).serialize(example)


def test_serialize_refuses_missing_and_unknown_features(example):
    example["next_sentence_labels"] = example.pop("sentence_order_labels")
    with pytest.raises(ValueError, match="expected the features .*sentence_order_labels"):
        pretraining_spec(S, P).serialize(example)
