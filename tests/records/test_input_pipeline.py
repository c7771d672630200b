"""The order of examples. What it mixes: tests/generator/test_order_of_text.py.

Can't see: files in a bucket.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records import input_files, input_pipeline
from albert_tf.records.spec import pretraining_spec
from tests import pretraining_runs as runs

SPEC = pretraining_spec(runs.LENGTH, runs.PREDICTIONS)
# By file; together 29. Example i has i as its second piece, so that it can be told apart.
COUNTS = (13, 5, 11)


def numbered(count: int, first: int = 0) -> list[dict]:
    rows = runs.examples(count)
    for i, row in enumerate(rows):
        row["input_ids"][1] = first + i
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("records")
    firsts = np.cumsum((0, *COUNTS))
    return [
        str(runs.write_records(folder / f"{i}.tfrecord", numbered(count, int(firsts[i]))))
        for i, count in enumerate(COUNTS)
    ]


def batches(files, steps, *, hosts=1, replicas=1, seed=7, first=0, size=6) -> list[list[int]]:
    """Returns the example numbers of each step, put together from all hosts and replicas."""
    found: list[list[int]] = [[] for _ in range(steps)]
    for host in range(hosts):
        context = tf.distribute.InputContext(hosts, host, replicas)
        dataset = input_pipeline.training_dataset(
            files, input_files.index_records(files), SPEC, size, seed, first, context
        )
        per_host = replicas // hosts
        for i, batch in enumerate(dataset.take(steps * per_host)):
            assert batch["input_ids"].shape == (size // replicas, runs.LENGTH)
            assert batch["sentence_order_labels"].shape == (size // replicas,)
            found[i // per_host] += batch["input_ids"][:, 1].numpy().tolist()
    return found


@pytest.fixture(scope="module")
def order(files) -> list[list[int]]:
    return batches(files, 31)


def test_an_epoch_has_every_example_once(order):
    flat = [number for step in order for number in step]
    for epoch in range(6):
        assert sorted(flat[29 * epoch : 29 * (epoch + 1)]) == list(range(29))


def test_epochs_and_seeds_differ(files, order):
    flat = [number for step in order for number in step]
    assert flat[:29] != sorted(flat[:29])
    assert flat[:29] != flat[29:58]
    assert batches(files, 5, seed=8) != order[:5]
    assert batches(files, 5, seed=0) != order[:5]


def test_each_epoch_shuffles_a_single_stretch_anew(files):
    first, second = batches(files[:1], 2, size=COUNTS[0])
    assert sorted(first) == sorted(second) and first != second


@pytest.mark.parametrize("first", [1, 4, 5, 17, 29])
def test_a_later_start_finds_the_same_order(files, order, first):
    """At steps within an epoch, across its end, and several epochs later."""
    assert batches(files, 2, first=first) == order[first : first + 2]


@pytest.mark.parametrize(("hosts", "replicas"), [(1, 2), (1, 3), (2, 2), (3, 3), (2, 6)])
def test_hosts_and_replicas_share_one_order(files, order, hosts, replicas):
    assert batches(files, 11, hosts=hosts, replicas=replicas) == order[:11]


@pytest.mark.parametrize("seed", [2**31 - 1, 2 * (2**31 - 1), 2**32 - 1])
def test_seeds_that_tensorflow_takes_for_0(files, order, seed):
    flat = [number for step in batches(files, 5, seed=seed) for number in step]
    assert sorted(flat[:29]) == list(range(29)) and flat[:29] != sum(order, [])[:29]


def test_the_order_does_not_depend_on_tensorflows_global_seed(files, order):
    tf.random.set_seed(1234)
    assert batches(files, 5) == order[:5]


@pytest.mark.parametrize(("hosts", "replicas"), [(1, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize(("max_steps", "expected"), [(100, 29), (3, 18)])
def test_evaluation_sees_each_example_once_and_in_order(
    files, hosts, replicas, max_steps, expected
):
    steps: dict[int, list[int]] = {}
    for host in range(hosts):
        context = tf.distribute.InputContext(hosts, host, replicas)
        dataset = input_pipeline.evaluation_dataset(files, COUNTS, SPEC, 6, max_steps, context)
        for i, batch in enumerate(dataset):
            assert batch["input_ids"].shape == (6 // replicas, runs.LENGTH)
            real = batch["example_weights"].numpy() == 1.0
            assert np.all(batch["example_weights"][~real] == 0.0)
            numbers = batch["input_ids"][:, 1].numpy()[real].tolist()
            steps.setdefault(i // (replicas // hosts), []).extend(numbers)
    seen = [number for step in sorted(steps) for number in steps[step]]
    assert seen == list(range(expected))


@pytest.mark.parametrize("count", [1, 2, 3, 17, 10_000])
def test_stretches_are_dealt_once_and_evenly(count):
    orders = [input_pipeline._deal(count, 7, tf.constant(epoch)).numpy() for epoch in (0, 1)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(count))
        # A hundred hands of a hundred: in a tenth each has ten, give or take one.
        for part in np.array_split(order, 10) if count > 1000 else ():
            shares = np.bincount(part // 100, minlength=100)[:100]
            assert shares.min() >= 8 and shares.max() <= 12
    if count > 3:
        assert (orders[0] != orders[1]).any()


def test_files_in_a_bucket_are_read_in_long_stretches(monkeypatch):
    monkeypatch.setattr(input_pipeline, "_BUCKET_BYTES", 10_000)
    # 5 stretches of 4,000 bytes, two of which are read together; the last has one record.
    index = input_files.FileIndex(129, np.arange(6) * 4000)
    local, remote = (
        input_pipeline._stretches([path], [index]) for path in ("a.tfrecord", "gs://b/a.tfrecord")
    )
    assert local.tolist() == [[0, 4000 * i, 4000, 32 if i < 4 else 1] for i in range(5)]
    assert remote.tolist() == [[0, 0, 8000, 64], [0, 8000, 8000, 64], [0, 16000, 4000, 1]]
