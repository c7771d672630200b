"""The curves of training runs, from the files that they write for TensorBoard."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.console import figures
from albert_tf.inspection import models
from albert_tf.storage import files
from albert_tf.storage.run_record import find_run

COLUMNS = ("run", "series", "step", "tokens", "value")
# Prefix of the names of series that evaluations wrote.
HELD_OUT = "held-out "
GUESS = f"{HELD_OUT}masked_lm_loss_by_frequency"
_EVENTS = "events.out.tfevents."
# The series of the panels below the losses.
_BELOW = ("learning_rate", "tokens_per_second")


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's curves.

    Attributes:
      series: By name, steps and values `<float64>[T, 2]`, in the order of steps.
      tokens_per_step: Tokens that a step reads, padding included; None in fine-tuning, where rows
        differ in length.
    """

    series: Mapping[str, np.ndarray]
    tokens_per_step: int | None

    @property
    def losses(self) -> tuple[str, str]:
        """The names of the losses to draw, in training and held out."""
        if "masked_lm_loss" in self.series:
            return "masked_lm_loss", f"{HELD_OUT}masked_lm_loss"
        return "loss", f"{HELD_OUT}eval_loss"


def read(directory: str) -> Run:
    """Reads the curves of a directory's run; steps that were repeated after a resume count once."""
    series: dict[str, dict[int, float]] = {}
    for prefix, folder in (("", directory), (HELD_OUT, os.path.join(directory, "eval"))):
        for events in _event_files(folder):
            begun: set[str] = set()
            for step, name, value in _scalars(events):
                found = series.setdefault(prefix + name, {})
                # A later file continues from a checkpoint: it replaces all from its first step on.
                if name not in begun and not prefix:
                    begun.add(name)
                    for later in [each for each in found if each >= step]:
                        del found[later]
                found[step] = value
    if not series:
        raise FileNotFoundError(
            f"{directory} has no events of a training: give a run's `output_dir`"
        )
    run = find_run(directory)
    given = run.settings if run else {}
    sizes = [given.get(name) for name in ("train_batch_size", "max_seq_length")]
    of_pretraining = run is not None and run.task is None and None not in sizes
    ordered = {name: np.array(sorted(found.items())) for name, found in series.items()}
    return Run(ordered, int(np.prod(sizes)) if of_pretraining else None)


def _event_files(folder: str) -> list[str]:
    """Returns a folder's files of events, oldest first: their names begin with the time."""
    names = tf.io.gfile.listdir(folder) if files.is_dir(folder) else []
    return [os.path.join(folder, name) for name in sorted(names) if name.startswith(_EVENTS)]


def _scalars(path: str) -> Iterator[tuple[int, str, float]]:
    # The last record may be incomplete if the run still goes on or was killed.
    records = iter(tf.data.TFRecordDataset(path).ignore_errors())
    for record in records:
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            yield event.step, value.tag, float(tf.make_ndarray(value.tensor))


def table(runs: Mapping[str, Run]) -> str:
    """Returns all curves, by the runs' names, as the text of a .csv file."""
    rows = []
    for name, run in runs.items():
        for series, points in run.series.items():
            for step, value in points:
                tokens = "" if run.tokens_per_step is None else int(step) * run.tokens_per_step
                rows.append([name, series, int(step), tokens, f"{value:.8g}"])
    return models.csv_text(COLUMNS, rows)


def draw(runs: Mapping[str, Run]) -> bytes:
    """Returns a PNG: losses, learning rate and speed, over tokens or, in fine-tuning, steps.

    A dotted line is the loss of guessing masked pieces by their frequency.
    """
    figure = figures.new_figure(8, 9)
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1, 1))
    by_tokens = all(run.tokens_per_step for run in runs.values())
    for number, (name, run) in enumerate(runs.items()):
        factor = run.tokens_per_step if by_tokens else 1
        color = figures.style(number)["color"]
        # Held-out losses are dots, since they are few.
        thin: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.6}
        dots: dict[str, Any] = {"linewidth": 1.6, "marker": "o"}
        labels = (name, thin), (f"{name}, held out", dots)
        for series, (label, style) in zip(run.losses, labels, strict=True):
            if (points := run.series.get(series)) is not None:
                x = points[:, 0] * factor
                panels[0].plot(x, points[:, 1], label=label, color=color, **style)
        # The loss of guessing by frequency, which any model should be below.
        if (points := run.series.get(GUESS)) is not None:
            panels[0].axhline(points[-1, 1], linestyle=":", color=color, linewidth=1.0)
        for axes, series in zip(panels[1:], _BELOW, strict=True):
            if (points := run.series.get(series)) is not None:
                axes.plot(points[:, 0] * factor, points[:, 1], color=color, linewidth=1.0)
    for axes, text in zip(panels, ("loss", "learning rate", "tokens a second"), strict=True):
        axes.set_ylabel(text)
    panels[-1].set_xlabel("tokens" if by_tokens else "step")
    panels[0].legend(fontsize=8)
    return figures.png(figure)
