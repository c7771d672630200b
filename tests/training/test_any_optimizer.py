"""A checkpoint holds what the optimizer has, whatever that is: here Keras' SGD with momentum.

State of no weight is in test_trainer_weights.py. Can't see: several replicas of a whole run (one
step of two: test_optimizers.py).
"""

import functools
import os
import signal

import keras
import numpy as np
import pytest

from albert_tf import conversion
from albert_tf.conversion import bundles
from albert_tf.records import input_files, input_pipeline
from albert_tf.records.spec import pretraining_spec
from albert_tf.storage import checkpoint
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training.interfaces import StepSettings
from albert_tf.training.optimizers import OPTIMIZERS, create_optimizer
from albert_tf.training.trainer import Trainer
from tests import jax_process, tiny
from tests import pretraining_runs as runs

STEPS, SAVE_STEPS, KILLED_AT = 5, 2, 3


# --- in the process -------------------------------------------------------------------------


def train(records: str, directory: str, killed_at: str = "0") -> None:
    # The one place that knows the optimizer.
    OPTIMIZERS["momentum"] = lambda schedule, global_clipnorm: keras.optimizers.SGD(
        schedule, momentum=0.9, global_clipnorm=global_clipnorm
    )
    os.makedirs(directory, exist_ok=True)
    trainer = Trainer(
        PretrainingTask(tiny.config(num_hidden_layers=1)),
        _devices(),
        directory,
        lambda: create_optimizer(0.1, STEPS, 1, "momentum"),
        StepSettings(seed=3),
    )
    assert trainer.initialise() == (checkpoint.latest(directory) is not None)
    source = functools.partial(
        input_pipeline.training_dataset,
        [records],
        input_files.index_records([records]),
        pretraining_spec(runs.LENGTH, runs.PREDICTIONS),
        6,
        7,
        trainer.step,
    )

    def kill(step: int) -> None:
        if step == int(killed_at):
            trainer.wait_until_saved()  # The checkpoint before.
            os.kill(os.getpid(), signal.SIGKILL)

    progress = runs.Progress(kill)
    trainer.train(source, progress, STEPS, steps_per_loop=1, save_steps=SAVE_STEPS, keep_max=1)


def train_on(records: str, killed: str, whole: str) -> None:
    train(records, killed)
    train(records, whole)


def _devices():
    if keras.backend.backend() == "jax":
        from albert_tf.training.jax_devices import JaxDevices

        return JaxDevices()
    import tensorflow as tf

    from albert_tf.training.tensorflow_devices import TensorFlowDevices

    return TensorFlowDevices(tf.distribute.OneDeviceStrategy("CPU:0"))


# --- and beside it --------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_killed_run_resumes_bit_by_bit(tmp_path, backend):
    pytest.importorskip(backend)
    records = runs.write_records(tmp_path / "records", runs.examples(24))
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    start = functools.partial(jax_process.start, KERAS_BACKEND=backend)
    jax_process.finish(start(train, records, killed, KILLED_AT), -signal.SIGKILL)
    before = checkpoint.read(str(killed))
    assert before["global_step"] == SAVE_STEPS
    jax_process.finish(start(train_on, records, killed, whole))

    expected, found = checkpoint.read(str(whole)), checkpoint.read(str(killed))
    assert found["global_step"] == STEPS
    model = PretrainingTask(tiny.config(num_hidden_layers=1)).build_model()
    weights = set(conversion.named_weights(model))
    assert set(found) == {*weights, *(f"{name}/momentum" for name in weights), "global_step"}
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    assert all(np.any(before[f"{name}/momentum"]) for name in weights if "kernel" in name)
    # Whoever loads the weights leaves the slots alone.
    assert set(bundles.read_weights(str(killed))) == weights
