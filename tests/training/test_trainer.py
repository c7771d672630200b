"""Trainer: the loop, and checkpoints that are written while it goes on.

Not tested here: killed processes, and several replicas or workers (see
test_run_pretraining_processes.py); the cost of a slow disk on a TPU.
"""

import functools
import os
import pathlib
import signal
import sys
import threading
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.storage import checkpoint
from albert_tf.training import stop_signals
from albert_tf.training.interfaces import Task
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.trainer import NonFiniteLossError, Trainer
from tests.kit import tiny
from tests.kit.pretraining_runs import Progress
from tests.training.toys import one_device


class Constant(keras.Model):
    def __init__(self) -> None:
        super().__init__(name="constant")
        self.a = self.add_weight(shape=(), initializer="ones", name="a")
        self.built = True

    def call(self, features, training, dropout_seed=None):
        return self.a * features["x"]


class ConstantTask(Task):
    """The loss is the mean of y; its gradient is the mean of x, NaN where x is."""

    loss_names = ("y_loss",)
    key_metric = "y"

    def build_model(self) -> keras.Model:
        return Constant()

    def loss_weights(self, features) -> dict[str, Any]:
        return {"y_loss": tf.cast(tf.size(features["x"]), tf.float32)}

    def loss_sums(self, outputs, features) -> dict[str, Any]:
        return {"y_loss": tf.reduce_sum(outputs)}


def numbers(*bad: int):
    """Returns an input_fn of batches whose value is their step, NaN at the bad steps."""
    values = [float("nan") if step in bad else float(step) for step in range(1, 40)]

    def input_fn(context):
        return tf.data.Dataset.from_tensor_slices({"x": values}).batch(1, drop_remainder=True)

    return input_fn


def constant_trainer(directory: pathlib.Path, learning_rate: float = 1e-20) -> Trainer:
    directory.mkdir(exist_ok=True)
    make_optimizer = functools.partial(create_optimizer, learning_rate, 10**6, 0)
    return Trainer(ConstantTask(), one_device(), str(directory), make_optimizer)


def saved_steps(directory: pathlib.Path) -> list[int]:
    return [int(path.rpartition("-")[2]) for path in checkpoint.listed(str(directory))]


def train(trainer: Trainer, input_fn, progress, steps: int = 17, **changes: int) -> bool:
    settings = {"steps_per_loop": 3, "save_steps": 5, "keep_max": 0, **changes}
    return trainer.train(input_fn, progress, steps, **settings)


@pytest.fixture
def slow_disk(monkeypatch) -> None:
    """Writing a checkpoint takes as long as many steps."""
    real = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *args: (time.sleep(0.2), real(*args))[1])


def test_saves_at_multiples_and_at_the_end(tmp_path):
    """Loops are shortened to end at a save; each line's loss is the mean of its steps."""
    trainer, progress = constant_trainer(tmp_path), Progress()
    assert train(trainer, numbers(), progress)
    assert saved_steps(tmp_path) == [5, 10, 15, 17]
    assert progress.steps[-1] == trainer.step == 17
    assert set(progress.steps) >= {5, 10, 15, 17}
    sizes = np.diff([0, *progress.steps])
    assert max(sizes) == 3 and sizes[0] == 1
    for size, (last, stats) in zip(sizes, progress.stats.items(), strict=True):
        assert list(stats) == ["loss", "y_loss", "learning_rate", "grad_norm"]
        assert stats["loss"] == pytest.approx(last - (size - 1) / 2)


def test_slow_steps_are_looked_at_often(tmp_path, monkeypatch):
    """Whatever steps_per_loop allows, a loop should take ten seconds at the slowest recent pace.

    After a loop in which steps took 5 s, no signal waits for more than two such steps.
    """
    trainer, progress = constant_trainer(tmp_path), Progress()
    # The time of the compiled step is ignored. Then steps take 2 s, but 5 s in one loop.
    seconds = [60, 2, 10, 25, *[4] * 10, 10]
    clock = iter(np.cumsum([0, *seconds]).repeat(2))
    monkeypatch.setattr("albert_tf.training.trainer.time.monotonic", lambda: next(clock))
    train(trainer, numbers(), progress, steps=37, steps_per_loop=1000, save_steps=1000)
    assert np.diff([0, *progress.steps]).tolist() == [1, 1, 5, 5, *[2] * 10, 5]


def send(number: signal.Signals, at_step: int):
    def send_at(step: int) -> None:
        if step == at_step:
            os.kill(os.getpid(), number)
            time.sleep(0.5)  # A thread receives it.

    return send_at


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends(tmp_path, caplog, number, slow_disk):
    """Also while a checkpoint is written. The loop under way is finished first."""
    caplog.set_level("INFO", logger="absl")
    before = signal.getsignal(number)
    trainer, progress = constant_trainer(tmp_path), Progress(send(number, at_step=6))
    assert not train(trainer, numbers(), progress, steps_per_loop=1)
    assert progress.steps[-1] == 7 and saved_steps(tmp_path) == [5, 7]
    assert f"{number.name}: saving and stopping; a second signal stops" in caplog.text
    saved, stopped = caplog.messages[-2:]
    assert saved == f"saved {tmp_path}/model.ckpt-7"
    assert stopped == "stopped at step 7: the same command resumes from there"
    assert signal.getsignal(number) == before


def test_a_signal_in_the_last_loop_leaves_the_rest_to_the_next_start(tmp_path, slow_disk):
    """The next start evaluates, predicts and exports."""
    trainer, progress = constant_trainer(tmp_path), Progress(send(signal.SIGTERM, at_step=16))
    found = []
    more = {"steps_per_loop": 1, "after_save": lambda: found.append(saved_steps(tmp_path))}
    assert not train(trainer, numbers(), progress, **more)
    assert progress.steps[-1] == 17 and saved_steps(tmp_path) == [5, 10, 15, 17]
    # Work that follows a save finds its checkpoint; none follows a save on a signal.
    assert found == [[5], [5, 10], [5, 10, 15]]
    # The next start has nothing to train.
    progress = Progress()
    assert train(trainer, numbers(), progress) and progress.steps == []


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, slow_disk):
    """Found in the middle of a loop, after a save, for which the run waits."""
    trainer, progress = constant_trainer(tmp_path), Progress()
    with pytest.raises(NonFiniteLossError) as error:
        train(trainer, numbers(7, 9), progress)
    message = str(error.value)
    assert "step 7 is not finite ({'loss': nan, 'y_loss': nan, 'lea" in message
    assert "after step 5; lower `learning_rate`," in message
    assert saved_steps(tmp_path) == [5]
    assert {path.name for path in tmp_path.glob("*ckpt*")} == tiny.checkpoint_files(5)
    values = checkpoint.read(str(tmp_path / "model.ckpt-5"))
    assert all(np.all(np.isfinite(value)) for value in values.values())
    assert max(progress.steps) < 7


def test_a_signal_in_the_loop_after_an_evaluation_saves(tmp_path, monkeypatch):
    trainer, exits = constant_trainer(tmp_path), []
    monkeypatch.setattr(stop_signals, "_exit", exits.append)
    train_runs, stop = trainer._train_runs, send(signal.SIGTERM, at_step=5)
    trainer._train_runs = lambda runs: (stop(trainer.step), train_runs(runs))[1]
    train(trainer, numbers(), Progress(), after_save=lambda: False)
    assert not exits
    assert saved_steps(tmp_path) == [5, trainer.step] and trainer.step > 5


def test_what_is_done_after_a_save_may_end_the_run(tmp_path, caplog):
    trainer = constant_trainer(tmp_path)
    with caplog.at_level("INFO", logger="absl"):
        assert train(trainer, numbers(), Progress(), after_save=lambda: trainer.step == 10)
    assert saved_steps(tmp_path) == [5, 10] and trainer.step == 10
    assert "the same command" not in caplog.text


def test_a_checkpoint_holds_weights_moments_and_step(tmp_path):
    train(constant_trainer(tmp_path), numbers(), Progress(), steps=2)
    values = checkpoint.read(str(tmp_path))
    assert set(values) == {"constant/a", "constant/a/adam_m", "constant/a/adam_v", "global_step"}
    # Gradients 1 and 2 are clipped to 1.
    assert values["constant/a/adam_m"] == pytest.approx(0.1 + 0.9 * 0.1, rel=1e-6)
    assert values["constant/a/adam_v"] == pytest.approx(0.001 + 0.999 * 0.001, rel=1e-6)
    assert values["global_step"].dtype == np.int64 and values["global_step"] == 2


def test_steps_go_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """The checkpoint holds the state at its own step."""
    train(constant_trainer(tmp_path / "short", 0.1), numbers(), Progress(), steps=5)
    real, stepped = checkpoint.save, threading.Event()

    def save(*arguments):
        assert stepped.wait(60)
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "save", save)
    trainer = constant_trainer(tmp_path / "long", 0.1)
    progress = Progress(lambda step: stepped.set() if step == 9 else None)
    train(trainer, numbers(), progress, steps_per_loop=1)
    found = checkpoint.read(str(tmp_path / "long/model.ckpt-5"))
    expected = checkpoint.read(str(tmp_path / "short/model.ckpt-5"))
    assert found == expected
    assert found["constant/a"] != checkpoint.read(str(tmp_path / "long"))["constant/a"]


def test_a_checkpoint_waits_for_the_one_before(tmp_path, monkeypatch, slow_disk):
    """Copying the state waits, too: there is one copy at a time."""
    trainer, seen = constant_trainer(tmp_path), []
    read, save = trainer.devices.host_values, checkpoint.save
    note = seen.append
    monkeypatch.setattr(trainer.devices, "host_values", lambda x: note("read") or read(x))
    monkeypatch.setattr(checkpoint, "save", lambda *args: (save(*args), seen.append("written"))[0])
    train(trainer, numbers(), Progress(), steps=3, save_steps=1)
    assert seen == ["read", "written"] * 3
    assert saved_steps(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("steps", [5, 17])
def test_an_error_in_writing_ends_the_run(tmp_path, monkeypatch, steps):
    """Also in writing the last checkpoint; with others, before the next is due."""

    def save(*arguments):
        time.sleep(0.2)
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint, "save", save)
    progress = Progress(lambda step: time.sleep(0.5) if step == 6 else None)
    with pytest.raises(OSError, match="no space left"):
        train(constant_trainer(tmp_path), numbers(), progress, steps, steps_per_loop=1)
    assert progress.steps[-1] < 8


def test_a_signal_while_the_last_checkpoint_is_written_ends_the_process(tmp_path, monkeypatch):
    """Otherwise an evaluation would follow."""

    def save(*arguments):
        send(signal.SIGTERM, at_step=2)(arguments[1])
        return real(*arguments)

    real = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", save)
    monkeypatch.setattr(stop_signals, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="^0$"):
        train(constant_trainer(tmp_path), numbers(), Progress(), steps=2)
    assert saved_steps(tmp_path) == [2]
