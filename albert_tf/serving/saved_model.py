"""Writes a model that takes raw text as a TensorFlow SavedModel."""

from __future__ import annotations

import os

import tensorflow as tf

from albert_tf import directories, quiet
from albert_tf.serving.served_models import ServedModel


def save(served: ServedModel, directory: str | os.PathLike[str]) -> None:
    """Writes a SavedModel with the signatures `features`, `examples` and `serving_default`.

    Args:
      served: The model.
      directory: Empty or new; it appears once everything is written.
    """
    directory = os.fspath(directory)
    directories.check_free(directory)
    with directories.whole_directory(directory) as temporary, quiet.only_warnings():
        tf.saved_model.save(served, temporary, signatures=served.signatures())
