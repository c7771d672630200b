"""A pool of processes: order, bounds, errors, ends."""

import contextlib
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from albert_tf.generator import workers


def _square_slowly(number):
    time.sleep(0.05 * (number % 3))
    return number * number, os.getpid()


def _fail_at_three(number):
    if number == 3:
        raise ValueError("three is too many")
    return number


def _die(content=None):
    os.kill(os.getpid(), signal.SIGKILL)


def _wait(content):
    time.sleep(60)


def test_results_come_in_order_from_other_processes():
    results = list(workers.map_in_order(_square_slowly, range(11), 3))
    assert [square for square, _ in results] == [number**2 for number in range(11)]
    pids = {pid for _, pid in results}
    assert len(pids) == 3
    assert os.getpid() not in pids


def test_one_process_is_this_one():
    results = list(workers.map_in_order(_square_slowly, range(3), 1))
    assert results == [(number**2, os.getpid()) for number in range(3)]


@pytest.mark.parametrize(("num_processes", "most"), [(1, 1), (2, 5)])
def test_items_are_read_as_needed(num_processes, most):
    items = itertools.count()
    with contextlib.closing(workers.map_in_order(abs, items, num_processes)) as results:
        assert [next(results) for _ in range(7)] == list(range(7))
    assert next(items) <= 7 + most


@pytest.mark.parametrize("num_processes", [1, 2])
def test_errors_come_through(num_processes):
    with pytest.raises(ValueError, match="^three is too many$"):
        list(workers.map_in_order(_fail_at_three, range(9), num_processes))


def test_a_killed_worker_is_an_error_and_no_wait():
    with pytest.raises(ChildProcessError, match="a worker process was killed, .* `num_processes"):
        list(workers.map_in_order(_die, range(9), 2))


def test_workers_end_at_once_with_the_iterator():
    started = time.monotonic()
    results = workers.map_in_order(time.sleep, [0, 100, 100], 2)
    next(results)
    results.close()
    assert time.monotonic() - started < 20


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_workers_end_with_a_killed_parent(tmp_path):
    script = tmp_path / "script.py"
    # Each prints at once: both write to one pipe.
    script.write_text("""
import os, time
from albert_tf.generator import workers
def work(item):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(100)
if __name__ == "__main__":
    list(workers.map_in_order(work, range(2), 2))
""")
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    assert all(_is_alive(pid) for pid in pids)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while any(_is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_is_alive(pid) for pid in pids)
    parent.stdout.close()


def _is_alive(pid):
    """Whether a process runs; one that nobody waits for may stay in the table as a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("function", "end"), [("_die", "ChildProcessError"), ("_wait", "done")])
def test_items_that_no_process_takes_do_not_hold_up_the_end(function, end):
    """They are larger than a pipe holds: the thread that sends them waits for a reader."""
    program = f"""
import contextlib, threading, time
from albert_tf.generator import workers
from tests.generator import test_processes

if __name__ == "__main__":
    items = (bytes(1 << 20) for _ in range(9))
    results = workers.map_in_order(test_processes.{function}, items, 2)
    if "{end}" == "done":
        # Abandoned by a signal, as by Ctrl-C.
        import signal
        def stop(*_): raise SystemExit("done")
        signal.signal(signal.SIGALRM, stop)
        signal.alarm(4)
    with contextlib.closing(results):
        list(results)
"""
    path = os.pathsep.join([str(pathlib.Path(__file__).parents[2]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and end in ended.stderr
