"""The optimizers and the schedules of their learning rates, by name.

To add an optimizer, add a row to OPTIMIZERS: a checkpoint holds whatever variables it has. Nothing
here imports a framework until an optimizer is created, because scripts list the names in --help.
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


def _muon(*args: Any, **kwargs: Any) -> keras.optimizers.Optimizer:
    from albert_tf.training.muon import Muon

    return Muon(*args, **kwargs)


# Maps a name to a function that creates the optimizer from the schedule of its learning rate and
# keyword arguments: `global_clipnorm`, the largest norm of the gradients or None, and the caller's
# (scripts pass `weight_decay_rate`, `beta_1`, `beta_2` and `epsilon`).
OPTIMIZERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "adamw": _adamw,
    "lamb": _lamb,
    "muon": _muon,
}

# Maps a name to a function of the numbers of all steps and of decay steps. It returns the step at
# which the rate starts to decay, to 0 at the last step.
SCHEDULES: dict[str, Callable[[int, int], int]] = {
    "linear": lambda steps, decay_steps: 0,
    "constant": lambda steps, decay_steps: steps,
    "wsd": lambda steps, decay_steps: max(0, steps - decay_steps),
}


def count_decay_steps(decay_steps: int | None, num_train_steps: int) -> int:
    """Returns the number of decay steps; None means a tenth of all steps."""
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
    """Creates an optimizer, by default the release's AdamW, with clipping and a schedule.

    Source: the release's `optimization.create_optimizer`.

    Args:
      init_lr: Learning rate at the start of the decay.
      num_train_steps: Updates until the rate is 0, unless it stays constant.
      num_warmup_steps: Updates of warm-up; 0 or None for no warm-up.
      optimizer: A name in OPTIMIZERS.
      poly_power: Exponent of the decay.
      start_warmup_step: Step at which the warm-up starts.
      clip_norm: Largest global norm of the gradients; None doesn't clip.
      schedule: A name in SCHEDULES, for the steps after the warm-up.
      decay_steps: Number of final updates in which "wsd" decays; None for a tenth of all.
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
