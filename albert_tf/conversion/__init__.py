"""Reads and writes stored models in any layout, strictly; this file has its public names."""

from albert_tf.conversion.layouts import load_config
from albert_tf.conversion.loading import (
    LoadReport,
    lacking,
    load_tensors,
    load_weights,
    named_weights,
)
from albert_tf.conversion.names import tf1_name

__all__ = [
    "LoadReport",
    "lacking",
    "load_config",
    "load_tensors",
    "load_weights",
    "named_weights",
    "tf1_name",
]
