"""The log of a command: time and message on a terminal, absl's lines elsewhere.

Example:
    >>> command("albert-predict", model="my model", task="classify").split(maxsplit=1)[1]
    "'--model=my model' --task=classify"
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import sys
import time

from absl import logging as absl_logging

from albert_tf.console import errors

_LABELS = {logging.WARNING: "warning: ", logging.ERROR: "error: ", logging.DEBUG: "debug: "}


def begin(verbosity: int = absl_logging.INFO) -> None:
    """Logs messages of at least this level; on a terminal, in lines for people."""
    absl_logging.set_verbosity(max(verbosity, absl_logging.get_verbosity()))
    # Lines that are piped stay as absl writes them, and so do those of pytest or a notebook.
    root, handler = logging.getLogger(), absl_logging.get_absl_handler()
    if handler in root.handlers and on_terminal():
        root.removeHandler(handler)
        root.addHandler(_TerminalHandler())


def on_terminal() -> bool:
    """Whether standard error is a terminal."""
    return bool(sys.stderr) and sys.stderr.isatty()


class _TerminalHandler(logging.StreamHandler):
    """Writes lines such as "12:07:25 warning: ...", above the bars that tqdm shows."""

    def createLock(self) -> None:
        # One lock for lines and bars: with two, a signal's handler that logs while a bar is drawn
        # could wait for another thread that logs and waits for the bar.
        try:
            from tqdm import tqdm
        except ImportError:  # The extra serve alone does not install it, and shows no bars.
            self._above_bars = contextlib.nullcontext
            super().createLock()
        else:
            self._above_bars = tqdm.external_write_mode
            self.lock = tqdm.get_lock()

    def emit(self, record: logging.LogRecord) -> None:
        with self._above_bars():
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        label = _LABELS.get(record.levelno, "")
        return time.strftime("%H:%M:%S ") + label + errors.escape_controls(super().format(record))


def command(name: str, *words: str, **flags: str) -> str:
    """Returns a command line that can be typed here, even if the command is not on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    if os.path.exists(beside) and shutil.which(name) != beside:
        name = min(beside, os.path.relpath(beside), key=len)
    return shlex.join([name, *words, *(f"--{flag}={value}" for flag, value in flags.items())])
