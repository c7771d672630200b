"""The optimizers and their schedule, under the release's name."""

from __future__ import annotations

from albert_tf.training.adamw import AdamW, Lamb
from albert_tf.training.muon import Muon
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.schedules import WarmupPolynomialDecay

__all__ = ["AdamW", "Lamb", "Muon", "WarmupPolynomialDecay", "create_optimizer"]
