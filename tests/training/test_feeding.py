"""Training on batches of several lengths, static or not: the losses of padding, resumes, replicas.

Can't see: a TPU, several GPUs, several workers.
"""

import concurrent.futures
import dataclasses
import pathlib
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from albert_tf.model import finetuning
from albert_tf.storage import checkpoint
from albert_tf.tasks import losses
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.training import length_buckets, trainer
from albert_tf.training.evaluation import RowOutputs, in_row_order
from albert_tf.training.interfaces import InputFn, StepSettings, Task
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.tensorflow_devices import TensorFlowDevices
from albert_tf.training.trainer import Trainer
from tests import pretraining_runs as runs
from tests import tiny, tolerances

LENGTHS = (13, 23)
BATCH_SIZE = 6
STEPS = 11


class ClassesTask(Task):
    """Three classes of a tiny model without dropout."""

    loss_names = ("class_loss",)
    key_metric = "accuracy"

    def build_model(self) -> keras.Model:
        config = tiny.config(num_hidden_layers=1)
        return finetuning.AlbertForSequenceClassification(config, 3, classifier_dropout_prob=0.0)

    def loss_weights(self, features) -> dict[str, Any]:
        return {"class_loss": ops.sum(self._weights(features))}

    def loss_sums(self, outputs, features) -> dict[str, Any]:
        each = losses.classification_loss(features["label_ids"], outputs)
        return {"class_loss": ops.sum(each * self._weights(features))}

    def metrics(self, outputs, features) -> dict[str, Any]:
        weights = self._weights(features)
        hits = ops.cast(ops.argmax(outputs, axis=-1) == features["label_ids"], "float32")
        sums = {**self.loss_sums(outputs, features), "accuracy": ops.sum(hits * weights)}
        return {name: (value, ops.sum(weights)) for name, value in sums.items()}

    def _weights(self, features):
        ones = tf.ones_like(features["label_ids"], tf.float32)
        return features.get("example_weights", ones)


def table() -> FeatureTable:
    """Returns 29 rows of 2 to 23 positions whose first piece tells the label."""
    rng = np.random.default_rng(7)
    rows = []
    for _ in range(29):
        length, label = int(rng.integers(2, 24)), int(rng.integers(3))
        ids = rng.integers(8, 53, length).astype(np.int32)
        ids[1] = 5 + label
        rows.append(
            {
                "input_ids": ids,
                "input_mask": np.ones(length, np.int32),
                "segment_ids": (np.arange(length) > length // 2).astype(np.int32),
                "label_ids": np.int32(label),
            }
        )
    return FeatureTable.from_rows(rows)


def one_device() -> TensorFlowDevices:
    return TensorFlowDevices(tf.distribute.OneDeviceStrategy("CPU:0"))


def make_trainer(directory: pathlib.Path, devices=None, task=None, parts: int = 1) -> Trainer:
    def make_optimizer():
        return create_optimizer(0.003, STEPS, 2)

    directory.mkdir(exist_ok=True)
    devices = devices or one_device()
    task = task or ClassesTask()
    settings = StepSettings(seed=3, accumulation_steps=parts)
    trainer = Trainer(task, devices, str(directory), make_optimizer, settings)
    trainer.initialise()
    return trainer


def train(
    trainer: Trainer,
    steps: int = STEPS,
    padded: bool = False,
    steps_per_loop: int = 1,
    static_shapes: bool = True,
):
    """Trains on the plan of LENGTHS; `padded`, the same rows all at the longest length."""
    rows = table()
    plan = length_buckets.training_batches(rows.lengths, BATCH_SIZE, LENGTHS, 3, STEPS)
    assert len(set(plan.lengths)) == 2
    if padded:
        plan = length_buckets.LengthBatches(
            plan.rows, np.full_like(plan.lengths, LENGTHS[-1]), plan.weights
        )
    progress = runs.Progress()
    trainer.train(
        rows.training_input(plan, trainer.step, static_shapes),
        progress,
        steps,
        steps_per_loop=steps_per_loop,
        save_steps=STEPS,
        keep_max=0,
    )
    return progress.stats


def evaluate(trainer: Trainer, lengths: tuple[int, ...]) -> tuple[dict[str, float], np.ndarray]:
    """Returns metrics, and the logits of all rows in their order."""
    inputs = evaluation_inputs(lengths)
    logits = np.full((len(table().lengths), 3), np.nan)
    for make in inputs:
        for batch in make(tf.distribute.InputContext(1, 0, 1)):
            logits[batch["example_rows"]] = trainer.model(batch)
    return trainer.evaluate(*inputs), logits


def evaluation_inputs(lengths: tuple[int, ...]) -> list[InputFn]:
    rows = table()
    batches = length_buckets.evaluation_batches(rows.lengths, BATCH_SIZE, lengths)
    return rows.evaluation_inputs(batches)


def predict(trainer: Trainer) -> np.ndarray:
    """Returns the logits of all rows, as RowOutputs puts them together."""
    outputs = RowOutputs(trainer.devices, trainer.model)
    return in_row_order(outputs(evaluation_inputs(LENGTHS)), len(table().lengths))


def assert_same_stats(actual, expected) -> None:
    assert list(actual) == list(expected)
    for step, stats in expected.items():
        for name, value in stats.items():
            assert abs(actual[step][name] - value) <= tolerances.TRAJECTORY_LOSS, (step, name)


def weights_of(directory: pathlib.Path) -> dict[str, np.ndarray]:
    return checkpoint.read(checkpoint.latest(str(directory)))


@dataclasses.dataclass
class Trained:
    """A trainer on one device, what it reported of its steps, and what it makes of all rows."""

    trainer: Trainer
    stats: dict[int, dict[str, float]]
    metrics: dict[str, float]
    logits: np.ndarray


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> Trained:
    trainer = make_trainer(tmp_path_factory.mktemp("feeding") / "one")
    return Trained(trainer, train(trainer), *evaluate(trainer, LENGTHS))


def test_lengths_change_no_loss_no_metric_and_no_prediction(one, tmp_path):
    assert_same_stats(one.stats, train(make_trainer(tmp_path), padded=True))
    metrics, logits = one.metrics, one.logits
    padded_metrics, padded_logits = evaluate(one.trainer, LENGTHS[-1:])
    assert metrics == pytest.approx(padded_metrics, abs=tolerances.METRIC)
    np.testing.assert_allclose(logits, padded_logits, rtol=0, atol=tolerances.OUTPUT)
    # The metrics are those of the logits: no filling row counts, and none is left out.
    labels = table().scalars["label_ids"]
    assert metrics["accuracy"] == pytest.approx(np.mean(logits.argmax(-1) == labels))


def test_a_resumed_run_ends_with_the_same_bits(one, tmp_path, monkeypatch):
    """Stopped within an epoch, and the loops of another length.

    What is reported of a loop is the mean of its steps, whatever lengths they have.
    """
    monkeypatch.setattr(trainer, "_LOOP_SECONDS", 1e9)  # Loops of a slow machine are shorter.
    loop = train(make_trainer(tmp_path), steps=6, steps_per_loop=5)
    resumed = make_trainer(tmp_path)
    assert resumed.step == 6
    train(resumed)
    # The first step of each of the two lengths is alone: it is compiled.
    assert list(loop) == [1, 2, 3, 6]
    mean = np.mean([one.stats[step]["loss"] for step in range(4, 7)])
    assert loop[6]["loss"] == pytest.approx(mean, rel=1e-6)
    expected = weights_of(pathlib.Path(one.trainer.output_dir))
    for name, value in weights_of(tmp_path).items():
        assert value.tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("accumulation_steps", [1, 3])
def test_short_batches_of_any_length_are_compiled_once(one, tmp_path, accumulation_steps):
    """The losses are those of static shapes, and a resumed run ends with the same bits."""
    traced = []

    class Counted(ClassesTask):
        def loss_weights(self, features):
            traced.append(features["input_ids"].shape)
            return super().loss_weights(features)

    def of_any_length(name: str, steps: int = STEPS):
        trainer = make_trainer(tmp_path / name, task=Counted(), parts=accumulation_steps)
        assert not trainer.devices.static_shapes
        return train(trainer, steps, static_shapes=trainer.devices.static_shapes)

    assert_same_stats(of_any_length("whole"), one.stats)
    assert [tuple(shape) for shape in traced] == [(BATCH_SIZE, None)]
    of_any_length("resumed", steps=6)
    of_any_length("resumed")
    expected = weights_of(tmp_path / "whole")
    for name, value in weights_of(tmp_path / "resumed").items():
        assert value.tobytes() == expected[name].tobytes(), name


def _train_on_two_replicas(directory: pathlib.Path) -> Any:
    runs.split_cpu(2)
    devices = TensorFlowDevices(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    trainer = make_trainer(directory, devices)
    stats = train(trainer, static_shapes=devices.static_shapes)
    return stats, trainer.evaluate(*evaluation_inputs(LENGTHS[-1:])), predict(trainer)


def test_two_replicas_change_nothing(one, tmp_path):
    with concurrent.futures.ProcessPoolExecutor(1, runs.FORK_SERVER) as executor:
        two = executor.submit(_train_on_two_replicas, tmp_path)
        stats, metrics, logits = two.result(runs.TIMEOUT_SECONDS)
    assert_same_stats(stats, one.stats)
    assert metrics == pytest.approx(one.metrics, abs=tolerances.TRAJECTORY_LOSS)
    np.testing.assert_allclose(predict(one.trainer), one.logits, rtol=0, atol=tolerances.OUTPUT)
    np.testing.assert_allclose(logits, one.logits, rtol=0, atol=tolerances.TRAJECTORY_LOSS)


def test_iterators_end_at_once():
    """tf.data's autotuning thread may sleep through its end: here until 10.2 s after its start.

    A thread does so by chance, one in six of these; they are many, so that one would.
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
    """Eight bytes for each would be more than there are."""
    iterators = trainer.StepIterators(
        one_device(), lambda context: tf.data.Dataset.range(5), 3, 10**15
    )
    ((iterator, count),) = iterators.runs(10**14, 7)
    assert (count, next(iterator).numpy()) == (7, 0)
