"""TensorFlow's import without its notes on instruction sets and drivers, which tell users nothing.

Its C++ writes them to standard error, some of them whatever TF_CPP_MIN_LOG_LEVEL says, before any
line of a script's own. Warnings and errors pass.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_NOTES = (
    rb"I\d{4} \d\d:.*|\d{4}-\d\d-\d\d .*: I .*|"
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR|"
    rb"To enable the following instructions: .*"
)
# Where there is no such device, that one can't be used is no error.
_NO_DEVICE = rb"|E\d{4} .*failed call to cuInit.*|\d{4}-.*: E .*failed call to cuInit.*"
_NVIDIA = ("/dev/nvidia[0-9]*", "/dev/dxg")


def import_tensorflow(devices: bool = True) -> None:
    """Imports TensorFlow, unless that has been done.

    With TF_CPP_MIN_LOG_LEVEL=0 it says all that it has to say.

    Args:
      devices: Whether to look for devices, too: the first look has notes of its own.
    """
    if "tensorflow" in sys.modules:
        return
    # So that of notes that come later there are none; what the user says counts.
    level = os.environ.setdefault(_LEVEL, "1")
    with contextlib.nullcontext() if level == "0" else _without_notes():
        import tensorflow as tf

        # The scripts themselves choose how a TPU is started.
        if devices and not importlib.util.find_spec("libtpu"):
            tf.config.list_physical_devices()


@contextlib.contextmanager
def _without_notes() -> Iterator[None]:
    """Holds back what is written to standard error, and passes it on at the end, without notes."""
    try:
        real = os.dup(2)
    except OSError:  # There is none.
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            sys.stderr.write(without_notes(held.read()).decode(errors="replace"))
            sys.stderr.flush()


def without_notes(written: bytes) -> bytes:
    """Returns what TensorFlow wrote, without its notes."""
    notes = _NOTES if any(map(glob.glob, _NVIDIA)) else _NOTES + _NO_DEVICE
    return re.sub(rb"^(?:%s)\n" % notes, b"", written, flags=re.MULTILINE)
