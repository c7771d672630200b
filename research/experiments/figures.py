"""Draws a study: curves of its arms, and the differences that its claims are about."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.console import figures
from research.experiments.claims import Claim
from research.experiments.intervals import Verdict
from research.experiments.outcomes import Row, metrics_of
from research.experiments.study import Study


class _Quantity(NamedTuple):
    """The quantity that a metric measures.

    Attributes:
      name: In words.
      axis: The label of an axis of differences; better is to the right.
      unit: The unit in which values are drawn.
      scale: The factor from the metric to that unit.
    """

    name: str
    axis: str
    unit: str
    scale: float


def _quantity(metric: str) -> _Quantity:
    *test, kind = metric.rsplit(".", 1)
    names = {
        "masked_lm_loss": "masked-LM loss",
        "masked_lm_accuracy": "masked-LM accuracy",
        "sentence_order_loss": "loss of the pairs' labels",
        "sentence_order_accuracy": "accuracy on pairs",
        "probe_accuracy": "accuracy on pairs of a fresh probe",
        "word_loss": "masked-LM loss by word",
        "gap_loss": "gap between the two tests",
        "eval_accuracy": "accuracy",
        "loss": "loss",
    }
    name = names.get(kind, kind) + (f", {test[0].upper()} test" if test else "")
    if kind.endswith("loss"):
        per = "word" if kind == "word_loss" else "piece"
        unit = f"nats per {per}"
        return _Quantity(name, f"how much lower the first one's loss is, {unit}", unit, 1.0)
    if kind.endswith("accuracy"):
        axis = "how much higher the first one's accuracy is, percentage points"
        return _Quantity(name, axis, "%", 100.0)
    return _Quantity(name, f"how much better the first one is, {kind}", "", 1.0)


def draw(study: Study, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> bytes:
    """Returns the figure, as a PNG: on the left the cells' results, on the right the claims."""
    # One panel for each unit of claims.
    panels: dict[str, list[tuple[Claim, Verdict]]] = {}
    for claim, found in zip(study.claims, verdicts, strict=True):
        panels.setdefault(_quantity(claim.metric).axis, []).append((claim, found))
    figure = figures.new_figure(13, 2 + max(3.2, 0.55 * len(study.claims) + 0.5 * len(panels)))
    figure.suptitle(textwrap.fill(study.question, 110), fontsize=12)
    sizes = [1 + len(claims) for claims in panels.values()]
    grid = figure.add_gridspec(max(len(sizes), 1), 2, height_ratios=sizes or None)
    left = figure.add_subplot(grid[:, 0])
    if any(row.curve for row in rows):
        _draw_curves(left, study, rows)
    else:
        _draw_cells(left, study, rows)
    for i, (axis, claims) in enumerate(panels.items()):
        right = figure.add_subplot(grid[i, 1])
        _draw_claims(right, claims)
        right.set_xlabel(axis, fontsize=9)
        if not i:
            right.set_title("Differences that claims are about", fontsize=11)
    if panels:
        marks = right.get_legend_handles_labels()
        figure.legend(*marks, loc="outside lower right", ncols=2, fontsize=8, frameon=False)
    return figures.png(figure)


def _draw_claims(axes, claims: Sequence[tuple[Claim, Verdict]]) -> None:
    axes.axvline(0, color="grey", linewidth=1)
    seen: set[str] = set()

    def plot(values, row: int, label: str, **style) -> None:
        # Each kind of mark appears once in the legend.
        label, _ = ("_" if label in seen else label), seen.add(label)
        scaled = scale * np.asarray(values)
        axes.plot(scaled, [row] * np.size(scaled), label=label, **style)

    for i, (claim, found) in enumerate(claims):
        scale = _quantity(claim.metric).scale
        if found.low is not None:
            thick = {"color": figures.BLUE, "linewidth": 5, "alpha": 0.4}
            plot([found.low, found.high], i, "95 % interval over seeds", **thick)
        if found.over_documents:
            thin = {"color": figures.BLUE, "linewidth": 1.2}
            plot(found.over_documents, i, "95 % interval, for other documents too", **thin)
        if found.gain is not None:
            plot(found.gain, i, "mean over seeds", color=figures.BLUE, marker="o", linestyle="")
        mark = {"color": figures.RED, "marker": "|", "markersize": 14, "linestyle": ""}
        effects = [-claim.effect, claim.effect] if claim.equal else [claim.effect]
        plot(effects, i, "the effect that the study looks for", **mark)
    names = [
        f"{claim.better}\nvs. {claim.worse}{': equal' if claim.equal else ''}\n"
        f"{_quantity(claim.metric).name}"
        for claim, _ in claims
    ]
    axes.set_yticks(range(len(claims)), names, fontsize=7)
    axes.set_ylim(len(claims) - 0.5, -0.5)


def _draw_curves(axes, study: Study, rows: Sequence[Row]) -> None:
    arms = dict.fromkeys(row.arm for row in rows)
    for i, arm in enumerate(arms):
        curves = [np.transpose(row.curve) for row in rows if row.arm == arm and row.curve]
        if not curves:
            continue
        length = min(curve.shape[1] for curve in curves)
        tokens = curves[0][0, :length] / 1e6
        losses = np.stack([curve[1, :length] for curve in curves])
        style = figures.style(i)
        # The arms' markers are staggered, so that equal curves stay distinguishable.
        axes.plot(tokens, losses.mean(0), label=arm, markevery=(i % 4, 4), **style)
        low, high = losses.min(0), losses.max(0)
        axes.fill_between(tokens, low, high, color=style["color"], alpha=0.15, linewidth=0)
    unigram = {row.unigram_loss for row in rows if row.curve and not row.finetuned}
    for i, loss in enumerate(sorted(unigram)):
        label = "guessing by frequency" if not i else None
        axes.axhline(loss, color="grey", linestyle=":", label=label)
    started = any("start" in arm for arm in study.arms.values())
    axes.set_title("Training: mean of the seeds, and their range", fontsize=11)
    axes.set_xlabel("million tokens" + (", without those of an arm's start" if started else ""))
    axes.set_ylabel("masked-LM loss in training, nats per piece")
    figures.legend_beside(axes)


def _draw_cells(axes, study: Study, rows: Sequence[Row]) -> None:
    metric = next(iter(metrics_of(study.claims, rows)), None)
    arms = list(dict.fromkeys(row.arm for row in rows))
    name, _, unit, scale = _quantity(metric or "nothing measured")
    for i, arm in enumerate(arms):
        values = [scale * r.metrics[metric] for r in rows if r.arm == arm and metric in r.metrics]
        axes.plot(values, [i] * len(values), "o", color=figures.BLUE, alpha=0.6)
        if values:
            axes.plot(np.mean(values), i, "|", color=figures.RED, markersize=16)
    axes.set_title("Each seed's result; the bar is their mean", fontsize=11)
    axes.set_yticks(range(len(arms)), arms, fontsize=8)
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.set_xlabel(f"{name}, {unit}" if unit else name)
