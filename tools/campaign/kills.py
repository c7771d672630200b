"""Programs stopped at random moments, repeatedly, that must produce the same bits in the end."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import random
import shutil
import signal
import time
from collections.abc import Mapping
from concurrent import futures

from tools.campaign import outcomes, processes, programs
from tools.campaign.outcomes import Outcome, Tally
from tools.campaign.processes import Program, Running

# As a scheduler or a user would; to files, SIGKILL is a crash of the machine.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGKILL)
# By then a run that was asked to stop must be gone; many may share one processor.
_STOP_SECONDS = 90.0
_KILLS_OF_A_LIFE = 4


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """What a program does when undisturbed.

    Attributes:
      program: The program.
      inputs: Folder of its inputs.
      results: What it must leave.
      seconds: How long it takes.
    """

    program: Program
    inputs: pathlib.Path
    results: Mapping[str, bytes]
    seconds: float


def undisturbed(program: Program, folder: pathlib.Path) -> Undisturbed:
    """Makes a program's inputs, and runs it once.

    Raises:
      RuntimeError: If it fails.
    """
    inputs, out = folder / "inputs", folder / "undisturbed"
    inputs.mkdir(parents=True)
    out.mkdir()
    program.make(inputs)
    run = Running(program, program.arguments(inputs, out), folder / "undisturbed.log")
    run.wait_until_begun()
    since = time.monotonic()
    if run.end() != 0:
        raise RuntimeError(f"{program.name} fails even when undisturbed:\n{run.log}")
    seconds = time.monotonic() - since
    return Undisturbed(program, inputs, program.results(out), seconds)


def run(tally: Tally, names: list[str], count: int, seed: int, folder: pathlib.Path) -> None:
    """Stops programs `count` times in all.

    Args:
      tally: Receives the outcomes.
      names: Names of programs.
      count: Signals to send to live processes.
      seed: Seed of the moments.
      folder: An empty folder.
    """
    chosen = [program for program in programs.PROGRAMS if program.name in names]
    expected = [undisturbed(program, folder / program.name) for program in chosen]
    lives = [
        (expected[number % len(expected)], number)
        for number in range(-(-count // _KILLS_OF_A_LIFE))
    ]
    with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(lambda life: _Life(*life, seed).outcomes(), lives)
        for (one, number), of_life in zip(lives, found, strict=True):
            for outcome in of_life:
                tally.add(f"kills, {one.program.name}", outcome, f"(life {number})")


class _Life:
    """A run that is stopped several times and then left alone.

    Args:
      one: The program, undisturbed.
      number: Of this life.
      seed: Seed of the moments.
    """

    def __init__(self, one: Undisturbed, number: int, seed: int) -> None:
        self._one = one
        self._rng = random.Random(f"{seed} {one.program.name} {number}")
        self._folder = one.inputs.parent / f"life{number}"
        self._out = self._folder / "out"
        self._out.mkdir(parents=True)

    def outcomes(self) -> list[Outcome]:
        """Runs; returns the outcome of each kill, and of the end."""
        found, kills = [], 0
        while kills < _KILLS_OF_A_LIFE:
            was_alive, outcome = self._kill(kills)
            kills += was_alive
            found.append(outcome)
            if outcome.what in outcomes.DEFECTS:
                return found
            if not was_alive or not self._one.program.resumes:
                found += filter(None, [self._check_whole()])
                shutil.rmtree(self._out)
                self._out.mkdir()
        found.append(self._finish())
        if found[-1].what not in outcomes.DEFECTS:
            shutil.rmtree(self._folder)
        return found

    def _start(self) -> Running:
        arguments = self._one.program.arguments(self._one.inputs, self._out)
        run = Running(self._one.program, arguments, self._folder / "log")
        run.wait_until_begun()
        return run

    def _kill(self, number: int) -> tuple[bool, Outcome]:
        run = self._start()
        # Long runs are stopped near the end as often as near the start.
        moment = self._rng.uniform(0, self._one.seconds)
        run.wait_until(lambda: False, moment)
        sent = self._rng.choice(_SIGNALS)
        was_alive = run.signal(sent)
        exit_code = run.end(_STOP_SECONDS)
        outcome = processes.judge(run, exit_code, sent if was_alive else None)
        detail = f"{sent.name} after {moment:.2f} s, kill {number}: {outcome.detail}"
        return was_alive, dataclasses.replace(outcome, detail=detail)

    def _check_whole(self) -> Outcome | None:
        """Checks a run that is over, or can't resume: it must leave all its output, or none."""
        if not (self._out / "model").exists() and not self._one.program.resumes:
            return None
        return self._compare()

    def _finish(self) -> Outcome:
        run = self._start()
        outcome = processes.judge(run, run.end())
        if outcome.what != outcomes.FINISHED:
            what = outcome.what if outcome.what in outcomes.DEFECTS else outcomes.WRONG
            return Outcome(what, f"the last run ended with {outcome.detail}")
        left = processes.left_behind(self._out)
        if left:
            return Outcome(outcomes.WRONG, f"left behind: {', '.join(left)}")
        return self._compare() or outcome

    def _compare(self) -> Outcome | None:
        try:
            results = self._one.program.results(self._out)
        except Exception as error:  # Readers may raise anything on incomplete files.
            return Outcome(outcomes.WRONG, f"the results can't be read: {error}"[:200])
        expected = self._one.results
        names = sorted(results.keys() ^ expected.keys())
        names += [name for name in results if results[name] != expected.get(name)]
        if names:
            return Outcome(
                outcomes.WRONG,
                f"results differ from those of an undisturbed run: {', '.join(names)[:200]}",
            )
        return None
