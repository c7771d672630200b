"""Kept metrics -> rows of cells, their gates, and the verdicts on claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from research.experiments.claims import MAJORITY, Claim, check_metric
from research.experiments.intervals import Verdict, judge, resample
from research.experiments.kept import Kept
from research.experiments.plan import Cell, Plan

# A masked LM that is not this much better (in nats) than guessing by frequency has not learned.
LEARNED_NATS = 0.3
_NO_SCORES = {"global_step", "eval_majority"}


@dataclasses.dataclass(frozen=True)
class Row:
    """A cell's results.

    Attributes:
      arm, seed: Which cell.
      is_finished: Whether it has run, with all that judges it.
      metrics: By name, after the test's name and a dot if the study names tests; {} if not run.
      finetuned: Whether it is a fine-tuning: its masked-LM and unigram loss are then its start's.
      masked_lm_loss: On the first test; None if it was not run.
      curve: [tokens, masked-LM loss in training] of each stretch between checkpoints.
      documents: By metric, its sum and weight in each held-out document; {} if not measured.
      unigram_loss: On the first test; None in fine-tuning from weights not trained here.
      failed: Why it has no metrics although it ran, or None.
      seconds: The training's duration.
      machine, commit: The processor that it trained on, and the commit of the code.
    """

    arm: str
    seed: int
    is_finished: bool
    metrics: dict[str, float]
    finetuned: bool
    masked_lm_loss: float | None
    curve: list[list[float]]
    documents: dict[str, list[list[float]]]
    unigram_loss: float | None
    failed: str | None
    seconds: float | None
    machine: str
    commit: str

    @property
    def learned(self) -> bool:
        """Whether it can be judged: its model, or its start, is well below the unigram loss."""
        if self.unigram_loss is None or not self.metrics:
            return bool(self.metrics)
        loss = self.masked_lm_loss
        return loss is not None and loss < self.unigram_loss - LEARNED_NATS

    @property
    def tokens_to_learn(self) -> float | None:
        """Tokens until the training loss was that far below the unigram loss; None if never."""
        if self.finetuned or self.unigram_loss is None:
            return None
        below = self.unigram_loss - LEARNED_NATS
        return next((tokens for tokens, loss in self.curve if loss < below), None)


def read(plan: Plan, kept: Kept) -> list[Row]:
    """Returns a row for each cell of a plan, run or not."""
    return [_row(cell, kept, plan.gap) for cell in plan.cells]


def metrics_of(claims: Sequence[Claim], rows: Sequence[Row]) -> list[str]:
    """Returns the metrics that claims are about; without claims, all that were measured."""
    measured = sorted({name for row in rows for name in row.metrics} - _NO_SCORES)
    return list(dict.fromkeys(claim.metric for claim in claims)) or measured


def verdict(claim: Claim, rows: Sequence[Row], gap: Sequence[str] = ()) -> Verdict:
    """Judges a claim by the seeds for which both arms' cells have learned."""
    finetuned = sorted({name for row in rows if row.finetuned for name in row.metrics})
    if finetuned:
        check_metric(claim, finetuned)
    better = _by_seed(rows, claim.better, claim.metric)
    guessing = claim.worse == MAJORITY
    worse = _by_seed(rows, claim.better if guessing else claim.worse, claim.worse_metric)
    pairs = [(better[seed], worse[seed]) for seed in sorted(set(better) & set(worse))]
    gains = [
        claim.sign * (one.metrics[claim.metric] - other.metrics[claim.worse_metric])
        for one, other in pairs
    ]
    found = judge(gains, claim.effect, claim.equal)
    unknown = guessing or found.low is None
    documents = None if unknown else _over_documents(claim, pairs, gap)
    return dataclasses.replace(found, over_documents=documents)


def _by_seed(rows: Sequence[Row], arm: str, metric: str) -> dict[int, Row]:
    """Returns the finished cells of an arm that have learned and have a metric."""
    cells = [row for row in rows if row.arm == arm and row.is_finished]
    return {row.seed: row for row in cells if row.learned and metric in row.metrics}


def _over_documents(
    claim: Claim, pairs: Sequence[tuple[Row, Row]], gap: Sequence[str]
) -> tuple[float, float] | None:
    """Returns `resample` of the cells; None if not measured, too few, or of different texts."""
    of_gap = [f"{test}.masked_lm_loss" for test in gap]
    found = []
    for metric in of_gap if claim.metric == "gap_loss" else [claim.metric]:
        sums = [[row.documents.get(metric, []) for row in pair] for pair in pairs]
        sizes = {len(documents) for pair in sums for documents in pair}
        if len(pairs) < 2 or len(sizes) > 1 or min(sizes) < 2:
            return None
        of_arms = np.swapaxes(np.array(sums), 0, 1)
        # Some documents have no record: they are too short, or come after the last batch.
        counted = of_arms[..., 1].any(axis=(0, 1))
        if counted.sum() < 2:
            return None
        found.append(tuple(of_arms[:, :, counted]))
    (better, worse), *less = found
    return resample(better, worse, claim.sign, *less)


def _row(cell: Cell, kept: Kept, gap: Sequence[str]) -> Row:
    records = {key: kept.get(key) for key in cell.step_keys()}
    trained = records[cell.pretrain or cell.finetune] or {}
    metrics: dict[str, float] = {}
    documents: dict[str, list[list[float]]] = {}
    own = {"": cell.finetune} if cell.finetune else cell.results
    for test, key in [*own.items(), *cell.measures.items()]:
        for part, target in (("metrics", metrics), ("documents", documents)):
            found = (records[key] or {}).get(part, {})
            target |= {f"{test}.{name}" if test else name: found[name] for name in found}
    for test, key in cell.words.items():
        _add_word_loss(metrics, documents, f"{test}." if test else "", records[key])
    losses = [metrics.get(f"{test}.masked_lm_loss") for test in gap]
    if losses and None not in losses:
        metrics["gap_loss"] = losses[0] - losses[1]
    first, guessing = next(iter(cell.unigram.items()), ("", None))
    unigram = (records[guessing] or {}).get("metrics", {}) if guessing else {}
    evaluated = (records[cell.results[first]] or {}).get("metrics", {}) if cell.results else {}
    return Row(
        arm=cell.arm,
        seed=cell.seed,
        is_finished=cell.is_finished(kept),
        metrics=metrics,
        finetuned=bool(cell.finetune),
        masked_lm_loss=evaluated.get("masked_lm_loss"),
        curve=trained.get("curve", []),
        documents=documents,
        unigram_loss=unigram.get("unigram_loss", float("nan")) if guessing else None,
        failed=trained.get("failed"),
        seconds=trained.get("seconds"),
        machine=trained.get("machine", {}).get("processor", ""),
        commit=trained.get("commit") or "",
    )


def _add_word_loss(
    metrics: dict[str, float],
    documents: dict[str, list[list[float]]],
    test: str,
    counted: dict[str, Any] | None,
) -> None:
    """Adds nats per word: nats per masked piece, times the held-out text's pieces per word."""
    piece, word = f"{test}masked_lm_loss", f"{test}word_loss"
    if counted and piece in metrics:
        ratio = counted["metrics"]["pieces"] / counted["metrics"]["words"]
        metrics[word] = metrics[piece] * ratio
        if piece in documents:
            documents[word] = [[total * ratio, weight] for total, weight in documents[piece]]
