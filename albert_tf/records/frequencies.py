"""The loss of guessing pieces by their frequency alone, which masked LM has to beat."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from albert_tf.types import Features


def count_masked(batches: Iterable[Features]) -> np.ndarray:
    """Returns how often each piece is masked in batches of NumPy arrays, `<int64>[pieces]`."""
    counts: np.ndarray = np.zeros(0, np.int64)
    for batch in batches:
        weights = batch["masked_lm_weights"]
        if "example_weights" in batch:  # 0 for rows that only fill up a batch.
            weights = weights * batch["example_weights"][:, None]
        masked = batch["masked_lm_ids"][weights > 0]
        more = np.bincount(masked, minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    return counts


def loss(counts: np.ndarray) -> float:
    """Returns the mean loss, in nats, of guessing counted pieces by their own frequencies.

    Example:
      >>> round(loss(np.array([1, 1, 0, 2])), 3)
      1.04
    """
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum())
