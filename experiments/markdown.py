"""Tables and numbers as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterable[str]:
    """Yields the lines of a table, and an empty one."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""


def mean(values: Sequence[float]) -> str:
    """Returns a mean with the standard deviation, "" of no values."""
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def interval(ends: tuple[float, float] | None) -> str:
    """Returns an interval, "" of none."""
    return f"[{ends[0]:+.4f}, {ends[1]:+.4f}]" if ends else ""


def number(value: float | None, form: str) -> str:
    """Returns a number in a form, "" of none."""
    return "" if value is None else f"{value:{form}}"
