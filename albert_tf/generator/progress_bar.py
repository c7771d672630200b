"""How far a run is: a bar on a terminal, elsewhere a line in the log now and then."""

from __future__ import annotations

import io
import sys

from absl import logging
from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 10
_LINE = "{percentage:.0f} % of {total_fmt}, {rate_fmt}{postfix}; {remaining} left"


class ProgressBar:
    """Shows the share of the input that is done, the rates, and the time left.

    Used in a `with` statement.

    Args:
        total_bytes: stored bytes of the input.
        done_bytes: what an earlier run has done of them.
    """

    def __init__(self, total_bytes: int, done_bytes: int) -> None:
        shown = {"total": total_bytes, "initial": done_bytes, "unit": "B", "unit_scale": True}
        # Blocks come in bursts: the mean since the start is steadier than the last rate.
        shown |= {"miniters": 1, "smoothing": 0}
        if not sys.stderr.isatty():
            seconds = _SECONDS_BETWEEN_LINES
            shown |= {"file": _LogLines(), "bar_format": _LINE, "leave": False}
            shown |= {"mininterval": seconds, "delay": seconds}
        self._bar = tqdm(**shown)
        self._output_tokens = 0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def advance(self, position: int, output_tokens: int) -> None:
        """Takes note of so many new tokens of the output, made of the input up to `position`."""
        self._output_tokens += output_tokens
        rate = self._output_tokens / max(self._bar.format_dict["elapsed"], 1e-9)
        self._bar.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
        self._bar.update(position - self._bar.n)


class _LogLines(io.TextIOBase):
    """A file whose lines go to the log."""

    def write(self, text: str) -> int:
        if line := text.strip():
            logging.info("%s", line)
        return len(text)
