"""Reports the progress of a run: lines or a bar on the terminal, scalars for TensorBoard."""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging
from tqdm import tqdm

from albert_tf.console import log

_SECONDS_BETWEEN_LINES = 10
_LINE = "{percentage:.0f} % of {total_fmt}, {rate_fmt}{postfix}; {remaining} left"
_BAR = "{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt}, {elapsed} so far"


class StepTimer:
    """Mean step time over the second half of the loops."""

    def __init__(self) -> None:
        self._loops: list[tuple[int, float]] = []

    def add(self, steps: int, seconds: float) -> None:
        """Counts a loop, with saving and evaluation, but without compilation."""
        self._loops.append((steps, seconds))

    def step_seconds(self) -> float:
        """Returns the seconds per step; 0 if no loop has been counted."""
        later = self._loops[len(self._loops) // 2 :] or [(1, 0.0)]
        steps, seconds = map(sum, zip(*later, strict=True))
        return seconds / steps


class ProgressLog:
    """Reports each loop of training steps; in a `with` statement, a terminal also shows a bar.

    Args:
      directory: Directory for TensorBoard's files; None writes none.
      num_train_steps: The last step of the run; None while it is unknown.
      examples_per_step: Examples per global batch.
      tokens_per_example: Positions per example, padding included.
    """

    def __init__(
        self,
        directory: str | None,
        num_train_steps: int | None,
        examples_per_step: int,
        tokens_per_example: float,
    ) -> None:
        self._writer = tf.summary.create_file_writer(directory) if directory else None
        self.num_train_steps = num_train_steps
        self._examples_per_step = examples_per_step
        self._tokens_per_example = tokens_per_example
        self._bar: tqdm | None = None  # Exists only within the `with` statement.
        self._timer = StepTimer()
        self._last: tuple[int, float] | None = None  # Step and time of the last report.

    def __enter__(self) -> ProgressLog:
        self._bar = bar(total=self.num_train_steps)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar:
            self._bar.close()

    def report(
        self, step: int, stats: Mapping[str, float], step_seconds: float, compiled: bool = False
    ) -> None:
        """Logs a line and writes scalars.

        Args:
          step: Updates done.
          stats: Means over the loop: `loss`, each loss by name, `learning_rate`, `grad_norm`.
          step_seconds: Seconds per step.
          compiled: Whether the loop was a single step that was compiled first. Its time says
            nothing about the rate or the time left.
        """
        # Rates, except of a step whose time is mostly compilation.
        rates = {}
        if not compiled:
            examples = self._examples_per_step / step_seconds
            tokens = examples * self._tokens_per_example
            rates = {"examples_per_second": examples, "tokens_per_second": tokens}
        # Name the parts of the loss except the last, which is the rest of the sum.
        losses = [name for name in stats if name.endswith("_loss")][:-1]
        parts = ", ".join(f"{name[:-5]} {four_digits(stats[name])}" for name in losses)
        loss = f"loss {four_digits(stats['loss'])}" + (f" ({parts})" if parts else "")
        # Estimate the time left by the clock, so that it includes saves and evaluations.
        if compiled:
            pace = f"compiled in {format_duration(step_seconds)}"
        else:
            rate = rates["examples_per_second"]
            shown = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
            if self._last:
                self._timer.add(step - self._last[0], time.monotonic() - self._last[1])
            left = (self.num_train_steps - step) * (self._timer.step_seconds() or step_seconds)
            pace = f"{shown} examples/s | {format_duration(left)} left"
        total = f"/{self.num_train_steps}" if self.num_train_steps else ""
        logging.info("step %d%s | %s | %s", step, total, loss, pace)
        if self._bar:
            self._bar.total = self.num_train_steps
            self._bar.update(step - self._bar.n)
        if self._writer:
            _write_scalars(self._writer, step, {**stats, **rates})
        self._last = step, time.monotonic()


def bar(parts: Iterable[Any] | None = None, total: int | None = None) -> Any:
    """Returns `parts`; on a terminal, wrapped in a bar that counts the parts consumed."""
    if not log.on_terminal():
        return parts
    return tqdm(parts, total=total, bar_format=_BAR if total else None, leave=False)


class ProgressBar(tqdm):
    """Shows the share of the input that is done, the rates, and the time left.

    On a terminal it is a bar, elsewhere an occasional line in the log. Use it in a `with`
    statement.

    Args:
      total_bytes: Size of the input in bytes, as stored.
      done_bytes: Bytes that an earlier run has processed.
    """

    def __init__(self, total_bytes: int, done_bytes: int) -> None:
        shown = {"total": total_bytes, "initial": done_bytes, "unit": "B", "unit_scale": True}
        # Blocks arrive in bursts: the mean since the start is steadier than the current rate.
        shown |= {"miniters": 1, "smoothing": 0}
        if not log.on_terminal():
            seconds = _SECONDS_BETWEEN_LINES
            shown |= {"file": _LogLines(), "bar_format": _LINE, "leave": False}
            shown |= {"mininterval": seconds, "delay": seconds}
        super().__init__(**shown)
        self._output_tokens = 0

    def advance(self, position: int, output_tokens: int) -> None:
        """Records that the input is done up to byte `position`, with new output tokens."""
        self._output_tokens += output_tokens
        rate = self._output_tokens / max(self.format_dict["elapsed"], 1e-9)
        self.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
        self.update(position - self.n)


class _LogLines(io.TextIOBase):
    """A text file whose lines go to the log."""

    def write(self, text: str) -> int:
        if line := text.strip():
            logging.info("%s", line)
        return len(text)


def write_metrics(directory: str, step: int, metrics: Mapping[str, float]) -> None:
    """Writes a checkpoint's metrics for TensorBoard, to eval/ in the run's directory."""
    writer = tf.summary.create_file_writer(os.path.join(directory, "eval"))
    _write_scalars(writer, step, metrics)
    writer.close()


def _write_scalars(
    writer: tf.summary.SummaryWriter, step: int, values: Mapping[str, float]
) -> None:
    with writer.as_default(step=step):
        for name, value in values.items():
            tf.summary.scalar(name, value)
    writer.flush()


def format_duration(seconds: float) -> str:
    """Formats seconds as "2 d 3 h", "3 h 4 min", "5 min 6 s" or "7 s"."""
    seconds = math.ceil(seconds)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for (large, size), (small, rest) in zip(units, units[1:], strict=False):
        if seconds >= size:
            return f"{seconds // size} {large} {seconds % size // rest} {small}"
    return f"{seconds} s"


def four_digits(value: float) -> str:
    """Formats a number for people, with four significant digits: "0.1570", "88.12", "10570"."""
    return f"{value:.0f}" if abs(value) >= 1000 or isinstance(value, int) else f"{value:#.4g}"
