"""Models whose weights are not those of a fresh one."""

from __future__ import annotations

import numpy as np


def randomise(model, seed: int = 7):
    """Fills all weights, biases and normalisations too, from a normal distribution; returns it."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        variable.assign(0.3 * rng.standard_normal(variable.shape))
    return model
