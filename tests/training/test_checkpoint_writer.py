"""Checkpoints are written while training goes on.

Can't see: a process that is killed meanwhile (test_run_pretraining_processes.py); what a slow disk
costs on a TPU.
"""

import os
import signal
import threading
import time

import pytest

from albert_tf.storage import checkpoint
from albert_tf.training import stop_signals
from albert_tf.training.trainer import NonFiniteLossError
from tests.pretraining_runs import Progress
from tests.training.test_trainer import constant_trainer, numbers, saved_steps, send, train

SECONDS = 60  # Far more than any wait takes.


@pytest.fixture
def slow_disk(monkeypatch) -> None:
    """Each checkpoint takes as long as many steps."""
    real = checkpoint.save

    def save(*arguments):
        time.sleep(0.2)
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "save", save)


def test_steps_go_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """It holds the state at its own step."""
    for name in ("short", "long"):
        (tmp_path / name).mkdir()
    train(constant_trainer(tmp_path / "short", 0.1), numbers(), Progress(), steps=5)
    real, stepped = checkpoint.save, threading.Event()

    def save(*arguments):
        assert stepped.wait(SECONDS)
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
    """Also the copy of the state does: there is one at a time."""
    trainer, seen = constant_trainer(tmp_path), []
    read, save = trainer.devices.host_values, checkpoint.save
    monkeypatch.setattr(
        trainer.devices, "host_values", lambda tensors: seen.append("read") or read(tensors)
    )
    monkeypatch.setattr(checkpoint, "save", lambda *args: (save(*args), seen.append("written"))[0])
    train(trainer, numbers(), Progress(), steps=3, save_steps=1)
    assert seen == ["read", "written"] * 3
    assert saved_steps(tmp_path) == [1, 2, 3]


def test_what_follows_a_save_finds_the_checkpoint(tmp_path, slow_disk):
    trainer, found = constant_trainer(tmp_path), []
    train(trainer, numbers(), Progress(), after_save=lambda: found.append(saved_steps(tmp_path)))
    assert found == [[5], [5, 10], [5, 10, 15], [5, 10, 15, 17]]


def test_an_error_in_writing_ends_the_run(tmp_path, monkeypatch):
    """Before the next checkpoint is due."""

    def save(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint, "save", save)
    progress = Progress(lambda step: time.sleep(0.5) if step == 6 else None)
    with pytest.raises(OSError, match="no space left"):
        train(constant_trainer(tmp_path), numbers(), progress, steps_per_loop=1)
    assert progress.steps[-1] < 8


def test_an_error_in_writing_the_last_one_ends_the_run(tmp_path, monkeypatch):
    def save(*arguments):
        time.sleep(0.5)
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(OSError, match="no space left"):
        train(constant_trainer(tmp_path), numbers(), Progress(), steps=5)


def test_a_loss_that_is_not_finite_waits_for_the_checkpoint_before(tmp_path, slow_disk):
    with pytest.raises(NonFiniteLossError, match="step 7 .*nothing was saved after step 5;"):
        train(constant_trainer(tmp_path), numbers(7), Progress())
    assert saved_steps(tmp_path) == [5]


def test_a_signal_while_a_checkpoint_is_written_saves_another(tmp_path, caplog, slow_disk):
    caplog.set_level("INFO", logger="absl")
    progress = Progress(send(signal.SIGTERM, at_step=6))
    train(constant_trainer(tmp_path), numbers(), progress, steps_per_loop=1)
    assert saved_steps(tmp_path) == [5, 7]
    saved, stopped = caplog.messages[-2:]
    assert saved == f"saved {tmp_path}/model.ckpt-7"
    assert stopped.startswith("stopped at step 7:")


def test_a_signal_while_the_last_checkpoint_is_written_ends_the_process(tmp_path, monkeypatch):
    """Else an evaluation would follow."""

    class Ended(Exception):
        pass

    def end(code):
        raise Ended(code)

    def save(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)  # A thread hears it.
        return real(*arguments)

    real = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", save)
    monkeypatch.setattr(stop_signals, "_exit", end)
    with pytest.raises(Ended, match="0"):
        train(constant_trainer(tmp_path), numbers(), Progress(), steps=2)
    assert saved_steps(tmp_path) == [2]
