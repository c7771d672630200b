"""A checkpoint holds what the optimizer has, whatever that is: here Keras' SGD with momentum.

Its rate is stable and then decays, as does that of a branch off its checkpoint, and of a timed run.

State of no weight is in test_trainer_weights.py, kills in tests/cli. Can't see: several replicas of
a whole run (one step of two: test_optimizers.py).
"""

import functools
import pathlib

import keras
import numpy as np
import pytest

from albert_tf import conversion
from albert_tf.conversion import bundles
from albert_tf.records import input_files, input_pipeline
from albert_tf.records.spec import pretraining_spec
from albert_tf.storage import checkpoint
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training.deadline import Deadline
from albert_tf.training.interfaces import StepSettings
from albert_tf.training.optimizers import OPTIMIZERS, create_optimizer
from albert_tf.training.schedules import WarmupPolynomialDecay
from albert_tf.training.trainer import Trainer
from tests import jax_process, tiny
from tests import pretraining_runs as runs

STEPS, STOPPED_AT = 5, 2


# --- in the process -------------------------------------------------------------------------


def train(
    records: str,
    directory: str,
    steps: int,
    schedule: str = "wsd",
    start: str | None = None,
    deadline: Deadline | None = None,
) -> None:
    pathlib.Path(directory).mkdir(exist_ok=True)
    trainer = Trainer(
        PretrainingTask(tiny.config(num_hidden_layers=1)),
        _devices(),
        directory,
        lambda: create_optimizer(
            *(0.1, STEPS, 1, "momentum"), schedule=schedule, decay_steps=STEPS - STOPPED_AT
        ),
        StepSettings(seed=3),
    )
    assert trainer.initialise() == (checkpoint.latest(directory) is not None)
    if start:
        trainer.restore(start)
    source = functools.partial(
        input_pipeline.training_dataset,
        [records],
        input_files.index_records([records]),
        pretraining_spec(runs.LENGTH, runs.PREDICTIONS),
        6,
        7,
        trainer.step,
    )
    loop = {"steps_per_loop": 1, "save_steps": STEPS, "keep_max": 0, "deadline": deadline}
    with runs.clock_by_steps(1.0):
        trainer.train(source, runs.Progress(), steps, **loop)


def train_all(records: str, stopped: str, whole: str, branch: str, timed: str) -> None:
    # The one place that knows the optimizer.
    OPTIMIZERS["momentum"] = lambda schedule, global_clipnorm: keras.optimizers.SGD(
        schedule, momentum=0.9, global_clipnorm=global_clipnorm
    )
    train(records, stopped, STOPPED_AT, "constant")
    train(records, branch, STEPS, start=f"{stopped}/model.ckpt-{STOPPED_AT}")
    train(records, stopped, STEPS)
    train(records, whole, STEPS)

    def settle(first: int, last: int) -> WarmupPolynomialDecay:
        return WarmupPolynomialDecay(0.1, last, 1, first_decay_step=first)

    # A second a step, and one more to compile the decay.
    deadline = Deadline(STEPS + 1.0, STEPS - STOPPED_AT, settle)
    train(records, timed, 10**6, "constant", deadline=deadline)


def _devices():
    if keras.backend.backend() == "jax":
        from albert_tf.training.jax_devices import JaxDevices

        return JaxDevices()
    import tensorflow as tf

    from albert_tf.training.tensorflow_devices import TensorFlowDevices

    return TensorFlowDevices(tf.distribute.OneDeviceStrategy("CPU:0"))


# --- and beside it --------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_stopped_run_a_branch_and_a_timed_run_are_one_bit_by_bit(tmp_path, backend, monkeypatch):
    pytest.importorskip(backend)
    records = runs.write_records(tmp_path / "records", runs.examples(24))
    names = ("stopped", "whole", "branch", "timed")
    stopped, whole, branch, timed = folders = [tmp_path / name for name in names]
    if backend == "jax":
        jax_process.finish(jax_process.start(train_all, records, *folders))
    else:
        monkeypatch.setitem(OPTIMIZERS, "momentum", None)  # It is removed at the end.
        train_all(*map(str, (records, *folders)))
    before = checkpoint.read(str(stopped / f"model.ckpt-{STOPPED_AT}"))
    expected, found = checkpoint.read(str(whole)), checkpoint.read(str(stopped))
    assert (before["global_step"], found["global_step"]) == (STOPPED_AT, STEPS)
    model = PretrainingTask(tiny.config(num_hidden_layers=1)).build_model()
    weights = set(conversion.named_weights(model))
    assert set(found) == {*weights, *(f"{name}/momentum" for name in weights), "global_step"}
    for other in (found, *(checkpoint.read(str(folder)) for folder in (branch, timed))):
        assert other.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(other[name], value)
    assert all(np.any(before[f"{name}/momentum"]) for name in weights if "kernel" in name)
    # Whoever loads the weights leaves the slots alone.
    assert set(bundles.read_weights(str(stopped))) == weights
