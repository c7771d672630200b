"""The optimizers, under the release's name."""

from __future__ import annotations

from albert_tf.training.optimizers import AdamW, Lamb, create_optimizer

__all__ = ["AdamW", "Lamb", "create_optimizer"]
