"""Writes a model that takes raw text as a TensorFlow SavedModel."""

from __future__ import annotations

import os

import tensorflow as tf

from albert_tf import directories, files, quiet
from albert_tf.serving import description, warm_up
from albert_tf.serving.served_models import ServedModel


def save(served: ServedModel, directory: str | os.PathLike[str]) -> None:
    """Writes a SavedModel with the signatures `features`, `examples` and `serving_default`.

    Its description lies beside it. With tensorflow-serving-api installed, it has warm-up requests
    for TensorFlow Serving.

    Args:
      served: The model.
      directory: Empty or new; it appears once everything is written.
    """
    directory = os.fspath(directory)
    directories.check_free(directory)
    with directories.whole_directory(directory) as temporary, quiet.only_warnings():
        tf.saved_model.save(served, temporary, signatures=served.signatures())
        description.write(served, temporary)
        warm_up.write(served, temporary)


def hint(directory: str) -> str | None:
    """Returns what a written SavedModel still lacks for TensorFlow Serving, if anything."""
    if not os.path.basename(os.path.abspath(directory)).isdecimal():
        return (
            "TensorFlow Serving only loads a model from a directory whose name is a number, its "
            f"version: for that, export to {os.path.join(directory, '1')}"
        )
    if not files.is_file(os.path.join(directory, warm_up.REQUESTS_FILE)):
        return (
            "without tensorflow-serving-api no warm-up requests were written, so TensorFlow "
            "Serving answers its first requests slowly: pip install 'albert_tf[serving]', and "
            "export again"
        )
    return None
