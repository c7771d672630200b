"""Masks drawn in the input pipeline: a function of seed and place, on hosts and replicas alike.

Their distribution: tests/generator/test_release_statistics.py. Can't see: a dataset on another
machine.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records import input_files, input_pipeline, masking, spec
from albert_tf.records.input_files import untuned
from tests import pretraining_runs as runs
from tests import tiny

COUNTS = (13, 5, 11)
FORMAT = spec.RowFormat(runs.LENGTH, tiny.CONFIG["vocab_size"], 0, 2, 3, 4)
SETTINGS = masking.MaskingSettings(
    FORMAT.vocab_size, FORMAT.mask_id, masked_lm_prob=0.2, max_predictions_per_seq=runs.PREDICTIONS
)
SPEC = spec.compact_spec()
NAMES = {
    name
    for name, feature in spec.pretraining_spec(1, 1).features.items()
    if name != "token_boundary"
}


@pytest.fixture(scope="module")
def examples() -> list[dict[str, np.ndarray]]:
    return runs.compact_examples(sum(COUNTS))


@pytest.fixture(scope="module")
def files(examples, tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("records")
    ends = np.cumsum(COUNTS)
    return [
        str(runs.write_compact_records(folder / f"{i}.tfrecord", examples[end - count : end]))
        for i, (count, end) in enumerate(zip(COUNTS, ends, strict=True))
    ]


def drawn(
    files, steps: int, *, seed=7, first=0, hosts=1, replicas=1
) -> list[dict[str, np.ndarray]]:
    """Returns the features of each step's global batch, put together from hosts and replicas."""
    finish = input_pipeline.DynamicMasking(FORMAT, SETTINGS, seed)
    parts: list[list[dict]] = [[] for _ in range(steps)]
    for host in range(hosts):
        context = tf.distribute.InputContext(hosts, host, replicas)
        dataset = input_pipeline.training_dataset(
            files, input_files.index_records(files), SPEC, 6, 7, first, context, finish
        )
        dataset = untuned(dataset.take(steps * replicas // hosts))
        for i, batch in enumerate(dataset.as_numpy_iterator()):
            parts[i * hosts // replicas].append(batch)
    return [
        {name: np.concatenate([part[name] for part in step]) for name in step[0]} for step in parts
    ]


def assert_same(actual: list[dict], expected: list[dict]) -> None:
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.keys() == theirs.keys() == NAMES
        for name, values in theirs.items():
            np.testing.assert_array_equal(mine[name], values, err_msg=name)


def original(batch: dict[str, np.ndarray]) -> np.ndarray:
    """`input_ids` before masking."""
    ids = batch["input_ids"].copy()
    at, slots = np.nonzero(batch["masked_lm_weights"])
    ids[at, batch["masked_lm_positions"][at, slots]] = batch["masked_lm_ids"][at, slots]
    return ids


@pytest.fixture(scope="module")
def straight(files) -> list[dict[str, np.ndarray]]:
    """More than two epochs."""
    return drawn(files, 11)


def test_masks_are_those_of_the_rows_eagerly_and_in_a_dataset(examples):
    finish = input_pipeline.DynamicMasking(FORMAT, SETTINGS, seed=3)
    places = np.arange(100, 100 + len(examples))
    serialized = tf.constant([SPEC.serialize(example) for example in examples])
    eager = finish(SPEC.parse(serialized), tf.constant(places))
    dataset = tf.data.Dataset.from_tensors((serialized, places))
    mapped = next(iter(untuned(dataset.map(lambda s, p: finish(SPEC.parse(s), p)))))
    for row, example in enumerate(examples):
        parts = (example[n][None] for n in ("token_ids", "segment_lengths", "word_starts"))
        seed = masking.derive_seeds(3, places[row : row + 1])
        expected = masking.Rows.lay_out(*parts, FORMAT).mask(seed, SETTINGS)
        expected["sentence_order_labels"] = example["sentence_order_labels"][None]
        for features in (eager, mapped):
            assert features.keys() == expected.keys() == NAMES
            for name, values in expected.items():
                assert features[name].dtype == values.dtype
                np.testing.assert_array_equal(features[name][row], values[0], err_msg=name)


def test_static_shapes_are_known_before_a_batch_is_drawn(files):
    finish = input_pipeline.DynamicMasking(FORMAT, SETTINGS, 3)
    context = tf.distribute.InputContext(1, 0, 2)
    indexes = input_files.index_records(files)
    dataset = input_pipeline.training_dataset(files, indexes, SPEC, 6, 7, 0, context, finish)
    for name, feature in spec.pretraining_spec(runs.LENGTH, runs.PREDICTIONS).features.items():
        if name in NAMES:
            assert dataset.element_spec[name] == tf.TensorSpec((3, *feature.shape), feature.dtype)


def test_each_epoch_has_every_example_once_with_other_masks(straight, examples):
    before = np.concatenate([original(batch) for batch in straight])[: 2 * len(examples)]
    after = np.concatenate([batch["input_ids"] for batch in straight])[: 2 * len(examples)]
    epochs = np.split(np.arange(2 * len(examples)), 2)
    orders = [epoch[np.lexsort(before[epoch].T)] for epoch in epochs]
    expected = {tuple(example["token_ids"].tolist()) for example in examples}
    assert len(expected) == len(examples)
    np.testing.assert_array_equal(before[orders[0]], before[orders[1]])
    texts = {tuple(row[(row > 4)].tolist()) for row in before[epochs[0]]}
    assert texts == expected
    same = (after[orders[0]] == after[orders[1]]).all(1)
    # Of a short row one piece is masked, the same one by chance, or it stays what it was.
    assert same.sum() < len(examples) / 4


def test_another_seed_draws_other_masks_of_the_same_examples(files, straight):
    other = drawn(files, 5, seed=8)
    for mine, theirs in zip(other, straight, strict=False):
        np.testing.assert_array_equal(original(mine), original(theirs))
        assert (mine["input_ids"] != theirs["input_ids"]).any()


@pytest.mark.parametrize("first", [1, 4, 7])
def test_a_later_start_draws_the_same_masks(files, straight, first):
    assert_same(drawn(files, 3, first=first), straight[first : first + 3])


@pytest.mark.parametrize(("hosts", "replicas"), [(1, 2), (1, 3), (2, 2), (2, 6)])
def test_hosts_and_replicas_share_one_row_of_masks(files, straight, hosts, replicas):
    assert_same(drawn(files, 7, hosts=hosts, replicas=replicas), straight[:7])


def test_an_evaluation_draws_the_same_masks_again_however_it_is_split(files):
    finish = input_pipeline.DynamicMasking(FORMAT, SETTINGS, -1)

    def evaluated(size: int) -> dict[str, np.ndarray]:
        context = tf.distribute.InputContext(1, 0, 1)
        dataset = input_pipeline.evaluation_dataset(files, COUNTS, SPEC, size, 100, context, finish)
        batches = list(untuned(dataset).as_numpy_iterator())
        whole = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
        real = whole.pop("example_weights") == 1
        return {name: values[real] for name, values in whole.items()}

    first = evaluated(6)
    assert len(first["input_ids"]) == sum(COUNTS)
    assert_same([evaluated(6), evaluated(10)], [first, first])
