"""The paper's numbers, beside a study's claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiments import markdown
from experiments.claims import Claim
from experiments.intervals import Verdict
from experiments.study import Study

_TOKENS = 125_000 * 4096 * 512


def section(study: Study, verdicts: Sequence[Verdict], tokens: Sequence[int] = ()) -> Iterable[str]:
    """Yields the lines of a report on the numbers that the paper printed; none if it has none.

    Args:
      study: The study.
      verdicts: Of its claims, in their order.
      tokens: That the models of its cells have seen, in ascending order; none in fine-tuning.
    """
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
    yield from markdown.table(heads, [_row(claim) + _seen(claim, v) for claim, v in pairs])


def _row(claim: Claim) -> list[object]:
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
