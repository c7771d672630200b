import errno
import multiprocessing
import os
import signal
import time

import pytest
import tensorflow as tf

from albert_tf.storage import files


def _hold(directory, ready):
    with files.hold(directory):
        ready.set()
        time.sleep(60)


def test_a_directory_is_held_by_one_process_until_that_ends(tmp_path):
    """However it ends."""
    fork_server = multiprocessing.get_context("forkserver")
    ready = fork_server.Event()
    process = fork_server.Process(target=_hold, args=(str(tmp_path), ready), daemon=True)
    process.start()
    assert ready.wait(60)
    with (
        pytest.raises(ValueError, match=rf"another run \(process {process.pid} on .*\) is using"),
        files.hold(str(tmp_path)),
    ):
        raise AssertionError("it is held")
    with files.hold(str(tmp_path), "evaluation"):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    for _ in range(2):
        with files.hold(str(tmp_path)):
            assert (tmp_path / "run.lock").read_text().startswith(f"process {os.getpid()} on ")


def test_a_file_system_without_locks_reserves_nothing(tmp_path, monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with files.hold(str(tmp_path)), files.hold(str(tmp_path)):
        assert (tmp_path / "run.lock").read_text().startswith(f"process {os.getpid()} on ")


def test_a_bucket_reserves_nothing():
    directory = "ram://run_lock"
    tf.io.gfile.makedirs(directory)
    with files.hold(directory), files.hold(directory):
        assert not tf.io.gfile.listdir(directory)
