"""The state of a training run as stored in a checkpoint: weights, moments and step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from albert_tf import checkpoint, conversion
from albert_tf.conversion import labels, values

_STEP = "global_step"


def tensors(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Returns the contents of a training checkpoint, by the release's names."""
    named = conversion.named_weights(model)
    step = np.int64(optimizer.iterations.numpy())
    return {**named, **_slots(model, optimizer, named), _STEP: step}


def restore(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer | None,
    prefix: str,
    classes: Sequence[str] = (),
) -> int:
    """Restores weights and, if there is an optimizer, moments and step from a checkpoint.

    Args:
      model: Receives the weights.
      optimizer: Receives moments and step; None to restore only weights.
      prefix: A checkpoint that a Trainer, or the release, wrote for this model.
      classes: Names of the classes, by id. Without an optimizer, a classifier whose classes are
        stored beside it in another order is put into this one.

    Returns:
      The checkpoint's step.

    Raises:
      ValueError: If it is damaged, lacks a tensor, has one of another shape, holds NaN or
        infinite values, or has other classes.
    """
    stored = checkpoint.read(prefix)
    if not optimizer:  # Moments would have to be moved, too.
        stored = labels.in_order(prefix, stored, classes, leave_others=False)
    slots = _slots(model, optimizer, conversion.named_weights(model)) if optimizer else {}
    report = conversion.load_tensors(model, prefix, stored)
    missing = [*report.missing, *(name for name in (*slots, _STEP) if name not in stored)]
    if missing:
        raise ValueError(
            f"checkpoint {prefix} lacks {', '.join(missing)}: it was not saved by this training "
            "run; give another `output_dir`, and start from it with `init_checkpoint`"
        )
    moments = values.as_float32({name: stored[name] for name in slots}, prefix)
    for name, slot in slots.items():
        slot.assign(moments[name])
    step = int(stored[_STEP])
    if optimizer:
        optimizer.iterations.assign(step)
    return step


def _slots(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, named: Mapping[str, Any]
) -> dict[str, Any]:
    names = {variable.path: name for name, variable in named.items()}
    slots = {}
    for i, variable in enumerate(model.trainable_variables):
        slots[f"{names[variable.path]}/adam_m"] = optimizer.adam_m[i]
        slots[f"{names[variable.path]}/adam_v"] = optimizer.adam_v[i]
    return slots
