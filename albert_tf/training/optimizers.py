"""The optimizers by name, with the release's schedule.

To add one, add a row to OPTIMIZERS: a checkpoint holds whatever variables an optimizer has. No
framework is imported before one is made, because scripts list the names in their --help.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import logging

if TYPE_CHECKING:
    import keras


def _adamw(*args: Any, **kwargs: Any) -> keras.optimizers.Optimizer:
    from albert_tf.training.adamw import AdamW

    return AdamW(*args, **kwargs)


def _lamb(*args: Any, **kwargs: Any) -> keras.optimizers.Optimizer:
    from albert_tf.training.adamw import Lamb

    return Lamb(*args, **kwargs)


# By name, a function of the learning rate's schedule and keyword arguments that makes the optimizer:
# `global_clipnorm`, the largest norm of the gradients or None, and what the caller adds (scripts:
# `weight_decay_rate`, `beta_1`, `beta_2` and `epsilon`).
OPTIMIZERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {"adamw": _adamw, "lamb": _lamb}


def create_optimizer(
    init_lr: float,
    num_train_steps: int,
    num_warmup_steps: int | None,
    optimizer: str = "adamw",
    poly_power: float = 1.0,
    start_warmup_step: int = 0,
    clip_norm: float | None = 1.0,
    **kwargs: Any,
) -> keras.optimizers.Optimizer:
    """Creates the optimizer that the release trains with: clip, AdamW or LAMB, schedule.

    Source: the release's `optimization.create_optimizer`.

    Args:
      init_lr: Rate that the decay starts from.
      num_train_steps: Updates until the rate is 0.
      num_warmup_steps: Updates of warm-up; 0 or None for no warm-up.
      optimizer: A name in OPTIMIZERS.
      poly_power: Exponent of the decay.
      start_warmup_step: Step at which the warm-up starts.
      clip_norm: Largest global norm of the gradients; None doesn't clip.
      **kwargs: Further arguments of the optimizer, such as `beta_2` of `AdamW`.

    Example:
      >>> optimizer = create_optimizer(0.00176, 125_000, 3_125, optimizer="lamb")
      >>> optimizer.get_config()["exclude_names"]
      ['LayerNorm', 'layer_norm', 'bias']
    """
    from albert_tf.training.adamw import WarmupPolynomialDecay

    if optimizer not in OPTIMIZERS:
        raise ValueError(f"`optimizer` must be one of {sorted(OPTIMIZERS)}, got {optimizer!r}.")
    schedule = WarmupPolynomialDecay(
        init_lr, num_train_steps, num_warmup_steps or 0, poly_power, start_warmup_step
    )
    warmed = start_warmup_step + (num_warmup_steps or 0)
    if num_warmup_steps and warmed >= num_train_steps:
        logging.warning(
            "the warm-up ends at step %d, the run at step %d: the learning rate never gets to %g",
            warmed,
            num_train_steps,
            init_lr,
        )
    return OPTIMIZERS[optimizer](schedule, global_clipnorm=clip_norm, **kwargs)
