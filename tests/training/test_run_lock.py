import errno
import json
import multiprocessing
import os
import signal
import time

import pytest
import tensorflow as tf

from albert_tf.training import run_lock


def _hold(directory, ready):
    with run_lock.hold(directory):
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
        run_lock.hold(str(tmp_path)),
    ):
        raise AssertionError("it is held")
    with run_lock.hold(str(tmp_path), "evaluation"):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    for _ in range(2):
        with run_lock.hold(str(tmp_path)):
            assert (tmp_path / "run.lock").read_text().startswith(f"process {os.getpid()} on ")


def test_a_file_system_without_locks_is_a_bucket(tmp_path, monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(run_lock.fcntl, "flock", flock)
    with run_lock.hold(str(tmp_path)):
        assert "seconds" in json.loads((tmp_path / "run.heartbeat").read_text())
    assert not (tmp_path / "run.heartbeat").exists()


def test_a_heartbeat_that_fails_is_a_warning(monkeypatch, caplog):
    directory, path = "ram://failing_heartbeat", "ram://failing_heartbeat/run.heartbeat"
    tf.io.gfile.makedirs(directory)
    monkeypatch.setattr(run_lock, "_HEARTBEAT_SECONDS", 0.01)
    gfile = tf.io.gfile.GFile

    def fail(*_):
        raise tf.errors.UnavailableError(None, None, "no network")

    warning = "ram://failing_heartbeat could not be written: no net"
    with run_lock.hold(directory):
        monkeypatch.setattr(tf.io.gfile, "GFile", fail)
        assert comes_true(lambda: warning in caplog.text)
        monkeypatch.setattr(tf.io.gfile, "GFile", gfile)
        tf.io.gfile.remove(path)
        assert comes_true(lambda: tf.io.gfile.exists(path))


def comes_true(holds) -> bool:
    """Waits up to a minute for it."""
    for _ in range(6000):
        if holds():
            return True
        time.sleep(0.01)
    return False


def test_a_bucket_shows_a_heartbeat(caplog):
    directory, path = "ram://run_lock", "ram://run_lock/run.heartbeat"
    tf.io.gfile.makedirs(directory)
    with run_lock.hold(directory), tf.io.gfile.GFile(path) as file:
        assert abs(json.load(file)["seconds"] - time.time()) < 60
    assert not tf.io.gfile.exists(path) and not caplog.messages

    for other in ("{", "[]", "{}", '{"seconds": "now"}'):
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(other)
        with run_lock.hold(directory):
            assert not caplog.messages

    for age, warned in ((500, False), (20, True)):
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(json.dumps({"who": "process 7 on worker", "seconds": time.time() - age}))
        with run_lock.hold(directory):
            assert warned == ("another run (process 7 on worker) is using" in caplog.text)
