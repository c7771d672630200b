"""Stops programs repeatedly at random moments; in the end they must have made the same bits.

Also kills one of two workers: the other one must exit, and name the lost one.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures

from tests.kit import two_workers
from tools.campaign import outcomes, processes, programs
from tools.campaign.outcomes import Outcome, Tally
from tools.campaign.processes import Program, Running

# Signals of schedulers and users. For files, SIGKILL is like a crash of the machine.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGKILL)
# A run must have stopped by then, even if many share one processor.
_STOP_SECONDS = 90.0
# Places of a life's kills, in turn; the next life begins with the next place.
_BEFORE, _INSIDE, _AFTER = "before a save", "in a save", "after a save"
_PLACES = (_BEFORE, _INSIDE, _AFTER, _AFTER)
# A worker must have noticed the loss of the other one by then.
_LOSS_SECONDS = 180.0


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """An undisturbed run of a program: its results, and the seconds until each save."""

    program: Program
    inputs: pathlib.Path
    results: Mapping[str, bytes]
    seconds: float
    moments: Mapping[int, float]

    def seconds_from(self, save: int) -> float:
        """Returns the seconds from a save to the next one, or to the end."""
        later = (seconds for number, seconds in self.moments.items() if number > save)
        return min(later, default=self.seconds) - self.moments.get(save, 0.0)


def undisturbed(program: Program, folder: pathlib.Path) -> Undisturbed:
    """Makes a program's inputs, and runs it once."""
    inputs, out = folder / "inputs", folder / "undisturbed"
    inputs.mkdir(parents=True)
    out.mkdir()
    program.make(inputs)
    run = Running(program, program.arguments(inputs, out), folder / "undisturbed.log")
    run.wait_until_begun()
    since, moments = time.monotonic(), {0: 0.0}

    def look() -> bool:
        moments.setdefault(program.last_save(out), time.monotonic() - since)
        return False

    run.wait_until(look)
    if run.end() != 0:
        raise RuntimeError(f"{program.name} fails even when undisturbed:\n{run.log}")
    seconds = time.monotonic() - since
    return Undisturbed(program, inputs, program.results(out), seconds, moments)


def _places(program: Program) -> list[str]:
    globs = {_BEFORE: "*", _INSIDE: program.saving, _AFTER: program.saved}
    return [place for place, glob in globs.items() if glob]


def subjects(names: list[str]) -> list[str]:
    """Returns the subjects of programs that are killed at every place where they can be."""
    chosen = [program for program in programs.PROGRAMS if program.name in names]
    return [f"kills {place}, {each.name}" for each in chosen for place in _places(each)]


def run(
    tally: Tally,
    names: list[str],
    count: int,
    seed: int,
    folder: pathlib.Path,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Stops programs `count` times in all, each in turn, or until `is_over`."""
    chosen = [program for program in programs.PROGRAMS if program.name in names]

    def lives(program: Program) -> Iterator[None]:
        one = undisturbed(program, folder / program.name)
        for number in itertools.count():
            yield _Life(tally, one, number, seed).run(is_over)

    running = [lives(program) for program in chosen]
    with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for _ in range(0, count, len(_PLACES) * len(chosen)):
            list(pool.map(lambda each: is_over() or next(each), running))


class _Life:
    """A run that is stopped several times and then left alone."""

    def __init__(self, tally: Tally, one: Undisturbed, number: int, seed: int) -> None:
        self._tally, self._one, self._number = tally, one, number
        self._rng = random.Random(f"{seed} {one.program.name} {number}")
        self._signals = self._rng.sample(_SIGNALS, len(_SIGNALS))
        self._folder = one.inputs.parent / f"life{number}"
        self._out = self._folder / "out"
        self._out.mkdir(parents=True)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Counts the outcomes of the kills and of the end."""
        for number in range(len(_PLACES)):
            if is_over():
                break
            place, outcome = self._kill(number)
            self._add(place, outcome)
            if outcome.what in outcomes.DEFECTS:
                return
            if not place or not self._one.program.resumes:
                if fault := self._check_whole():
                    self._add("", fault)
                shutil.rmtree(self._out)
                self._out.mkdir()
        outcome = self._finish()
        self._add("", outcome)
        if outcome.what not in outcomes.DEFECTS:
            shutil.rmtree(self._folder)

    def _add(self, place: str, outcome: Outcome) -> None:
        subject = f"kills {place}".strip()
        self._tally.add(f"{subject}, {self._one.program.name}", outcome, f"(life {self._number})")

    def _start(self) -> Running:
        arguments = self._one.program.arguments(self._one.inputs, self._out)
        run = Running(self._one.program, arguments, self._folder / "log")
        run.wait_until_begun()
        return run

    def _kill(self, number: int) -> tuple[str, Outcome]:
        """Starts and stops the program; returns the place ("" if it had ended) and the outcome."""
        one, program = self._one, self._one.program
        sent, place = self._signals[number], _PLACES[(self._number + number) % len(_PLACES)]
        place = place if place in _places(program) else _places(program)[-1]
        last = program.last_save(self._out)
        later = [save for save in one.moments if save > last]
        run = self._start()
        if place == _INSIDE and later:
            # Wait until half of a checkpoint's files are there.
            sent = signal.SIGKILL
            run.wait_until(lambda: program.is_saving(self._out), pause=2e-4)
        else:
            # Wait for a save instead of a time, because others may share the processors. Prefer any
            # but the last save, so that the restarted run still has work to do.
            save = self._rng.choice(later[:-1] or later) if place == _AFTER and later else 0
            run.wait_until(lambda: program.last_save(self._out) >= save)
            run.wait_until(lambda: False, self._rng.uniform(0, one.seconds_from(save)))
        last = program.last_save(self._out)
        was_alive = run.signal(sent)
        exit_code = run.end(_STOP_SECONDS)
        outcome = processes.judge(run, exit_code, sent if was_alive else None).of_intact()
        place = _AFTER if last else _BEFORE
        if sent == signal.SIGKILL and program.saving and program.is_saving(self._out):
            place = _INSIDE
        detail = f"{sent.name} {place}, kill {number}: {outcome.detail}"
        return place if was_alive else "", dataclasses.replace(outcome, detail=detail)

    def _check_whole(self) -> Outcome | None:
        """Checks a run that is over, or can't resume: it must leave all its output, or none."""
        if not (self._out / "model").exists() and not self._one.program.resumes:
            return None
        return self._compare()

    def _finish(self) -> Outcome:
        run = self._start()
        outcome = processes.judge(run, run.end()).of_intact()
        if outcome.what != outcomes.FINISHED:
            return dataclasses.replace(outcome, detail=f"the last run: {outcome.detail}")
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
            return Outcome(outcomes.WRONG, f"not as when undisturbed: {', '.join(names)[:200]}")
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
    # So many steps that only the loss ends the run.
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
