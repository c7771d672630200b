"""Writes a study's report: Markdown, CSV, JSON and a figure, from the metrics that are kept."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence

from experiments import figures, outcomes, tuning
from experiments.claims import Claim, sign_of
from experiments.intervals import CONFIDENCE, Verdict
from experiments.outcomes import LEARNED_NATS, Row
from experiments.plan import TRIAL_SEED, Plan
from experiments.study import Scale, Study

PAPER_TOKENS = 125_000 * 4096 * 512


def write(
    study: Study, scale: Scale, plan: Plan, kept: pathlib.Path, directory: pathlib.Path
) -> None:
    """Writes the report on what has been run of a study.

    Args:
      study: The study.
      scale: The scale it is run at.
      plan: Its steps.
      kept: Directory of finished steps' metrics.
      directory: Receives report.md, cells.csv, claims.json and figure.png.

    Raises:
      ValueError: If metrics are damaged.
    """
    rows = outcomes.read(plan, kept)
    verdicts = [outcomes.verdict(claim, rows, plan.gap) for claim in study.claims]
    directory.mkdir(parents=True, exist_ok=True)
    _write_csv(directory / "cells.csv", rows)
    found = [
        {**dataclasses.asdict(claim), **dataclasses.asdict(verdict)}
        for claim, verdict in zip(study.claims, verdicts, strict=True)
    ]
    (directory / "claims.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (directory / "figure.png").write_bytes(figures.draw(study, rows, verdicts))
    lines = [*_lines(study, scale, plan, rows, verdicts), *_rates(study, scale, kept)]
    text = "\n".join(lines) + "\n"
    (directory / "report.md").write_text(text, encoding="utf-8")


def _lines(
    study: Study, scale: Scale, plan: Plan, rows: Sequence[Row], verdicts: Sequence[Verdict]
) -> Iterable[str]:
    run = [row for row in rows if row.is_finished]
    yield f"# {study.question}"
    yield ""
    yield f"Paper: {study.paper}"
    yield ""
    yield f"Scale `{scale.name}`: {scale.about}. {len(run)} of {len(rows)} cells have run."
    machines = sorted({row.machine for row in run if row.machine})
    if machines:
        yield f"Machine: {'; '.join(machines)}."
    if scale.name == "smoke":
        yield (
            "The models are far too small, and trained too briefly, to show anything: no figure "
            "here is a result."
        )
    yield ""
    yield "![Curves and differences](figure.png)"
    yield ""
    yield from _claims(study, verdicts)
    if any(cell.finetune for cell in plan.cells):
        yield from _finetuning(study, rows)
    else:
        yield from _arms(rows, plan)
        yield from _published(study, verdicts, plan)


def _claims(study: Study, verdicts: Sequence[Verdict]) -> Iterable[str]:
    yield "## Claims"
    yield ""
    yield (
        f"Differences are paired by seed, above 0 if as claimed, with {CONFIDENCE:.0%} "
        "t-intervals, which give the verdicts; the interval beside each is for other held-out "
        "documents, too. Pairs: seeds with which both arms learned. Least: the smallest mean "
        "difference that these pairs could have distinguished from 0. Gate: whether that is at "
        "most the effect to detect."
    )
    yield ""
    rows = []
    for claim, found in zip(study.claims, verdicts, strict=True):
        gate = "could have detected it" if found.could_see else "could not have detected it"
        if found.low is None:
            gate = "fewer than two pairs" if found.pairs < 2 else "no spread"
        interval = _interval(None if found.low is None else (found.low, found.high))
        arms = f"{claim.better} {'=' if claim.equal else 'better than'} {claim.worse}"
        intervals = [interval, _interval(found.over_documents)]
        seen = [found.pairs, _number(found.gain, "+.4f"), *intervals, _number(found.least, ".4f")]
        ends = [f"{claim.effect:g}", gate, f"**{found.verdict}**"]
        rows.append([claim.text, arms, f"`{claim.metric}`", *seen, *ends])
    heads = "Claim|Arms|Metric|Pairs|Difference|Interval|Documents, too|Least|Effect|Gate|Verdict"
    yield from _table(heads.split("|"), rows)


def _arms(rows: Sequence[Row], plan: Plan) -> Iterable[str]:
    yield "## Arms"
    yield ""
    yield (
        f"A cell has learned if its masked-LM loss is {LEARNED_NATS} nats below the unigram loss "
        "(guessing by frequency). Other cells count in no verdict. Means over seeds, with the "
        "standard deviation; tokens: all that a model has seen, its start's among them; tokens to "
        "learn: the median, by the training loss, without its start's."
    )
    yield ""
    names = list(dict.fromkeys(name for row in rows for name in row.metrics if _is_shown(name)))
    table = []
    for arm, cells in _by_arm(rows).items():
        run = [row for row in cells if row.metrics]
        tokens = [row.tokens_to_learn for row in run if row.tokens_to_learn]
        unigram = [row.unigram_loss for row in run if not math.isnan(row.unigram_loss)]
        known = [[row.metrics[name] for row in run if name in row.metrics] for name in names]
        table.append(
            [
                arm,
                f"{sum(row.is_finished for row in cells)} of {len(cells)}",
                sum(row.failed is not None for row in cells),
                sum(row.learned for row in cells),
                f"{plan.tokens(arm):,}",
                f"{statistics.median(tokens):,.0f}" if tokens else "",
                f"{unigram[0]:.3f}" if unigram else "",
                *map(_mean, known),
                _mean([row.seconds for row in run if row.seconds], ".0f"),
            ]
        )
    heads = ["Arm", "Run", "Diverged", "Learned", "Tokens", "Tokens to learn", "Unigram loss"]
    yield from _table([*heads, *(f"`{name}`" for name in names), "Seconds"], table)


def _rates(study: Study, scale: Scale, kept: pathlib.Path) -> Iterable[str]:
    tried = tuning.losses(study, scale, kept)
    if not tried:
        return
    yield "## Learning rates"
    yield ""
    yield (
        f"Masked-LM loss of seed {TRIAL_SEED}, which counts nowhere else, after "
        f"{scale.tuning.share_of_steps:.0%} of a cell's steps. The best is the arm's rate: if it "
        "is the lowest or the highest that was tried, a better one may lie beyond."
    )
    yield ""
    common = scale.settings["pretrain"]["learning_rate"]
    settled = tuning.settle(study, scale, kept)
    if tuning.untried(study, scale, kept):
        yield f"**Not all have run: until then every arm above has the scale's rate, {common:g}.**"
        yield ""
    elif settled.arms != study.arms:
        yield (
            f"**At the best rates {tuning.finished(settled, scale, kept)} cells have run so far: "
            f"until there are as many as at the scale's rate, {common:g}, every arm above has "
            "that.**"
        )
        yield ""
    rows = []
    for arm, losses in tried.items():
        best = min((loss for loss in losses.values() if not math.isnan(loss)), default=math.nan)
        rows.append([arm, *(_trial(loss, best) for loss in losses.values())])
    yield from _table(["Arm", *(f"{rate:g}" for rate in scale.tuning.rates)], rows)


def _trial(loss: float, best: float) -> str:
    if math.isnan(loss):
        return "not run"
    found = f"{loss:.4f}" if math.isfinite(loss) else "diverged"
    return f"**{found}**" if loss == best else found


def _finetuning(study: Study, rows: Sequence[Row]) -> Iterable[str]:
    for metric in outcomes.metrics_of(study.claims, rows):
        yield f"## Runs: `{metric}`"
        yield ""
        table, medians = [], {}
        for arm, cells in _by_arm(rows).items():
            values = [row.metrics[metric] for row in cells if metric in row.metrics]
            failed = sum(row.failed is not None for row in cells)
            range_of = ["", "", ""]
            if values:
                medians[arm] = statistics.median(values)
                range_of = [f"{x:.4f}" for x in (medians[arm], min(values), max(values))]
            table.append([arm, f"{len(values) + failed} of {len(cells)}", failed, *range_of])
        heads = ["Arm", "Run", "Diverged", "Median", "Lowest", "Highest"]
        yield from _table(heads, table)
        if medians:
            best = max(medians, key=lambda arm: sign_of(metric) * medians[arm])
            yield f"Best median, selected on the same runs: {best}."
            yield ""


def _published(study: Study, verdicts: Sequence[Verdict], plan: Plan) -> Iterable[str]:
    judged = zip(study.claims, verdicts, strict=True)
    pairs = [(claim, found) for claim, found in judged if claim.paper]
    if not pairs:
        return
    counts = sorted({plan.tokens(cell.arm) for cell in plan.cells})
    ours = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    yield "## The paper's numbers"
    yield ""
    yield (
        f"As printed, after at least {PAPER_TOKENS:,} tokens per run; a cell here has seen "
        f"{ours}. Text, model size and, unless a difference is given, metric differ: only the "
        "signs can be compared."
    )
    yield ""
    heads = ["Claim", "Table", "Column", "Better", "", "Worse", ""]
    rows = [_paper_row(claim) for claim, _ in pairs]
    if any(claim.paper_effect for claim, _ in pairs):
        heads += ["Difference", "Least here"]
        rows = [row + _seen(*pair) for row, pair in zip(rows, pairs, strict=True)]
    yield from _table(heads, rows)


def _paper_row(claim: Claim) -> list[object]:
    paper = claim.paper
    better, worse = paper["numbers"]
    column = "average" if paper["column"] == "avg" else paper["column"]
    return [claim.text, paper["table"], column, paper["better"], better, paper["worse"], worse]


def _seen(claim: Claim, found: Verdict) -> list[str]:
    """Returns the paper's difference, and whether the seeds could have shown it."""
    effect = claim.paper_effect
    if effect is None or found.least is None:
        return [_number(effect, ".3f"), ""]
    shown = "could have detected it" if found.least <= effect else "could not have detected it"
    return [f"{effect:.3f}", f"{found.least:.4f}: {shown}"]


def _write_csv(path: pathlib.Path, rows: Sequence[Row]) -> None:
    names = sorted({name for row in rows for name in row.metrics})
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        heads = ["arm", "seed", "learned", "tokens_to_learn", "unigram_loss", "failed", "seconds"]
        writer.writerow([*heads, *names])
        for row in rows:
            values = [row.arm, row.seed, row.learned, *(getattr(row, name) for name in heads[3:])]
            writer.writerow([*values, *(row.metrics.get(name) for name in names)])


def _by_arm(rows: Sequence[Row]) -> dict[str, list[Row]]:
    arms: dict[str, list[Row]] = {}
    for row in rows:
        arms.setdefault(row.arm, []).append(row)
    return arms


def _is_shown(metric: str) -> bool:
    return metric.split(".")[-1] not in ("global_step", "loss", "sentence_order_loss")


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterable[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""


def _mean(values: Sequence[float], form: str = ".4f") -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{spread}"


def _interval(ends: tuple[float, float] | None) -> str:
    return f"[{ends[0]:+.4f}, {ends[1]:+.4f}]" if ends else ""


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"
