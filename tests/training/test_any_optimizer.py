"""A checkpoint holds the state of any optimizer: here of Keras' SGD with momentum, and of Muon.

The learning rate is constant, then decays; also in a branch off a checkpoint, and in a timed run.
Each step draws another depth, too.

State that belongs to no weight is in test_trainer_weights.py, kills are in tests/cli. Not tested
here: a whole run on several replicas (a step on two: test_optimizers.py).
"""

import functools
import pathlib
from unittest import mock

import keras
import numpy as np
import pytest

from albert_tf import conversion
from albert_tf.conversion import bundles
from albert_tf.records import input_files, input_pipeline
from albert_tf.records.spec import pretraining_spec
from albert_tf.storage import checkpoint
from albert_tf.tasks.elastic import ElasticTask
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training.deadline import Deadline
from albert_tf.training.interfaces import StepSettings
from albert_tf.training.optimizers import OPTIMIZERS, create_optimizer
from albert_tf.training.schedules import WarmupPolynomialDecay
from albert_tf.training.trainer import Trainer
from tests.kit import jax_process, tiny
from tests.kit import pretraining_runs as runs
from tests.training.toys import eagerly, one_device

STEPS, STOPPED_AT = 5, 2
CONFIG = tiny.config(num_hidden_layers=3)


def momentum(schedule, global_clipnorm):
    return keras.optimizers.SGD(schedule, momentum=0.9, global_clipnorm=global_clipnorm)


def train(
    devices, records, name, directory, steps, schedule="wsd", start=None, deadline=None
) -> None:
    pathlib.Path(directory).mkdir(exist_ok=True)
    rate = (0.1, STEPS, 1)
    decay = {"schedule": schedule, "decay_steps": STEPS - STOPPED_AT}
    make_optimizer = functools.partial(create_optimizer, *rate, name, **decay)
    task, settings = ElasticTask(PretrainingTask(CONFIG), (1, 2)), StepSettings(seed=3)
    with mock.patch.dict(OPTIMIZERS, momentum=momentum):  # The only place to register it.
        trainer = Trainer(task, devices, directory, make_optimizer, settings)
    assert trainer.initialise() == (checkpoint.latest(directory) is not None)
    if start:
        trainer.restore(start)
    spec = pretraining_spec(runs.LENGTH, runs.PREDICTIONS)
    data = [records], input_files.index_records([records]), spec, 6, 7, trainer.step
    source = functools.partial(input_pipeline.training_dataset, *data)
    loop = {"steps_per_loop": 1, "save_steps": STEPS, "keep_max": 0, "deadline": deadline}
    with runs.clock_by_steps(1.0):
        trainer.train(source, runs.Progress(), steps, **loop)


def train_all(
    records: str, optimizer: str, stopped: str, whole: str, branch: str, timed: str
) -> None:
    if keras.backend.backend() == "jax":
        from albert_tf.training.jax_devices import JaxDevices

        run = functools.partial(train, JaxDevices(), records, optimizer)
    else:
        run = functools.partial(train, one_device(), records, optimizer)
    run(stopped, STOPPED_AT, "constant")
    run(branch, STEPS, start=f"{stopped}/model.ckpt-{STOPPED_AT}")
    run(stopped, STEPS)
    run(whole, STEPS)

    def settle(first: int, last: int) -> WarmupPolynomialDecay:
        return WarmupPolynomialDecay(0.1, last, 1, first_decay_step=first)

    # Each step takes a second, and compiling the decay takes one more.
    deadline = Deadline(STEPS + 1.0, STEPS - STOPPED_AT, settle)
    run(timed, 10**6, "constant", deadline=deadline)


@pytest.mark.parametrize("backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("optimizer", ["momentum", "muon"])
def test_a_stopped_run_a_branch_and_a_timed_run_are_one_bit_by_bit(tmp_path, optimizer, backend):
    """TensorFlow runs eagerly here; tests/cli resumes a traced step."""
    records = str(runs.write_records(tmp_path / "records", runs.examples(24)))
    folders = [str(tmp_path / name) for name in ("stopped", "whole", "branch", "timed")]
    if backend == "jax":
        pytest.importorskip("jax")
        jax_process.finish(jax_process.start(train_all, records, optimizer, *folders))
    else:
        with eagerly():
            train_all(records, optimizer, *folders)
    before = checkpoint.read(f"{folders[0]}/model.ckpt-{STOPPED_AT}")
    found, expected, *others = map(checkpoint.read, folders)
    assert (before["global_step"], found["global_step"]) == (STOPPED_AT, STEPS)
    weights = set(conversion.named_weights(PretrainingTask(CONFIG).build_model()))
    slots = set(found) - weights - {"global_step"}
    kernels = {n for n in weights if "encoder" in n and n.endswith("kernel")}
    if optimizer == "momentum":
        assert slots == {f"{name}/momentum" for name in weights}
    else:
        adams = {f"{name}/adam_{moment}" for name in weights - kernels for moment in "mv"}
        assert slots == {*(f"{name}/muon_m" for name in kernels), *adams}
    for other in (found, *others):
        assert other.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(other[name], value)
    assert all(np.any(before[name]) for name in slots if "kernel" in name)
    # Loading weights ignores the optimizer's slots.
    assert set(bundles.read_weights(folders[0])) == weights
