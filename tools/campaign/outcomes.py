"""Counts the outcomes of attempts, and knows which of them are defects."""

from __future__ import annotations

import collections
import dataclasses
import threading

# Correct outcomes.
ACCEPTED = "accepted"
REFUSED = "refused"
STOPPED = "stopped"
FINISHED = "finished"
# Outcomes that are defects for any input.
TRACEBACK = "traceback"
NAMELESS = "nameless"
HANG = "hang"
CRASH = "crash"
MEMORY = "memory"
WRONG = "wrong"
DEFECTS = (TRACEBACK, NAMELESS, HANG, CRASH, MEMORY, WRONG)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of an attempt."""

    what: str
    detail: str = ""

    def of_intact(self) -> Outcome:
        """Returns the outcome for an intact input: a refusal is a defect."""
        return self if self.what != REFUSED else Outcome(WRONG, self.detail)


class Tally:
    """A table of outcomes by subject, and the defects among them. Any thread may add to it.

    It counts nothing once it is `closed`: a signal that ends the campaign may have ended its
    processes, too.
    """

    def __init__(self) -> None:
        self._counts: dict[str, collections.Counter[str]] = {}
        self._adding = threading.Lock()
        self.defects: list[str] = []
        self.closed = False

    def add(self, subject: str, outcome: Outcome, attempt: str = "") -> None:
        """Counts an outcome; a defect is kept with what is needed to reproduce it."""
        with self._adding:
            if self.closed:
                return
            self._counts.setdefault(subject, collections.Counter())[outcome.what] += 1
            if outcome.what in DEFECTS:
                self.defects.append(f"{outcome.what}: {subject} {attempt}: {outcome.detail}")

    @property
    def subjects(self) -> set[str]:
        """The subjects that have outcomes."""
        return set(self._counts)

    def total(self) -> int:
        """Number of outcomes."""
        return sum(counts.total() for counts in self._counts.values())

    def lines(self) -> list[str]:
        """The table: a row per subject, a column per outcome that occurred."""
        order = (ACCEPTED, REFUSED, STOPPED, FINISHED, *DEFECTS)
        seen = [what for what in order if any(counts[what] for counts in self._counts.values())]
        rows = [["", *seen]]
        rows += [
            [subject, *(str(counts[what] or "-") for what in seen)]
            for subject, counts in self._counts.items()
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
