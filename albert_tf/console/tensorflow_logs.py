"""Imports TensorFlow without the notes that its C++ code writes to standard error.

TF_CPP_MIN_LOG_LEVEL=3 leaves six of nine notes of an import (TensorFlow 2.21): those that are
written before its logging is set up. Real errors are Python exceptions; Python's warnings and
logs still appear.
"""

from __future__ import annotations

import contextlib
import gc
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
    rb"To enable the following instructions: .*|"
    rb"INFO: Created TensorFlow Lite .*"
)
# On a machine without a GPU this is no error, though TensorFlow logs it as one.
_NO_DEVICE = rb"|E\d{4} .*failed call to cuInit.*|\d{4}-.*: E .*failed call to cuInit.*"
_NVIDIA = ("/dev/nvidia[0-9]*", "/dev/dxg")


def import_tensorflow(backend: str | None = None) -> None:
    """Imports TensorFlow with oneDNN's operations, unless it already has been imported.

    The user's TF_CPP_MIN_LOG_LEVEL and TF_ENABLE_ONEDNN_OPTS take precedence; with level 0 all of
    TensorFlow's notes appear. Ends the process with one line if Keras' backend is not installed.

    Args:
      backend: Keras' backend; by default the one that KERAS_BACKEND names.
    """
    backend = backend or os.environ.get("KERAS_BACKEND")
    if backend:
        os.environ["KERAS_BACKEND"] = backend
        # Keras would end with a traceback.
        if not importlib.util.find_spec(backend):
            sys.exit(
                f"error: Keras can't run on {backend!r}, which is not installed: unset "
                "KERAS_BACKEND or, for jax, pip install 'albert_tf[jax]'"
            )
    if "tensorflow" in sys.modules:
        return
    # TensorFlow's own default on CPUs with AVX-512; training is faster on others, too.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    level = os.environ.setdefault(_LEVEL, "3")
    with contextlib.nullcontext() if level == "0" else filtered_stderr():
        # The import makes a million objects that live until exit: keep garbage collection off them.
        gc.disable()
        import tensorflow as tf

        gc.freeze()
        gc.enable()

        # Listing devices writes notes as well. It would start a TPU before a command configures it.
        no_tpu = not importlib.util.find_spec("libtpu")
        computes = os.environ.get("KERAS_BACKEND") != "jax"
        if computes and no_tpu and not tf.config.list_physical_devices("GPU") and _has_gpu():
            logging.warning("TensorFlow can't use this machine's GPU: set %s=0 to see why", _LEVEL)


@contextlib.contextmanager
def only_warnings() -> Iterator[None]:
    """Hides TensorFlow's Python logs of level INFO: exports list their internals."""
    before = logging.get_verbosity()
    logging.set_verbosity(min(before, logging.WARNING))
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _has_gpu() -> bool:
    """Returns whether there is an NVIDIA device that the user has not hidden."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(map(glob.glob, _NVIDIA))


@contextlib.contextmanager
def filtered_stderr() -> Iterator[None]:
    """Holds standard error back, also C++'s, and passes it on at the end without the notes."""
    try:
        real = os.dup(2)
    except OSError:  # There is no standard error.
        yield
        return
    with tempfile.TemporaryFile() as held:
        # C++ writes to the descriptor itself, which Python's sys.stderr can't intercept.
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(real, 2)
            os.close(real)
            # Everything but the notes, such as a crash's message, must reach the user in any case.
            held.seek(0)
            sys.stderr.write(without_notes(held.read()).decode(errors="replace"))
            sys.stderr.flush()


def without_notes(written: bytes) -> bytes:
    """Removes TensorFlow's notes from what it wrote."""
    notes = _NOTES if _has_gpu() else _NOTES + _NO_DEVICE
    return re.sub(rb"^(?:%s)\n" % notes, b"", written, flags=re.MULTILINE)
