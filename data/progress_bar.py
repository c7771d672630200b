"""How far a run is: a bar on a terminal, a line in the log now and then elsewhere."""

from __future__ import annotations

import io
import sys

from absl import logging
from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 10
_LINE = "{percentage:.0f} % of {total_fmt}, {rate_fmt}{postfix}; {remaining} left"


def open_bar(total_bytes: int, done_bytes: int) -> tqdm:
    """A bar over the bytes of the input, to be used in a `with` statement.

    Args:
        total_bytes: of all files.
        done_bytes: of what an earlier run has done.
    """
    settings = {
        "total": total_bytes,
        "initial": done_bytes,
        "unit": "B",
        "unit_scale": True,
        "miniters": 1,
        # The mean since the start: blocks come in bursts.
        "smoothing": 0,
    }
    if sys.stderr.isatty():
        return tqdm(**settings)
    return tqdm(
        **settings,
        file=_LogLines(),
        bar_format=_LINE,
        mininterval=_SECONDS_BETWEEN_LINES,
        delay=_SECONDS_BETWEEN_LINES,
        leave=False,
    )


class _LogLines(io.TextIOBase):
    """A file whose lines go to the log."""

    def write(self, text: str) -> int:
        if line := text.strip():
            logging.info("%s", line)
        return len(text)
