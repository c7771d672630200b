"""A page of plots for a report: lengths, n-grams, shares, shards."""

from __future__ import annotations

import numpy as np

from albert_tf.console import figures
from albert_tf.generator.report import Report
from albert_tf.storage import files

_BAR, _MARK, _INK, _MUTED = "#4878a8", "#c8553d", "#333333", "#777777"
_MOST_LENGTH_BINS = 64
_LONGEST_RUN = 8  # Longer ones share a bar.


def write_plots(report: Report, path: str) -> None:
    """Writes a page of plots for a report with instances as a PNG, atomically."""
    figure = figures.new_figure(11, 7.5)
    figure.suptitle(
        f"{report.documents:,} documents, {report.input_tokens:,} tokens  →  "
        f"{report.instances:,} instances, {report.output_tokens:,} tokens",
        fontsize=14,
        color=_INK,
    )
    # The upper plots show the distributions of lengths and n-grams; the lower, shares and files.
    panels = figure.subplots(2, 2)
    _draw_lengths(panels[0, 0], report)
    _draw_ngrams(panels[0, 1], report)
    _draw_shares(panels[1, 0], report)
    _draw_shards(panels[1, 1], report)
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_MUTED)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.set_axisbelow(True)
    files.replace(path, figures.png(figure))


def _draw_lengths(axes, report: Report) -> None:
    longest = report.row_tokens // report.rows
    counts = np.zeros(longest + 1)
    for length, count in report.length_histogram.items():
        counts[length] = count
    width = -(-(longest + 1) // _MOST_LENGTH_BINS)
    # Bins end at the longest length: the last holds the full rows, which are most.
    begins = np.arange(longest + 1 - width, -width, -width)[::-1]
    binned = [counts[max(begin, 0) : begin + width].sum() for begin in begins]
    axes.bar(begins, np.array(binned) / report.instances, width, align="edge", color=_BAR)
    # Most rows are full: on a linear scale the others would be invisible.
    axes.set_yscale("log")
    axes.tick_params(which="minor", left=False)
    mean = report.output_tokens / report.instances
    axes.axvline(mean, color=_MARK, linewidth=1.2, label=f"mean {mean:.0f}")
    axes.legend(loc="upper left", frameon=False, labelcolor=_MARK, fontsize=9)
    _name(axes, "Length of instances", "tokens", f"share of instances, bin width {width}")
    _as_percent(axes.yaxis)


def _draw_ngrams(axes, report: Report) -> None:
    total = sum(report.ngram_histogram.values())
    title = "Masked n-grams" if total else "Masked n-grams: none in these records"
    _name(axes, title, "words in a run of masked words", "share of runs")
    shares = np.zeros(_LONGEST_RUN)
    for n, count in report.ngram_histogram.items():
        shares[min(n, _LONGEST_RUN) - 1] += count / total
    names = [*map(str, range(1, _LONGEST_RUN)), f"{_LONGEST_RUN}+"]
    bars = axes.bar(names, shares, 0.75, color=_BAR)
    axes.bar_label(
        bars, [_percent(share) if share >= 0.01 else "" for share in shares], fontsize=8, padding=2
    )
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    _as_percent(axes.yaxis)


def _draw_shares(axes, report: Report) -> None:
    shares = report.shares()
    rows = {
        "masked tokens": "masked_share",
        "padding in rows": "padding_share",
        "instances with label 1": "label_1_share",
        "instances from chunks\nof one sentence": "single_segments_share",
        "instances with fewer\nmasks than requested": "limited_masks_share",
        "[UNK] in input tokens": "unknown_share",
    }
    values = [shares[name] for name in rows.values()]
    bars = axes.barh(list(rows), values, 0.6, color=_BAR)
    axes.bar_label(bars, [_percent(value) for value in values], fontsize=9, padding=3)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(0.5, *values))
    _name(axes, "Shares", "", "")
    _as_percent(axes.xaxis)


def _draw_shards(axes, report: Report) -> None:
    megabytes = np.array([shard["bytes"] / 1e6 for shard in report.shards.values()])
    records = sum(shard["records"] for shard in report.shards.values())
    _name(axes, "Size of shards", "shard", "MB")
    axes.bar(range(len(megabytes)), megabytes, 0.75 if len(megabytes) < 50 else 1.0, color=_BAR)
    axes.set_xlim(-0.8, len(megabytes) - 0.2)
    if len(megabytes) <= 20:
        axes.set_xticks(range(len(megabytes)))
    axes.margins(y=0.15)
    axes.set_title(
        f"{records:,} records, {megabytes.sum():,.1f} MB", loc="right", fontsize=9, color=_MUTED
    )


def _name(axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=_INK, fontweight="bold")
    axes.set_xlabel(x, color=_INK, fontsize=9)
    axes.set_ylabel(y, color=_INK, fontsize=9)


def _as_percent(axis) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))


def _percent(value: float) -> str:
    return f"{100 * value:.2g} %" if value < 0.01 else f"{100 * value:.1f} %"
