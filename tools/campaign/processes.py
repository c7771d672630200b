"""Killable processes of the scripts, and how they end.

They are forked from a server that has imported TensorFlow but run none of it.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Mapping

from tests import pretraining_runs as runs
from tools.campaign import outcomes
from tools.campaign.outcomes import Outcome

# Far more than any run takes: beyond it, a run hangs.
TIMEOUT_SECONDS = 240
_BEGUN = "begun by the campaign"
_LEFT_BEHIND = ("*.tmp", "*tempstate*", "*.unfinished*", ".write_test", "*.part")
CONTEXT = multiprocessing.get_context("forkserver")
# Starting a process also polls the others, which only one thread may do at a time: an exit code
# comes through a pipe, once.
_ASKING = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Program:
    """A script and its inputs.

    Attributes:
      name: Its name in the table.
      main: Takes the command line.
      make: Writes the inputs into an empty folder.
      arguments: Makes the command line from the folders of inputs and outputs.
      results: What in the output folder must be bitwise reproducible.
      resumes: Whether it resumes after a kill; else its output is complete or absent.
    """

    name: str
    main: Callable[[list[str]], None]
    make: Callable[[pathlib.Path], None]
    arguments: Callable[[pathlib.Path, pathlib.Path], list[str]]
    results: Callable[[pathlib.Path], Mapping[str, bytes]]
    resumes: bool = True


class Running:
    """A process of a program.

    Args:
      program: The program.
      arguments: Its command line.
      log_file: For its stdout and stderr; overwritten.
      env: Additions to its environment.
    """

    def __init__(
        self,
        program: Program,
        arguments: list[str],
        log_file: pathlib.Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        log_file.write_text("")
        self._log_file = log_file
        self._process = CONTEXT.Process(
            target=_main, args=(program.main, arguments, log_file, dict(env or {}))
        )
        with _ASKING:
            self._process.start()

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._log_file.read_text(errors="replace").partition(_BEGUN)[2]

    def wait_until(self, condition: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> bool:
        """Waits for a condition or the process's end; returns whether it came in time."""
        end = time.monotonic() + seconds
        while not condition() and self._is_alive():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def wait_until_begun(self) -> None:
        """Waits until the script's own work begins."""
        self.wait_until(lambda: _BEGUN in self._log_file.read_text(errors="replace"))

    def signal(self, number: int) -> bool:
        """Sends a signal; returns whether the process was still alive."""
        alive = self._is_alive()
        if alive:
            os.kill(self._process.pid, number)
        return alive

    def end(self, seconds: float = TIMEOUT_SECONDS) -> int | None:
        """Waits for the end; returns the exit code, or None if it had to be killed."""
        if self.wait_until(lambda: False, seconds):
            return self._process.exitcode
        self._process.kill()
        self.wait_until(lambda: False)
        return None

    def _is_alive(self) -> bool:
        with _ASKING:
            return self._process.is_alive()


def _main(
    main: Callable[[list[str]], None],
    arguments: list[str],
    log_file: pathlib.Path,
    env: dict[str, str],
) -> None:
    log = os.open(log_file, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(env)
    runs.split_cpu(1)
    print(_BEGUN, flush=True)
    main(arguments)


def judge(run: Running, exit_code: int | None, sent: int | None = None) -> Outcome:
    """Judges how a process ended.

    Args:
      run: The process.
      exit_code: Its exit code; None is a hang.
      sent: The signal that was sent to it, if any.
    """
    last = (run.log.strip().splitlines() or [""])[-1]
    if exit_code is None:
        return Outcome(outcomes.HANG, last)
    if "Traceback (most recent call last)" in run.log:
        return Outcome(outcomes.TRACEBACK, last)
    if exit_code < 0 and -exit_code != sent:
        return Outcome(outcomes.CRASH, f"signal {-exit_code}: {last}")
    errors = [line for line in run.log.splitlines() if line.startswith("error: ")]
    if exit_code > 0 and len(errors) != 1:
        return Outcome(outcomes.TRACEBACK, f"exit code {exit_code}, {len(errors)} errors: {last}")
    if sent and (exit_code or "stopped at step" in run.log):
        return Outcome(outcomes.STOPPED, signal.Signals(sent).name)
    return Outcome(outcomes.REFUSED, errors[0]) if exit_code else Outcome(outcomes.FINISHED)


def left_behind(out: pathlib.Path) -> list[str]:
    """Names of files that only an unfinished run may have."""
    found = {path for pattern in _LEFT_BEHIND for path in out.rglob(pattern)}
    return sorted(path.name for path in found)
