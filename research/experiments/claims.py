"""Claims of a study: what the paper says of two arms."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from research.experiments.arms import require

_PUBLISHED = pathlib.Path(__file__).parent / "published/downstream.csv"
# Measured on each test of a pre-trained model; probes, and losses by word, only on request.
METRICS = [
    "loss",
    "masked_lm_accuracy",
    "masked_lm_loss",
    "sentence_order_accuracy",
    "sentence_order_loss",
    "sentence_order_majority",
]
# Metrics that depend on how text is split into pieces.
BY_PIECE = {"loss", "masked_lm_accuracy", "masked_lm_loss", "gap_loss"}
# In place of the worse arm: always guessing the more frequent label.
MAJORITY = "majority"
# Keys for the paper's numbers in a claim, and an optional one.
_PAPER, _PAPER_UNIT = {"table", "column", "better", "worse"}, "unit"


@dataclasses.dataclass(frozen=True)
class Claim:
    """The paper's comparison of two arms.

    Attributes:
      text: The claim, in words.
      metric: One of a cell's metrics, such as "masked_lm_loss". For losses lower is better.
      better, worse: The arms' names; `worse` can be MAJORITY.
      effect: The smallest difference worth seeing, in the metric's unit.
      equal: Whether they are claimed to differ by less than that instead.
      paper: The two published numbers with their table and column; empty if it prints none. If
        they are of the same metric, `unit` is the factor that converts them to the claim's unit.
    """

    text: str
    metric: str
    better: str
    worse: str
    effect: float
    equal: bool = False
    paper: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def sign(self) -> int:
        """1 if a higher metric is better, -1 if a lower one is."""
        return sign_of(self.metric)

    @property
    def worse_metric(self) -> str:
        """The metric of the other side: the better arm's majority baseline, or the claim's own."""
        if self.worse != MAJORITY:
            return self.metric
        test, dot, _ = self.metric.rpartition(".")
        return f"{test}{dot}sentence_order_majority"

    @property
    def paper_effect(self) -> float | None:
        """The paper's own difference, in the metric's unit; None if it is of another metric."""
        if _PAPER_UNIT not in self.paper:
            return None
        better, worse = self.paper["numbers"]
        return (better - worse) * self.paper[_PAPER_UNIT]


def sign_of(metric: str) -> int:
    """Returns 1 if a higher metric is better, -1 if a lower one is."""
    return -1 if metric.endswith("loss") else 1


def published(table: str) -> dict[str, dict[str, str]]:
    """Returns the rows of one of the paper's tables of downstream results, by their first cell."""
    with open(_PUBLISHED, encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == table]
    for row in rows:
        row.update(pair.split("=") for pair in row["extra"].split(";") if "=" in pair)
    return {row["row"]: row for row in rows}


def check_metrics(
    claims: Iterable[Claim], tests: Iterable[str], probe: bool, per_word: bool, gap: Sequence[str]
) -> None:
    """Raises ValueError unless a pre-training study measures the metrics of all its claims."""
    asked = {"probe_accuracy": probe, "word_loss": per_word}
    names = METRICS + [name for name, is_asked in asked.items() if is_asked]
    known = [f"{test}.{name}" for test in tests for name in names] or names
    if gap:
        known.append("gap_loss")
    for claim in claims:
        check_metric(claim, known)


def check_metric(claim: Claim, known: Sequence[str]) -> None:
    """Raises ValueError unless a claim's metric is one of the known ones."""
    right = claim.metric in known
    require(right, f"claim {claim.text!r}: metric", f"one of {known}", claim.metric)


def read(row: dict[str, Any], arms: Iterable[str]) -> Claim:
    """Reads a claim about some arms; raises ValueError if it is not valid."""
    claim = Claim(**row)
    can_be_guessed = claim.metric.endswith(("sentence_order_accuracy", "probe_accuracy"))
    known = [*arms, MAJORITY] if can_be_guessed else list(arms)
    require(claim.better in arms, f"claim {claim.text!r}", f"arms among {list(arms)}", claim.better)
    require(claim.worse in known, f"claim {claim.text!r}", f"arms among {known}", claim.worse)
    require(claim.effect > 0, f"claim {claim.text!r}: effect", "a number above 0", claim.effect)
    right = isinstance(claim.equal, bool)
    require(right, f"claim {claim.text!r}: equal", "true or false", claim.equal)
    if claim.paper:
        numbers = _numbers(claim.paper, f"claim {claim.text!r}: paper")
        right = claim.equal or numbers[0] > numbers[1]
        expected = "a direction that agrees with the paper's numbers"
        require(right, f"claim {claim.text!r}", expected, numbers)
        claim.paper["numbers"] = numbers
    return claim


def _numbers(paper: Mapping[str, Any], where: str) -> list[float]:
    """Returns the published numbers of the better arm and the worse one."""
    expected = f"the keys {sorted(_PAPER)}, perhaps {_PAPER_UNIT}"
    require(set(paper) - {_PAPER_UNIT} == _PAPER, where, expected, sorted(paper))
    table, column = published(str(paper["table"])), paper["column"]
    numbers = []
    for row in (paper["better"], paper["worse"]):
        require(row in table, where, f"a row of table {paper['table']}: {list(table)}", row)
        numeric = _numeric(table[row])
        expected = f"a column with a number for {row!r}: {list(numeric)}"
        require(column in numeric, where, expected, column)
        numbers.append(numeric[column])
    return numbers


def _numeric(row: Mapping[str, str]) -> dict[str, float]:
    """Returns the cells of a published row that are numbers."""
    found = {}
    for column in row.keys() - {"table", "row"}:
        with contextlib.suppress(ValueError):
            found[column] = float(row[column])
    return dict(sorted(found.items()))
