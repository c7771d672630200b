"""Programs stopped at random moments, repeatedly, that must produce the same bits in the end.

And two workers, one of which is lost: the other must exit, and say which.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import random
import shutil
import signal
import time
from collections.abc import Mapping
from concurrent import futures

from tests import two_workers
from tools.campaign import outcomes, processes, programs
from tools.campaign.outcomes import Outcome, Tally
from tools.campaign.processes import Program, Running

# As a scheduler or a user would; to files, SIGKILL is a crash of the machine.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGKILL)
# By then a run that was asked to stop must be gone; many may share one processor.
_STOP_SECONDS = 90.0
_KILLS_OF_A_LIFE = 4
# In which a worker must notice that the other one is lost.
_LOSS_SECONDS = 180.0


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """What a program must leave in `results` when undisturbed, and how long it takes."""

    program: Program
    inputs: pathlib.Path
    results: Mapping[str, bytes]
    seconds: float


def undisturbed(program: Program, folder: pathlib.Path) -> Undisturbed:
    """Makes a program's inputs, and runs it once."""
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


def run(
    tally: Tally,
    names: list[str],
    count: int,
    seed: int,
    folder: pathlib.Path,
    until: float = math.inf,
) -> int:
    """Stops programs `count` times in all; returns how often it did.

    None is sent after `until`, by time.monotonic().
    """
    chosen = [program for program in programs.PROGRAMS if program.name in names]
    lives = -(-count // (_KILLS_OF_A_LIFE * len(chosen)))
    with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        of_programs = pool.map(
            lambda program: _lives(program, lives, seed, folder / program.name, until), chosen
        )
        return sum(_count(tally, *found) for found in zip(chosen, of_programs, strict=True))


def _lives(
    program: Program, lives: int, seed: int, folder: pathlib.Path, until: float
) -> list[list[tuple[bool, Outcome]]]:
    found = []
    if time.monotonic() < until:
        one = undisturbed(program, folder)
        for number in range(lives):
            if time.monotonic() < until:
                found.append(_Life(one, number, seed, until).outcomes())
    return found


def _count(tally: Tally, program: Program, lives: list[list[tuple[bool, Outcome]]]) -> int:
    for number, outcomes_of_life in enumerate(lives):
        for in_a_save, outcome in outcomes_of_life:
            subject = f"kills{' in a save' if in_a_save else ''}, {program.name}"
            tally.add(subject, outcome, f"(life {number})")
    return sum(outcome.what == outcomes.STOPPED for life in lives for _, outcome in life)


class _Life:
    """A run that is stopped several times and then left alone."""

    def __init__(self, one: Undisturbed, number: int, seed: int, until: float) -> None:
        self._one, self._until = one, until
        self._rng = random.Random(f"{seed} {one.program.name} {number}")
        self._folder = one.inputs.parent / f"life{number}"
        self._out = self._folder / "out"
        self._out.mkdir(parents=True)

    def outcomes(self) -> list[tuple[bool, Outcome]]:
        """Runs; returns the outcome of each kill, whether it was in a save, and of the end."""
        found, kills = [], 0
        while kills < _KILLS_OF_A_LIFE and time.monotonic() < self._until:
            was_alive, in_a_save, outcome = self._kill(kills)
            kills += was_alive
            found.append((in_a_save, outcome))
            if outcome.what in outcomes.DEFECTS:
                return found
            if not was_alive or not self._one.program.resumes:
                found += [(False, fault) for fault in [self._check_whole()] if fault]
                shutil.rmtree(self._out)
                self._out.mkdir()
        found.append((False, self._finish()))
        if found[-1][1].what not in outcomes.DEFECTS:
            shutil.rmtree(self._folder)
        return found

    def _start(self) -> Running:
        arguments = self._one.program.arguments(self._one.inputs, self._out)
        run = Running(self._one.program, arguments, self._folder / "log")
        run.wait_until_begun()
        return run

    def _kill(self, number: int) -> tuple[bool, bool, Outcome]:
        run = self._start()
        # Long runs are stopped near the end as often as near the start.
        moment = self._rng.uniform(0, self._one.seconds)
        sent, saving = self._rng.choice(_SIGNALS), self._one.program.saving
        run.wait_until(lambda: False, moment)
        in_a_save = False
        if saving and number % 2:
            # At the next save: half of a checkpoint's files are there.
            sent = signal.SIGKILL
            in_a_save = run.wait_until(lambda: any(self._out.glob(saving)), pause=2e-4)
        was_alive = run.signal(sent)
        exit_code = run.end(_STOP_SECONDS)
        outcome = processes.judge(run, exit_code, sent if was_alive else None)
        detail = f"{sent.name} after {moment:.2f} s, kill {number}: {outcome.detail}"
        in_a_save &= was_alive
        return was_alive, in_a_save, dataclasses.replace(outcome, detail=detail)

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


def lose_workers(tally: Tally, folder: pathlib.Path) -> None:
    """Kills the first of two workers, then the second."""
    inputs = folder / "inputs"
    inputs.mkdir(parents=True)
    programs.PRETRAINING.make(inputs)
    for lost in range(2):
        out = folder / f"out{lost}"
        tally.add("a lost worker", _lose(programs.PRETRAINING, inputs, out, lost), f"({lost})")


def _lose(program: Program, inputs: pathlib.Path, out: pathlib.Path, lost: int) -> Outcome:
    # Would run far too long: only the loss ends it.
    flags = [*program.arguments(inputs, out), "--num_train_steps=1000000"]
    environments = two_workers.environments()
    running = [
        Running(program, flags, out.parent / f"lost{lost}-{i}.log", env)
        for i, env in enumerate(environments)
    ]
    trains = running[0].wait_until(lambda: any(out.glob("model.ckpt-*.index")), _LOSS_SECONDS)
    running[lost].signal(signal.SIGKILL)
    running[lost].end()
    outcome = processes.judge(running[1 - lost], running[1 - lost].end(_LOSS_SECONDS))
    if not trains:
        return Outcome(outcomes.HANG, "two workers wrote no checkpoint")
    if outcome.what == outcomes.FINISHED:
        return Outcome(outcomes.WRONG, "the other worker ended without an error")
    address = json.loads(environments[0]["TF_CONFIG"])["cluster"]["worker"][lost]
    if outcome.what == outcomes.REFUSED and address not in outcome.detail:
        return Outcome(outcomes.NAMELESS, outcome.detail)
    return outcome
