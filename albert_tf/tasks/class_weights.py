"""Weights of classes in the loss: a factor for each example, by its label."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

BALANCED = "balanced"


def of_text(text: str, classes: Sequence[str], labels: Sequence[int]) -> np.ndarray:
    """Returns the weights that a text asks for, `<float32>[C]`.

    Args:
      text: "balanced": each class in inverse proportion to its number of examples, so that their
        weights' mean is 1. Or `class=weight,...`, where classes that are not named have weight 1.
      classes: Names of the classes, by id.
      labels: Class ids of the training examples.

    Raises:
      ValueError: If a name is not a class's, or named twice, or a weight is not positive.
    """
    if text == BALANCED:
        counts = np.bincount(labels, minlength=len(classes))
        return (len(labels) / np.count_nonzero(counts) / np.maximum(counts, 1)).astype(np.float32)
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = (side.strip() for side in part.rpartition("="))
        if name not in classes or name in found:
            raise ValueError(
                f"`class_weights` must be {BALANCED}, or list each of {', '.join(classes)} at "
                f"most once, as in {classes[0]}=1.0,{classes[1]}=2.5; got {part!r}"
            )
        found[name] = _weight(weight, name)
    return np.array([found.get(name, 1.0) for name in classes], np.float32)


def _weight(text: str, name: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ValueError(f"`class_weights`: the weight of {name} must be positive, got {text!r}")
    return weight
