"""The optimizers, under the release's name."""

from __future__ import annotations

from albert_tf.training.adamw import AdamW, Lamb
from albert_tf.training.optimizers import create_optimizer

__all__ = ["AdamW", "Lamb", "create_optimizer"]
