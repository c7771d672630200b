"""Training on batches of several lengths, static or not: the losses of padding, resumes, replicas.

Eager, except where programs are counted. Not tested here: a TPU, several GPUs or workers.
"""

import concurrent.futures
import dataclasses
import functools
import pathlib
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.storage import checkpoint
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.supervised import ModelOptions
from albert_tf.training import length_buckets, trainer
from albert_tf.training.evaluation import RowOutputs, in_row_order
from albert_tf.training.interfaces import InputFn, StepSettings
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.tensorflow_devices import TensorFlowDevices
from albert_tf.training.trainer import Trainer
from tests.kit import pretraining_runs as runs
from tests.kit import tiny, tolerances
from tests.training.toys import eagerly, one_device

LENGTHS = (13, 23)
BATCH_SIZE = 6
STEPS = 11


def make_task():
    options = ModelOptions(tiny.config(num_hidden_layers=1), classifier_dropout_prob=0.0)
    return tiny.task("classification", classes=("a", "b", "c"), options=options)


@functools.cache
def table() -> FeatureTable:
    """Returns 29 rows of 2 to 23 positions whose first piece tells the label."""
    rng = np.random.default_rng(7)
    rows = []
    for _ in range(29):
        length, label = int(rng.integers(2, 24)), int(rng.integers(3))
        ids = rng.integers(8, 53, length).astype(np.int32)
        ids[1] = 5 + label
        segments = (np.arange(length) > length // 2).astype(np.int32)
        row = {"input_ids": ids, "input_mask": np.ones(length, np.int32)}
        rows.append({**row, "segment_ids": segments, "label_ids": np.int32(label)})
    return FeatureTable.from_rows(rows)


def make_trainer(directory: pathlib.Path, devices=None, task=None, parts: int = 1) -> Trainer:
    directory.mkdir(exist_ok=True)
    make_optimizer = functools.partial(create_optimizer, 0.003, STEPS, 2)
    settings = StepSettings(seed=3, accumulation_steps=parts)
    parts = task or make_task(), devices or one_device(), str(directory), make_optimizer, settings
    trainer = Trainer(*parts)
    trainer.initialise()
    return trainer


def train(
    trainer: Trainer, steps=STEPS, padded=False, steps_per_loop=1, static_shapes=True
) -> dict[int, Any]:
    """Trains on the plan for LENGTHS; if `padded`, on the same rows, all at the longest length."""
    plan = length_buckets.training_batches(table().lengths, BATCH_SIZE, LENGTHS, 3, STEPS)
    assert len(set(plan.lengths)) == 2
    if padded:
        plan = dataclasses.replace(plan, lengths=np.full_like(plan.lengths, LENGTHS[-1]))
    progress, source = runs.Progress(), table().training_input(plan, trainer.step, static_shapes)
    loop = {"steps_per_loop": steps_per_loop, "save_steps": STEPS, "keep_max": 0}
    trainer.train(source, progress, steps, **loop)
    return progress.stats


def evaluation_inputs(lengths: tuple[int, ...]) -> list[InputFn]:
    batches = length_buckets.evaluation_batches(table().lengths, BATCH_SIZE, lengths)
    return table().evaluation_inputs(batches)


def predict(trainer: Trainer, lengths: tuple[int, ...] = LENGTHS) -> np.ndarray:
    outputs = RowOutputs(trainer.devices, trainer.model)
    return in_row_order(outputs(evaluation_inputs(lengths)), len(table().lengths))


def assert_same_stats(actual, expected) -> None:
    assert list(actual) == list(expected)
    for step, stats in expected.items():
        for name, value in stats.items():
            assert abs(actual[step][name] - value) <= tolerances.TRAJECTORY_LOSS, (step, name)


@dataclasses.dataclass
class Trained:
    """A trainer on one device, what it reported of its steps, and the metrics of all rows."""

    trainer: Trainer
    stats: dict[int, dict[str, float]]
    metrics: dict[str, float]


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> Trained:
    with eagerly():
        trainer = make_trainer(tmp_path_factory.mktemp("feeding") / "one")
        return Trained(trainer, train(trainer), trainer.evaluate(*evaluation_inputs(LENGTHS)))


def test_lengths_change_no_loss_no_metric_and_no_prediction(one, tmp_path):
    with eagerly():
        assert_same_stats(one.stats, train(make_trainer(tmp_path), padded=True))
        padded_metrics = one.trainer.evaluate(*evaluation_inputs(LENGTHS[-1:]))
    assert one.metrics == pytest.approx(padded_metrics, abs=tolerances.METRIC)
    # The logits of each row alone: no filling row counts, and none is left out.
    expected, losses = [], []
    for row, label in enumerate(table().scalars["label_ids"]):
        first = int(table().lengths[:row].sum())
        part = slice(first, first + int(table().lengths[row]))
        features = {name: value[None, part] for name, value in table().sequences.items()}
        expected.append(np.array(one.trainer.model(features))[0])
        losses.append(np.log(np.sum(np.exp(expected[-1]))) - expected[-1][label])
    np.testing.assert_allclose(predict(one.trainer), expected, rtol=0, atol=tolerances.OUTPUT)
    assert one.metrics["loss"] == pytest.approx(np.mean(losses), abs=tolerances.LOSS)


def test_a_resumed_run_ends_with_the_same_bits(one, tmp_path, monkeypatch):
    """Stopped within an epoch; resumed with other loops, and without static shapes.

    The loss reported for a loop is the mean over its steps, whatever lengths they have.
    """
    monkeypatch.setattr(trainer, "_LOOP_SECONDS", 1e9)  # Slow machines would shorten loops.
    with eagerly():
        loop = train(make_trainer(tmp_path), steps=6, steps_per_loop=5)
        resumed = make_trainer(tmp_path)
        assert resumed.step == 6
        train(resumed, static_shapes=False)
    # The first step of each of the two lengths has a loop of its own: it is compiled.
    assert list(loop) == [1, 2, 3, 6]
    mean = np.mean([one.stats[step]["loss"] for step in range(4, 7)])
    assert loop[6]["loss"] == pytest.approx(mean, rel=1e-6)
    expected, found = map(checkpoint.read, (one.trainer.output_dir, str(tmp_path)))
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value.tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("parts", [1, 3])
def test_short_batches_of_any_length_are_compiled_once(one, tmp_path, parts):
    """The losses are those of static shapes."""
    traced, task = [], make_task()
    trainer = make_trainer(tmp_path, task=task, parts=parts)
    loss_weights = task.loss_weights
    note = traced.append
    task.loss_weights = lambda x: note(tuple(x["input_ids"].shape)) or loss_weights(x)
    assert not trainer.devices.static_shapes
    assert_same_stats(train(trainer, static_shapes=False), one.stats)
    assert traced == [(BATCH_SIZE, None)]


def _train_on_two_replicas(directory: pathlib.Path):
    runs.split_cpu(2)
    devices = TensorFlowDevices(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    trainer = make_trainer(directory, devices)
    stats = train(trainer, static_shapes=devices.static_shapes)
    return stats, trainer.evaluate(*evaluation_inputs(LENGTHS[-1:])), predict(trainer)


@pytest.mark.slow
def test_two_replicas_change_nothing(one, tmp_path):
    with concurrent.futures.ProcessPoolExecutor(1, runs.FORK_SERVER) as executor:
        two = executor.submit(_train_on_two_replicas, tmp_path)
        stats, metrics, logits = two.result(runs.TIMEOUT_SECONDS)
    assert_same_stats(stats, one.stats)
    assert metrics == pytest.approx(one.metrics, abs=tolerances.TRAJECTORY_LOSS)
    expected = predict(one.trainer)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerances.TRAJECTORY_LOSS)


def test_iterators_end_at_once():
    """tf.data's autotuning thread may sleep past its end: here until 10.2 s after its start.

    About one in six threads here would, by chance; with this many, at least one is likely to.
    """

    def input_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = tf.data.Dataset.range(1_000_000)
        for _ in range(10):
            dataset = dataset.map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
        return dataset

    iterators = [one_device().iterator(input_fn) for _ in range(24)]
    assert [int(next(it)) for it in iterators] == [10] * 24
    time.sleep(6)
    start = time.monotonic()
    iterators.clear()
    assert time.monotonic() - start < 3


def test_steps_of_one_length_take_no_memory_however_many():
    """Eight bytes per step would be more memory than there is."""
    five = tf.data.Dataset.range(5)
    iterators = trainer.StepIterators(one_device(), lambda context: five, 3, 10**15)
    ((iterator, count),) = iterators.runs(10**14, 7)
    assert (count, next(iterator).numpy()) == (7, 0)
