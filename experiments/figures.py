"""Draws a study: curves of its arms, and the differences that its claims are about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from albert_tf.console import figures
from experiments.intervals import Verdict
from experiments.outcomes import Row, metrics_of
from experiments.study import Study


def draw(study: Study, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> bytes:
    """Returns the figure, as a PNG: on the left what the cells are, on the right the claims."""
    figure = figures.new_figure(11, 1.2 + max(3.2, 0.5 * len(study.claims)))
    left, right = figure.subplots(1, 2)
    if any(row.curve for row in rows):
        _draw_curves(left, rows)
    else:
        _draw_cells(left, study, rows)
    if study.claims:
        _draw_claims(right, study, verdicts)
    else:
        right.set_axis_off()
    return figures.png(figure)


def _draw_claims(right, study: Study, verdicts: Sequence[Verdict]) -> None:
    right.axvline(0, color="grey", linewidth=1)
    for i, (claim, found) in enumerate(zip(study.claims, verdicts, strict=True)):
        if found.low is not None:
            right.plot([found.low, found.high], [i, i], color="C0", linewidth=3, alpha=0.5)
        if found.over_documents:
            right.plot(found.over_documents, [i, i], color="C0", linewidth=1)
        if found.gain is not None:
            right.plot(found.gain, i, "o", color="C0")
        effects = [-claim.effect, claim.effect] if claim.equal else [claim.effect]
        right.plot(effects, [i] * len(effects), "|", color="C3", markersize=14)
    right.set_yticks(
        range(len(study.claims)),
        [
            f"{claim.better}\n{'equal to' if claim.equal else 'over'} {claim.worse}\n{claim.metric}"
            for claim in study.claims
        ],
        fontsize=7,
    )
    right.set_ylim(len(study.claims) - 0.5, -0.5)
    right.set_xlabel(
        "paired difference, above 0 as claimed\n"
        "thin: for other documents, too; red: the effect to detect"
    )


def _draw_curves(axes, rows: Sequence[Row]) -> None:
    arms = dict.fromkeys(row.arm for row in rows)
    for i, arm in enumerate(arms):
        for j, row in enumerate(row for row in rows if row.arm == arm and row.curve):
            tokens, losses = np.transpose(row.curve)
            label = arm if j == 0 else None
            axes.plot(tokens / 1e6, losses, color=f"C{i % 10}", alpha=0.7, label=label)
    unigram = {row.unigram_loss for row in rows if row.curve and not row.finetuned}
    for loss in unigram:
        axes.axhline(loss, color="grey", linestyle=":")
    axes.set_xlabel("million tokens, without those of a start; dotted: the unigram loss")
    axes.set_ylabel("masked-LM training loss")
    # Losses fall, so that corner is free; to find it by itself can take Matplotlib a second.
    axes.legend(fontsize=8, loc="upper right")


def _draw_cells(axes, study: Study, rows: Sequence[Row]) -> None:
    metric = next(iter(metrics_of(study.claims, rows)), "nothing measured")
    arms = list(dict.fromkeys(row.arm for row in rows))
    for row in rows:
        if metric in row.metrics:
            axes.plot(row.metrics[metric], arms.index(row.arm), "o", color="C0", alpha=0.6)
    axes.set_yticks(range(len(arms)), arms, fontsize=8)
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_xlabel(metric)
