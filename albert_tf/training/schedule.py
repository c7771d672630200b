"""The learning rate of each step, as in the ALBERT release."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="albert_tf")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up that replaces the first steps of a polynomial decay to zero.

    The decay runs from step 0, not from the end of the warm-up, so the rate starts at 0 and
    drops a little where the warm-up hands over. The first update therefore moves no weight.

    Source: the release's `optimization.create_optimizer`.

    Args:
      init_lr: Rate that the decay starts from and the warm-up heads for.
      num_train_steps: Step at which the rate reaches 0; it stays there.
      num_warmup_steps: Steps of warm-up, counted from `start_warmup_step`; 0 for none.
      poly_power: Exponent of the decay; 1.0 is linear.
      start_warmup_step: Step at which the warm-up starts. As in the release, the rate is
        negative before it (gradient ascent).

    Raises:
      ValueError: If a number of steps or the power is out of range.
    """

    def __init__(
        self,
        init_lr: float,
        num_train_steps: int,
        num_warmup_steps: int = 0,
        poly_power: float = 1.0,
        start_warmup_step: int = 0,
    ) -> None:
        for name, value, least in (
            ("num_train_steps", num_train_steps, 1),
            ("num_warmup_steps", num_warmup_steps, 0),
            ("start_warmup_step", start_warmup_step, 0),
        ):
            if value < least:
                raise ValueError(f"`{name}` must be at least {least}, got {value}.")
        if poly_power <= 0:
            raise ValueError(f"`poly_power` must be above 0 (1.0 is linear), got {poly_power}.")
        self.init_lr = init_lr
        self.num_train_steps = num_train_steps
        self.num_warmup_steps = num_warmup_steps
        self.poly_power = poly_power
        self.start_warmup_step = start_warmup_step

    def __call__(self, step: Any) -> Any:
        """Returns the rate `<float32>[]` of the update after `step` `<int>[]` others."""
        step = ops.cast(step, "float32")
        done = ops.minimum(step, float(self.num_train_steps)) / float(self.num_train_steps)
        decayed = self.init_lr * ops.power(1.0 - done, self.poly_power)
        if not self.num_warmup_steps:
            return decayed
        warm = step - float(self.start_warmup_step)
        warmed = self.init_lr * (warm / float(self.num_warmup_steps))
        return ops.where(warm < self.num_warmup_steps, warmed, decayed)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            "init_lr": self.init_lr,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
            "poly_power": self.poly_power,
            "start_warmup_step": self.start_warmup_step,
        }
