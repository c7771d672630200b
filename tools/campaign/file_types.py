"""Types of files: how each is made, damaged, read, and how the result is judged."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import pathlib
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from albert_tf.console import errors
from albert_tf.training.trainer import NonFiniteLossError
from tools.campaign import outcomes
from tools.campaign.mutators import Mutator
from tools.campaign.outcomes import Outcome

# Reading a file of a few kilobytes must not take more memory.
_MOST_BYTES = 2 << 30


@dataclasses.dataclass(frozen=True)
class Evidence:
    """An accepted file, to be judged.

    Attributes:
      before: The file's bytes, intact.
      after: Its bytes, damaged.
      expected: The reader's result for the intact file.
      result: Its result for the damaged one.
      suffix: The file name's suffix.
    """

    before: bytes
    after: bytes
    expected: Any
    result: Any
    suffix: str


@dataclasses.dataclass(frozen=True)
class FileType:
    """A type of file.

    Attributes:
      name: Its name in the table.
      make: Writes intact files into an empty folder.
      mutators: How to damage its files.
      read: The project's own reader of the folder; its results can be compared.
      judge: Says what is wrong with an accepted file; None if nothing provably is.
      targets: Globs of the files to damage, between spaces; "": the type's name.
      named: Whether a refusal must name the file, or the folder if that was the argument.
      slow: Whether it takes seconds to read; it then gets a tenth of the attempts.
    """

    name: str
    make: Callable[[pathlib.Path], None]
    mutators: tuple[Mutator, ...]
    read: Callable[[pathlib.Path], Any]
    judge: Callable[[Evidence], str | None]
    targets: str = ""
    named: bool = True
    slow: bool = False


def same(evidence: Evidence) -> str | None:
    """Judges files whose checksums cover everything: any other result is wrong."""
    return None if evidence.result == evidence.expected else "read with other content"


def part(evidence: Evidence) -> str | None:
    """Judges files whose items have checksums of their own: the intact file must have each item."""
    known = set(evidence.expected)
    return None if known.issuperset(evidence.result) else "has an item that the intact file lacks"


class Bench:
    """A folder in which one type of file is damaged again and again."""

    def __init__(self, file_type: FileType, folder: pathlib.Path, seed: int) -> None:
        self._type, self._seed = file_type, seed
        self._whole, self._work = folder / "whole", folder / "work"
        self._whole.mkdir(parents=True)
        file_type.make(self._whole)
        patterns = (file_type.targets or file_type.name).split()
        self._files = sorted({path for each in patterns for path in self._whole.rglob(each)})
        assert self._files, f"{file_type.name}: nothing to damage"
        # Read the intact files in the same place as the damaged ones: some results have a path.
        self._restore()
        outcome, self._expected = self._read()
        assert outcome is None, f"{file_type.name}: the intact file is refused: {outcome}"

    def attempt(self, number: int) -> tuple[str, Outcome]:
        """Damages a file and reads it; returns how it was damaged, and the outcome."""
        rng = random.Random(f"{self._seed} {self._type.name} {number}")
        original = rng.choice(self._files)
        path = self._work / original.relative_to(self._whole)
        before = original.read_bytes()
        for _ in range(20):
            mutate = rng.choice(self._type.mutators)
            after = mutate(before, rng)
            if after != before:
                break
        self._restore()
        path.write_bytes(after)
        how = f"{path.relative_to(self._work)}, {mutate.__name__}, number {number}"
        outcome, result = self._read()
        if outcome and outcome.what == outcomes.REFUSED:
            names = (path.name, str(self._work))
            if self._type.named and not any(name in outcome.detail for name in names):
                outcome = Outcome(outcomes.NAMELESS, outcome.detail)
        elif outcome is None:
            evidence = Evidence(before, after, self._expected, result, path.name)
            try:
                fault = self._type.judge(evidence)
            except Exception as error:  # The judge reads the damaged file, too.
                fault = f"the check can't read it: {error!r}"[:300]
            outcome = Outcome(outcomes.WRONG, fault) if fault else Outcome(outcomes.ACCEPTED)
        return how, outcome

    def _restore(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        shutil.copytree(self._whole, self._work)

    def _read(self) -> tuple[Outcome | None, Any]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result, outcome = None, None
        try:
            with in_one_line():
                result = self._type.read(self._work)
        except SystemExit as end:
            outcome = refusal(str(end))
        except BaseException as error:
            outcome = Outcome(outcomes.TRACEBACK, f"{type(error).__name__}: {error}"[:300])
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
        if grown > _MOST_BYTES:
            outcome = Outcome(outcomes.MEMORY, f"{grown:,} bytes")
        return outcome, result


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """The error handling of every script, printing nothing else."""
    expected = errors.in_one_line(NonFiniteLossError)
    with contextlib.redirect_stdout(io.StringIO()), expected:
        yield


def refusal(message: str) -> Outcome:
    """Returns the outcome of a script that exited with a message."""
    if not message.startswith("error: "):
        return Outcome(outcomes.TRACEBACK, f"ended with {message!r}"[:300])
    if len(message.splitlines()) > 1 or not message.isprintable():
        return Outcome(outcomes.TRACEBACK, f"not a single printable line: {message!r}"[:400])
    return Outcome(outcomes.REFUSED, message)
