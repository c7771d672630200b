"""Shows the progress of a run: a line or a bar on the terminal, scalars for TensorBoard."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Mapping

import tensorflow as tf
from absl import logging
from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 10
_LINE = "{percentage:.0f} % of {total_fmt}, {rate_fmt}{postfix}; {remaining} left"


class ProgressLog:
    """Reports each loop of training steps.

    Args:
      directory: Directory for TensorBoard's files; None writes none.
      num_train_steps: The last step of the run.
      examples_per_step: Examples per global batch.
      tokens_per_example: Positions per example, padding included.
    """

    def __init__(
        self,
        directory: str | None,
        num_train_steps: int,
        examples_per_step: int,
        tokens_per_example: float,
    ) -> None:
        self._writer = tf.summary.create_file_writer(directory) if directory else None
        self._num_train_steps = num_train_steps
        self._examples_per_step = examples_per_step
        self._tokens_per_example = tokens_per_example

    def report(
        self, step: int, stats: Mapping[str, float], step_seconds: float, compiled: bool = False
    ) -> None:
        """Logs a line and writes scalars.

        Args:
          step: Updates done.
          stats: Means over the loop: `loss`, each loss by name, `learning_rate`, `grad_norm`.
          step_seconds: Seconds per step.
          compiled: Whether they are mostly compilation: then neither rate nor time left is shown.
        """
        rates = {}
        if not compiled:
            examples = self._examples_per_step / step_seconds
            tokens = examples * self._tokens_per_example
            rates = {"examples_per_second": examples, "tokens_per_second": tokens}
        losses = ", ".join(f"{name} {stats[name]:.4f}" for name in stats if name.endswith("_loss"))
        logging.info(
            "step %d/%d | loss %.4f (%s) | learning rate %.3g | grad norm %.3g | %s",
            step,
            self._num_train_steps,
            stats["loss"],
            losses,
            stats["learning_rate"],
            stats["grad_norm"],
            f"{_short(rates['examples_per_second'])} examples/s | "
            f"{_short(rates['tokens_per_second'])} tokens/s | "
            f"{format_duration((self._num_train_steps - step) * step_seconds)} left"
            if rates
            else f"compiled in {format_duration(step_seconds)}",
        )
        if self._writer:
            _write_scalars(self._writer, step, {**stats, **rates})


class ProgressBar(tqdm):
    """Shows how much of the input is done, the rates, and the time left.

    A bar on a terminal, elsewhere an occasional line in the log. Used in a `with` statement.

    Args:
      total_bytes: Stored bytes of the input.
      done_bytes: How many of them an earlier run has done.
    """

    def __init__(self, total_bytes: int, done_bytes: int) -> None:
        shown = {"total": total_bytes, "initial": done_bytes, "unit": "B", "unit_scale": True}
        # Blocks come in bursts: the mean since the start is steadier than the last rate.
        shown |= {"miniters": 1, "smoothing": 0}
        if not sys.stderr.isatty():
            seconds = _SECONDS_BETWEEN_LINES
            shown |= {"file": _LogLines(), "bar_format": _LINE, "leave": False}
            shown |= {"mininterval": seconds, "delay": seconds}
        super().__init__(**shown)
        self._output_tokens = 0

    def advance(self, position: int, output_tokens: int) -> None:
        """Records that input up to `position` is done, with so many new output tokens."""
        self._output_tokens += output_tokens
        rate = self._output_tokens / max(self.format_dict["elapsed"], 1e-9)
        self.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
        self.update(position - self.n)


class _LogLines(io.TextIOBase):
    """A file that writes its lines to the log."""

    def write(self, text: str) -> int:
        if line := text.strip():
            logging.info("%s", line)
        return len(text)


def write_metrics(directory: str, step: int, metrics: Mapping[str, float]) -> None:
    """Writes a checkpoint's metrics for TensorBoard, as "eval" in the run's directory."""
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


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
