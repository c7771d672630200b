"""Processes of the scripts that can be killed, and judgements of how they end.

They are forked from a server that has imported TensorFlow but has run none of it.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping

from tests.kit import pretraining_runs as runs
from tools.campaign import outcomes
from tools.campaign.outcomes import Outcome

# A run that takes longer hangs; all take far less.
TIMEOUT_SECONDS = 240
_BEGUN, _ENDED = "begun by the campaign", "ended, says the campaign"
# Python prints this and goes on, when Ctrl-C comes during a callback of its garbage collector.
_IGNORED = re.compile(
    r"^Exception ignored in.*\nTraceback \(most recent call last\):\n(?:[ ].*\n)*"
    r"KeyboardInterrupt.*$",
    re.MULTILINE,
)
_LEFT_BEHIND = ("*.tmp", "*tempstate*", "*.unfinished*", ".write_test", "*.part")
CONTEXT = multiprocessing.get_context("forkserver")
# Starting a process polls the others, too. Only one thread may poll at a time, because an exit code
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
      results: Reads the contents of the output folder that must be bitwise reproducible.
      resumes: Whether it resumes after a kill; if not, its output is complete or absent.
      saved: Glob of the files by which a save ends; their names have a growing number.
      saving: Glob of the files by which a save begins: during a save these outnumber `saved`.
      environment: Variables for a Python process of its own, where the server has imported another
        backend. By default processes are forked from the server.
    """

    name: str
    main: Callable[[list[str]], None]
    make: Callable[[pathlib.Path], None]
    arguments: Callable[[pathlib.Path, pathlib.Path], list[str]]
    results: Callable[[pathlib.Path], Mapping[str, bytes]]
    resumes: bool = True
    saved: str = ""
    saving: str = ""
    environment: Mapping[str, str] | None = None

    def last_save(self, out: pathlib.Path) -> int:
        """Returns 1 + the number of the last save in an output folder; 0 without any."""
        found = out.glob(self.saved) if self.saved else ()
        return max((1 + int(re.search(r"\d+", path.name)[0]) for path in found), default=0)

    def is_saving(self, out: pathlib.Path) -> bool:
        """Whether an output folder has an unfinished save."""
        return len(list(out.glob(self.saving))) > len(list(out.glob(self.saved)))


class Running:
    """A process of a program."""

    def __init__(
        self,
        program: Program,
        arguments: list[str],
        log_file: pathlib.Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        log_file.write_text("")
        self._log_file = log_file
        if program.environment is not None:
            self._process = self._start_python(program, arguments)
            return
        self._process = CONTEXT.Process(
            target=_main, args=(program.main, arguments, log_file, dict(env or {}))
        )
        with _ASKING:
            self._process.start()

    def _start_python(self, program: Program, arguments: list[str]) -> subprocess.Popen:
        name = f"{program.main.__module__}:{program.main.__qualname__}"
        code = (
            "import pkgutil, sys; from tools.campaign import processes; "
            "processes.run_main(pkgutil.resolve_name(sys.argv[1]), sys.argv[2:])"
        )
        with open(self._log_file, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", code, name, *arguments],
                env={**os.environ, **program.environment},
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        """The text that it has printed."""
        return self._log_file.read_text(errors="replace").partition(_BEGUN)[2]

    def wait_until(
        self, condition: Callable[[], bool], seconds: float = TIMEOUT_SECONDS, pause: float = 0.01
    ) -> bool:
        """Waits for a condition or the end of the process; returns whether either came in time."""
        end = time.monotonic() + seconds
        while not condition() and self._is_alive():
            if time.monotonic() > end:
                return False
            time.sleep(pause)
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
            return self._exit_code()
        self._process.kill()
        self.wait_until(lambda: False)
        return None

    def _is_alive(self) -> bool:
        return self._exit_code() is None

    def _exit_code(self) -> int | None:
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll()
        with _ASKING:
            return self._process.exitcode


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
    run_main(main, arguments)


def run_main(main: Callable[[list[str]], None], arguments: list[str]) -> None:
    """Runs a script's main between two marks in the log."""
    print(_BEGUN, flush=True)
    main(arguments)
    print(_ENDED, flush=True)


def judge(run: Running, exit_code: int | None, sent: int | None = None) -> Outcome:
    """Judges how a process ended; an exit code of None is a hang."""
    log, ended, _ = run.log.partition(_ENDED)
    last = (log.strip().splitlines() or [""])[-1]
    if exit_code is None:
        return Outcome(outcomes.HANG, last)
    if sent == signal.SIGINT:
        log = _IGNORED.sub("", log)
        # An interrupt after the script's end hits only Python's own exit.
        exit_code = 0 if ended else exit_code
    if "Traceback (most recent call last)" in log:
        return Outcome(outcomes.TRACEBACK, last)
    if exit_code < 0 and -exit_code != sent:
        return Outcome(outcomes.CRASH, f"signal {-exit_code}: {last}")
    errors = [line for line in log.splitlines() if line.startswith("error: ")]
    if exit_code > 0 and len(errors) != 1:
        return Outcome(outcomes.TRACEBACK, f"exit code {exit_code}, {len(errors)} errors: {last}")
    if sent and (exit_code or "stopped " in log):
        return Outcome(outcomes.STOPPED, signal.Signals(sent).name)
    return Outcome(outcomes.REFUSED, errors[0]) if exit_code else Outcome(outcomes.FINISHED)


def left_behind(out: pathlib.Path) -> list[str]:
    """Returns the names of files that only an unfinished run may have."""
    found = {path for pattern in _LEFT_BEHIND for path in out.rglob(pattern)}
    return sorted(path.name for path in found)
