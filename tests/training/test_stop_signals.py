"""SIGINT and SIGTERM in separate processes: a second one, or nothing to save, ends one at once.

Not tested here: a step that TensorFlow compiles; a mutex that is never released stands for it.
"""

import ctypes
import multiprocessing
import os
import queue
import signal
import time

import pytest

from albert_tf.cli import finetune, pretrain
from albert_tf.cli.finetune_settings import FinetuningSettings
from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.training import stop_signals
from albert_tf.training.stop_signals import StopSignals

FORK_SERVER = multiprocessing.get_context("forkserver")


def _work(ready, unsaved: bool) -> None:
    """Blocks where no Python signal handler runs, until a signal ends the process."""
    with StopSignals() as signals:
        signals.set_unsaved(unsaved)
        ready.set()
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)


def _stop_after_a_save(ready) -> None:
    with StopSignals() as signals:
        signals.set_unsaved(True)
        ready.set()
        while not signals.requested:
            time.sleep(0.01)
        signals.set_unsaved(False)
    raise AssertionError("it should have ended")


def start(target, *args) -> multiprocessing.Process:
    ready = FORK_SERVER.Event()
    process = FORK_SERVER.Process(target=target, args=(ready, *args), daemon=True)
    process.start()
    assert ready.wait(60)
    return process


def ended(process, number) -> int:
    """Sends a signal, and returns the exit code."""
    os.kill(process.pid, number)
    process.join(30)
    return process.exitcode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_to_save_ends_at_once(number):
    assert ended(start(_work, False), number) == 0


def test_signals_within_a_second_are_one_and_a_later_one_ends_at_once():
    process = start(_work, True)
    # As sent by GNU timeout, or by a pipeline that passes on Ctrl-C: within a second they are one.
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        os.kill(process.pid, number)
        process.join(0.2)
    assert process.is_alive()
    process.join(1)
    assert ended(process, signal.SIGINT) == 128 + signal.SIGINT


def test_a_signal_from_before_is_heard_when_all_is_saved():
    assert ended(start(_stop_after_a_save), signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("script", "settings"),
    [
        (pretrain, PretrainingSettings(output_dir="out", input_file=("none",), do_train=True)),
        (finetune, FinetuningSettings(output_dir="out", task_name="mrpc", do_train=True)),
    ],
)
def test_a_training_hears_signals_from_its_first_moment_and_between_its_loops(
    monkeypatch, script, settings
):
    heard: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr(stop_signals, "_exit", heard.put)
    before = signal.getsignal(signal.SIGINT)

    def prepare(*_: object) -> None:
        with StopSignals() as inner:
            inner.set_unsaved(True)
            signal.raise_signal(signal.SIGINT)
            while not inner.requested:
                time.sleep(0.01)
        assert heard.empty()
        signal.raise_signal(signal.SIGINT)
        assert heard.get(timeout=30) == 0
        raise ValueError("the end of the test")

    monkeypatch.setattr(script, "prepare", prepare)
    with pytest.raises(SystemExit, match="the end of the test"):
        script.main(settings)
    assert signal.getsignal(signal.SIGINT) == before
