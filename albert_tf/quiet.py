"""TensorFlow without what its C++ writes to standard error before and between a script's lines.

Notes on instruction sets and drivers come with its import, whatever TF_CPP_MIN_LOG_LEVEL says.
Those that follow, even of level ERROR, tell of choices of oneDNN or XLA. An error that counts is a
Python exception, and Python's warnings and logs pass.
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

from absl import logging

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_NOTES = (
    rb"I\d{4} \d\d:.*|\d{4}-\d\d-\d\d .*: I .*|"
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR|"
    rb"To enable the following instructions: .*"
)
# Where there is no such device, that one can't be used is no error.
_NO_DEVICE = rb"|E\d{4} .*failed call to cuInit.*|\d{4}-.*: E .*failed call to cuInit.*"
_NVIDIA = ("/dev/nvidia[0-9]*", "/dev/dxg")


def import_tensorflow() -> None:
    """Imports TensorFlow, unless that has been done.

    What the user sets as TF_CPP_MIN_LOG_LEVEL counts; with 0 TensorFlow says all it has to say.
    """
    if "tensorflow" in sys.modules:
        return
    level = os.environ.setdefault(_LEVEL, "3")
    with contextlib.nullcontext() if level == "0" else _without_notes():
        import tensorflow as tf

        # The first look for devices has notes of its own. How a TPU is started the scripts choose.
        no_tpu = not importlib.util.find_spec("libtpu")
        if no_tpu and not tf.config.list_physical_devices("GPU") and _has_gpu():
            logging.warning(
                "TensorFlow can't use this machine's GPU: %s=0 makes it tell why", _LEVEL
            )


def _has_gpu() -> bool:
    """Returns whether there is an NVIDIA device that the user did not hide."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(map(glob.glob, _NVIDIA))


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
    notes = _NOTES if _has_gpu() else _NOTES + _NO_DEVICE
    return re.sub(rb"^(?:%s)\n" % notes, b"", written, flags=re.MULTILINE)
