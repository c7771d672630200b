"""Batches of a static length: the rows of the plan, padded as pad_features pads them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records.datasets import untuned
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.sequence_features import pad_features
from albert_tf.training import length_buckets

LENGTHS = (11, 17, 23)
COUNT = 29
ONE_REPLICA = tf.distribute.InputContext(1, 0, 1)


def rows(choices: int | None = None) -> list[dict[str, np.ndarray]]:
    """Returns rows of 2 to 23 positions; with `choices`, of as many sequences each."""
    rng = np.random.default_rng(7)
    found = []
    for i in range(COUNT):
        shape = (int(rng.integers(2, 24)),)
        shape = shape if choices is None else (choices, *shape)
        found.append(
            {
                "input_ids": rng.integers(1, 53, shape).astype(np.int32),
                "p_mask": rng.integers(0, 2, shape).astype(np.int32),
                "label_ids": np.int32(i),
                "score": np.float32(i / 7),
            }
        )
    return found


def assert_batch(batch: dict, examples: list[dict], chosen: np.ndarray, length: int) -> None:
    for name in examples[0]:
        if examples[0][name].ndim:
            padded = [pad_features({name: examples[row][name]}, length)[name] for row in chosen]
        else:
            padded = [examples[row][name] for row in chosen]
        np.testing.assert_array_equal(batch[name], padded)
        assert batch[name].dtype == examples[0][name].dtype


@pytest.mark.parametrize("choices", [None, 3])
def test_training_batches_hold_the_rows_of_their_steps(choices):
    examples = rows(choices)
    table = FeatureTable.from_rows(examples)
    plan = length_buckets.training_batches(table.lengths, 6, LENGTHS, 1, 21)
    source = table.training_input(plan, first_step=4)
    datasets = {length: make(ONE_REPLICA) for length, make in source.input_fns.items()}
    assert set(datasets) == set(plan.lengths.tolist()) == set(LENGTHS)
    for length, dataset in datasets.items():
        shape = (6, length) if choices is None else (6, choices, length)
        assert dataset.element_spec["input_ids"].shape == shape
    iterators = {length: iter(untuned(dataset)) for length, dataset in datasets.items()}
    for step in range(4, 21):
        length = int(source.lengths[step])
        assert_batch(next(iterators[length]), examples, plan.rows[step], length)
    assert all(next(iterator, None) is None for iterator in iterators.values())


def test_evaluation_batches_tell_rows_and_weights():
    examples = rows()
    table = FeatureTable.from_rows(examples)
    plan = length_buckets.evaluation_batches(table.lengths, 6, LENGTHS)
    seen, step = [], 0
    for make in table.evaluation_inputs(plan):
        for batch in make(ONE_REPLICA):
            chosen, weights = batch.pop("example_rows").numpy(), batch.pop("example_weights")
            np.testing.assert_array_equal(chosen, plan.rows[step])
            np.testing.assert_array_equal(weights, plan.weights[step])
            assert_batch(batch, examples, chosen, int(plan.lengths[step]))
            seen += chosen[weights == 1].tolist()
            step += 1
    assert step == len(plan.lengths) and sorted(seen) == list(range(COUNT))


def test_hosts_and_replicas_share_each_batch_in_order():
    """Two hosts of two replicas: the parts of a step, put together, are its batch."""
    table = FeatureTable.from_rows(rows())
    plan = length_buckets.training_batches(table.lengths, 12, LENGTHS, 1, 8)
    source = table.training_input(plan, first_step=0)
    hosts = [tf.distribute.InputContext(2, host, 4) for host in range(2)]
    for length, make in source.input_fns.items():
        labels = [[batch["label_ids"].numpy() for batch in make(host)] for host in hosts]
        steps = np.flatnonzero(plan.lengths == length)
        assert [len(batches) for batches in labels] == [2 * len(steps)] * 2
        for i, step in enumerate(steps):
            parts = [batch for host in labels for batch in host[2 * i : 2 * i + 2]]
            assert {len(part) for part in parts} == {3}
            np.testing.assert_array_equal(np.concatenate(parts), plan.rows[step])
