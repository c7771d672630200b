"""The optimizers and the schedules of their learning rates, by name.

To add one, add a row to OPTIMIZERS: a checkpoint holds whatever variables an optimizer has. No
framework is imported before one is made, because scripts list the names in their --help.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras


def _adamw(*args: Any, **kwargs: Any) -> keras.optimizers.Optimizer:
    from albert_tf.training.adamw import AdamW

    return AdamW(*args, **kwargs)


def _lamb(*args: Any, **kwargs: Any) -> keras.optimizers.Optimizer:
    from albert_tf.training.adamw import Lamb

    return Lamb(*args, **kwargs)


# By name, a function of the learning rate's schedule and keyword arguments that makes one.
# They are `global_clipnorm`, the largest norm of the gradients or None, and what the caller adds
# (scripts: `weight_decay_rate`, `beta_1`, `beta_2` and `epsilon`).
OPTIMIZERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {"adamw": _adamw, "lamb": _lamb}

# By name, a function of the number of all steps and of those of a decay: the step from which the
# rate decays, to 0 at the last step.
SCHEDULES: dict[str, Callable[[int, int], int]] = {
    "linear": lambda steps, decay_steps: 0,
    "constant": lambda steps, decay_steps: steps,
    "wsd": lambda steps, decay_steps: max(0, steps - decay_steps),
}


def count_decay_steps(decay_steps: int | None, num_train_steps: int) -> int:
    """Returns the steps of a decay for which None means a tenth of all."""
    return decay_steps or max(1, num_train_steps // 10)


def create_optimizer(
    init_lr: float,
    num_train_steps: int,
    num_warmup_steps: int | None,
    optimizer: str = "adamw",
    poly_power: float = 1.0,
    start_warmup_step: int = 0,
    clip_norm: float | None = 1.0,
    schedule: str = "linear",
    decay_steps: int | None = None,
    **kwargs: Any,
) -> keras.optimizers.Optimizer:
    """Creates the optimizer that the release trains with, AdamW or LAMB: clip, schedule, update.

    Source: the release's `optimization.create_optimizer`.

    Args:
      init_lr: Rate that the decay starts from.
      num_train_steps: Updates until the rate is 0, unless it stays constant.
      num_warmup_steps: Updates of warm-up; 0 or None for no warm-up.
      optimizer: A name in OPTIMIZERS.
      poly_power: Exponent of the decay.
      start_warmup_step: Step at which the warm-up starts.
      clip_norm: Largest global norm of the gradients; None doesn't clip.
      schedule: A name in SCHEDULES: what follows the warm-up.
      decay_steps: Last updates in which the rate of "wsd" decays; None for a tenth of all.
      **kwargs: Further arguments of the optimizer, such as `beta_2` of `AdamW`.

    Example:
      >>> optimizer = create_optimizer(0.00176, 125_000, 3_125, optimizer="lamb")
      >>> optimizer.get_config()["exclude_names"]
      ['LayerNorm', 'layer_norm', 'bias']
    """
    from albert_tf.training.schedules import WarmupPolynomialDecay

    if optimizer not in OPTIMIZERS:
        raise ValueError(f"`optimizer` must be one of {sorted(OPTIMIZERS)}, got {optimizer!r}.")
    if schedule not in SCHEDULES:
        raise ValueError(f"`schedule` must be one of {sorted(SCHEDULES)}, got {schedule!r}.")
    first = SCHEDULES[schedule](num_train_steps, count_decay_steps(decay_steps, num_train_steps))
    rate = WarmupPolynomialDecay(
        *(init_lr, num_train_steps, num_warmup_steps or 0, poly_power, start_warmup_step, first)
    )
    return OPTIMIZERS[optimizer](rate, global_clipnorm=clip_norm, **kwargs)
