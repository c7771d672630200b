import errno
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from albert_tf.storage import files
from tests.model.test_backends import ROOT

HOLD = """
import sys, time
from albert_tf.storage import files
with files.hold(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_directory_is_held_by_one_process_until_that_ends(tmp_path):
    """Even if it is killed."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        held = rf"another run \(process {process.pid} on .*\) is using"
        with pytest.raises(ValueError, match=held), files.hold(str(tmp_path)):
            raise AssertionError("it is held")
        with files.hold(str(tmp_path), "evaluation"):
            pass
        process.kill()
    for _ in range(2):
        with files.hold(str(tmp_path)):
            assert (tmp_path / "run.lock").read_text().startswith(f"process {os.getpid()} on ")


def test_a_file_system_without_locks_and_a_bucket_reserve_nothing(tmp_path, monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with files.hold(str(tmp_path)), files.hold(str(tmp_path)):
        assert (tmp_path / "run.lock").read_text().startswith(f"process {os.getpid()} on ")
    directory = "ram://run_lock"
    tf.io.gfile.makedirs(directory)
    with files.hold(directory), files.hold(directory):
        assert not tf.io.gfile.listdir(directory)
