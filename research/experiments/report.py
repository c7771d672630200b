"""Writes a study's report: Markdown, CSV, JSON and a figure, from the metrics that are kept."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence

from research.experiments import figures, outcomes, tuning
from research.experiments.claims import Claim, sign_of
from research.experiments.intervals import CANNOT_TELL, CONFIDENCE, Verdict
from research.experiments.kept import Kept
from research.experiments.outcomes import LEARNED_NATS, Row
from research.experiments.plan import TRIAL_SEED, Plan
from research.experiments.study import Scale, Study

# Metrics that show whether a run is at chance.
_GUESSED = {"eval_accuracy", "eval_majority"}
# Each of the paper's models has seen at least this many.
_TOKENS = 125_000 * 4096 * 512


def write(study: Study, scale: Scale, plan: Plan, kept: Kept, directory: pathlib.Path) -> None:
    """Writes report.md, cells.csv, claims.json and figure.png on what has run of a study."""
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
    lines = _lines(study, scale, plan, rows, verdicts, kept)
    text = "\n".join(lines) + "\n"
    (directory / "report.md").write_text(text, encoding="utf-8")


def _summary(claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> str:
    """Returns one sentence on all claims of a study."""
    found: dict[str, list[str]] = {}
    for claim, verdict in zip(claims, verdicts, strict=True):
        found.setdefault(verdict.verdict, []).append(claim.text)
    unknown = len(found.pop(CANNOT_TELL, ()))
    said = [f"{name} on {len(texts)} ({'; '.join(texts)})" for name, texts in sorted(found.items())]
    said += [f"{CANNOT_TELL} on {unknown}"] * bool(unknown)
    return f"Of {len(claims)} claim{'s' * (len(claims) > 1)}, this study {', '.join(said)}."


def _lines(
    study: Study,
    scale: Scale,
    plan: Plan,
    rows: Sequence[Row],
    verdicts: Sequence[Verdict],
    kept: Kept,
) -> Iterable[str]:
    run = [row for row in rows if row.is_finished]
    yield f"# {study.question}"
    yield ""
    yield _summary(study.claims, verdicts)
    yield ""
    yield f"Paper: {study.paper}"
    yield ""
    yield f"Scale `{scale.name}`: {scale.about}. {len(run)} of {len(rows)} cells have run."
    yield from _left_out(study, scale)
    for what in ("machine", "commit"):
        found = sorted({getattr(row, what) for row in run} - {""})
        if found:
            yield f"{what.capitalize()}: {'; '.join(found)}."
    yield from _untuned(study, scale, kept)
    if scale.name == "smoke":
        yield (
            "The models are far too small, and trained too briefly, to show anything: no figure "
            "here is a result."
        )
    yield ""
    yield "![Curves and differences](figure.png)"
    yield ""
    yield from _claims(study, verdicts, rows)
    if any(cell.finetune for cell in plan.cells):
        yield from _finetuning(study, rows)
        yield from _paper(study, verdicts)
    else:
        yield from _arms(rows, plan)
        tokens = sorted({plan.tokens(cell.arm) for cell in plan.cells})
        yield from _paper(study, verdicts, tokens)
        yield from _rates(study, scale, kept)


def _left_out(study: Study, scale: Scale) -> Iterable[str]:
    """Yields a note if the scale takes only part of the study."""
    arms, seeds = min(len(study.arms), scale.most_arms), min(study.seeds, scale.most_seeds)
    if (arms, seeds) != (len(study.arms), study.seeds):
        yield (
            f"The scale takes the first {arms} of the study's {len(study.arms)} arms, and {seeds} "
            f"of its {study.seeds} seeds."
        )


def _untuned(study: Study, scale: Scale, kept: Kept) -> Iterable[str]:
    """Yields a note if arms have the scale's learning rate, although the study tunes it."""
    if not tuning.trials(study, scale):
        return
    common = scale.settings["pretrain"]["learning_rate"]
    settled = tuning.settle(study, scale, kept)
    if tuning.untried(study, scale, kept):
        yield (
            "**Learning rates are not tuned: not all trials have run, and every arm has "
            f"{common:g}.**"
        )
    elif settled.arms != study.arms:
        count = tuning.finished(settled, scale, kept)
        yield (
            f"**Learning rates are not the tuned ones: every arm has {common:g}, and at the best "
            f"rates {count} cells have run so far.**"
        )


def _claims(study: Study, verdicts: Sequence[Verdict], cells: Sequence[Row]) -> Iterable[str]:
    yield "## Claims"
    yield ""
    yield (
        f"Differences are paired by seed, above 0 if as claimed, with {CONFIDENCE:.0%} "
        "t-intervals, which give the verdicts; the interval beside each is for other held-out "
        "documents, too (not for claims about guessing). Pairs: seeds with which both arms "
        "learned. Least: the smallest mean difference that these pairs could have distinguished "
        "from 0. Gate: whether that is at most the effect to detect; if the true difference is "
        "Least, about every other study finds it, and of few pairs Least itself is a rough "
        "estimate. A verdict on `better than` is of the sign, and says what it can of the size; "
        "one on `=` is of whether the difference is smaller than the effect, and says what it can "
        "of the sign."
    )
    if study.tests:
        yield ""
        yield (
            f"Metrics begin with the records they are of: {', '.join(study.tests)}. There "
            "`sentence_order_accuracy` is that of the second objective's labels, whatever these "
            "are, and `sentence_order_majority` that of guessing the more frequent one."
        )
    yield ""
    rows = []
    for claim, found in zip(study.claims, verdicts, strict=True):
        gate = "Least within the effect" if found.could_see else "Least beyond the effect"
        if found.low is None:
            gate = "fewer than two pairs" if found.pairs < 2 else "no spread"
        interval = _interval(None if found.low is None else (found.low, found.high))
        arms = f"{claim.better} {'=' if claim.equal else 'better than'} {claim.worse}"
        intervals = [interval, _interval(found.over_documents)]
        failed = [row for row in cells if row.failed and row.arm in (claim.better, claim.worse)]
        lost = len({row.seed for row in failed})
        seen = [
            f"{found.pairs}, {lost} diverged" if lost else found.pairs,
            _number(found.gain, "+.4f"),
            *intervals,
            _number(found.least, ".4f"),
        ]
        more = found.sign if claim.equal else found.size
        ends = [f"{claim.effect:g}", gate, f"**{found.verdict}**" + (f", {more}" if more else "")]
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
        "learn: the median, by the training loss, of arms without a start."
    )
    yield ""
    names = list(dict.fromkeys(name for row in rows for name in row.metrics if _is_shown(name)))
    table = []
    for arm, cells in _by_arm(rows).items():
        run = [row for row in cells if row.is_finished]
        started = "start" in plan.settings(arm)
        tokens = [] if started else [row.tokens_to_learn for row in run if row.tokens_to_learn]
        unigram = [row.unigram_loss for row in run if not math.isnan(row.unigram_loss)]
        known = [[row.metrics[name] for row in run if name in row.metrics] for name in names]
        table.append(
            [
                arm,
                f"{len(run)} of {len(cells)}",
                sum(row.failed is not None for row in cells),
                sum(row.learned for row in run),
                f"{plan.tokens(arm):,}",
                f"{statistics.median(tokens):,.0f}" if tokens else "",
                f"{unigram[0]:.3f}" if unigram else "",
                *map(_mean, known),
            ]
        )
    heads = ["Arm", "Run", "Diverged", "Learned", "Tokens", "Tokens to learn", "Unigram loss"]
    yield from _table([*heads, *(f"`{name}`" for name in names)], table)


def _rates(study: Study, scale: Scale, kept: Kept) -> Iterable[str]:
    tried = tuning.losses(study, scale, kept)
    if not tried:
        return
    yield "## Learning rates"
    yield ""
    yield (
        f"Masked-LM loss of seed {TRIAL_SEED}, which counts nowhere else, after "
        f"{scale.tuning.share_of_steps:.0%} of a cell's steps. Once all have run, the best is "
        "the arm's rate."
    )
    yield ""
    rows, at_the_edge = [], []
    for arm, losses in tried.items():
        values = list(losses.values())
        best = min((loss for loss in values if not math.isnan(loss)), default=math.nan)
        rows.append([arm, *(_trial(loss, best) for loss in values)])
        ends = (losses[min(losses)], losses[max(losses)])
        if math.isfinite(best) and best in ends and not any(map(math.isnan, values)):
            at_the_edge.append(arm)
    yield from _table(["Arm", *(f"{rate:g}" for rate in scale.tuning.rates)], rows)
    if at_the_edge:
        yield (
            "At the edge of the grid, so that a better rate may lie beyond: "
            f"{'; '.join(at_the_edge)}."
        )
        yield ""


def _trial(loss: float, best: float) -> str:
    if math.isnan(loss):
        return "not run"
    found = f"{loss:.4f}" if math.isfinite(loss) else "diverged"
    return f"**{found}**" if loss == best else found


def _finetuning(study: Study, rows: Sequence[Row]) -> Iterable[str]:
    yield (
        "A run counts in verdicts if the model that it starts from has learned: if its masked-LM "
        f"loss is {LEARNED_NATS} nats below the unigram loss. One from weights that the study did "
        "not train always counts. At chance: runs whose accuracy is at most that of the most "
        "frequent class."
    )
    yield ""
    for metric in outcomes.metrics_of(study.claims, rows):
        yield f"## Runs: `{metric}`"
        yield ""
        table, medians = [], {}
        for arm, cells in _by_arm(rows).items():
            values = [row.metrics[metric] for row in cells if metric in row.metrics]
            failed = sum(row.failed is not None for row in cells)
            told = [row.metrics for row in cells if set(row.metrics) >= _GUESSED]
            at_chance = sum(each["eval_accuracy"] <= each["eval_majority"] for each in told)
            range_of = ["", "", ""]
            if values:
                # A run that diverged is worse than any other.
                worst = -sign_of(metric) * math.inf
                medians[arm] = statistics.median([*values, *[worst] * failed])
                known = math.isfinite(medians[arm])
                median = f"{medians[arm]:.4f}" if known else "diverged"
                range_of = [median, *(f"{x:.4f}" for x in (min(values), max(values)))]
            run = len(values) + failed
            learned = sum(row.learned and row.is_finished for row in cells)
            counts = [f"{run} of {len(cells)}", failed, learned, at_chance if told else ""]
            table.append([arm, *counts, *range_of])
        heads = ["Arm", "Run", "Diverged", "In verdicts", "At chance"]
        heads += ["Median", "Lowest", "Highest"]
        yield from _table(heads, table)
        if any(map(math.isfinite, medians.values())):
            best = max(medians, key=lambda arm: sign_of(metric) * medians[arm])
            yield f"Best median, selected on the same runs: {best}."
            yield ""


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


def _paper(study: Study, verdicts: Sequence[Verdict], tokens: Sequence[int] = ()) -> Iterable[str]:
    """Yields a report's lines on the paper's numbers; none if no claim has any."""
    judged = zip(study.claims, verdicts, strict=True)
    pairs = [(claim, found) for claim, found in judged if claim.paper]
    if not pairs:
        return
    ours = " to ".join(f"{count:,}" for count in dict.fromkeys((*tokens[:1], *tokens[-1:])))
    seen = f"a cell here has seen {ours}" if tokens else "its models began with these"
    yield "## The paper's numbers"
    yield ""
    yield (
        f"As printed, after at least {_TOKENS:,} tokens per run; {seen}. Text, model size "
        "and, unless a difference is given, metric differ: only the signs can be compared. Could "
        "the seeds have shown the paper's difference? In another metric that cannot be said; the "
        "claim's gate is of the effect that the claim names."
    )
    yield ""
    heads = ["Claim", "Table", "Column", "Better", "", "Worse", ""]
    heads += ["Difference", "Least here"]
    yield from _table(heads, [_printed(claim) + _seen(claim, v) for claim, v in pairs])


def _printed(claim: Claim) -> list[object]:
    paper = claim.paper
    better, worse = paper["numbers"]
    column = "average" if paper["column"] == "avg" else paper["column"]
    return [claim.text, paper["table"], column, paper["better"], better, paper["worse"], worse]


def _seen(claim: Claim, found: Verdict) -> list[str]:
    """Returns the paper's difference, and whether the seeds could have shown it."""
    effect = claim.paper_effect
    if effect is None:
        return ["in another metric", "cannot be said"]
    if found.least is None:
        return [f"{effect:+.3f}", ""]
    shown = "within the difference" if found.least <= abs(effect) else "beyond the difference"
    return [f"{effect:+.3f}", f"{found.least:.4f}: {shown}"]


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterable[str]:
    """Yields the lines of a table, and an empty one."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""


def _mean(values: Sequence[float]) -> str:
    """Returns a mean with the standard deviation, or "" without values."""
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def _interval(ends: tuple[float, float] | None) -> str:
    """Returns an interval as text, or "" for None."""
    return f"[{ends[0]:+.4f}, {ends[1]:+.4f}]" if ends else ""


def _number(value: float | None, form: str) -> str:
    """Returns a number in a format, or "" for None."""
    return "" if value is None else f"{value:{form}}"
