"""The learning rate as a function of the step: warm-up, a stable stretch, decay."""

from __future__ import annotations

from typing import Any

import keras
from absl import logging
from keras import ops


@keras.saving.register_keras_serializable(package="albert_tf")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up that replaces the first steps of a stable rate and its polynomial decay.

    In the release's schedule the decay runs from step 0, not from the end of the warm-up, so the
    rate drops a little where the warm-up ends. The warm-up starts at a rate of 0, so the first
    update moves no weight.

    Source: the release's `optimization.create_optimizer`; the stable rate: arXiv 2404.06395.

    Args:
      init_lr: Learning rate at which the warm-up aims and the decay starts.
      num_train_steps: Step at which the rate reaches 0; it stays there.
      num_warmup_steps: Steps of warm-up, counted from `start_warmup_step`; 0 for none.
      poly_power: Exponent of the decay; 1.0 is linear.
      start_warmup_step: Step at which the warm-up starts. As in the release, the rate is
        negative before it (gradient ascent).
      first_decay_step: Step at which the decay begins; `num_train_steps` for no decay.

    Example:
      >>> rate = WarmupPolynomialDecay(0.1, num_train_steps=100, num_warmup_steps=10)
      >>> [round(float(rate(step)), 3) for step in (0, 5, 10, 50, 100)]
      [0.0, 0.05, 0.09, 0.05, 0.0]
    """

    def __init__(
        self,
        init_lr: float,
        num_train_steps: int,
        num_warmup_steps: int = 0,
        poly_power: float = 1.0,
        start_warmup_step: int = 0,
        first_decay_step: int = 0,
    ) -> None:
        self.init_lr = init_lr
        self.num_train_steps = num_train_steps
        self.num_warmup_steps = num_warmup_steps
        self.poly_power = poly_power
        self.start_warmup_step = start_warmup_step
        self.first_decay_step = first_decay_step
        least = {"num_train_steps": 1, "num_warmup_steps": 0, "start_warmup_step": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"`{name}` must be at least {bound}, got {getattr(self, name)}.")
        if poly_power <= 0:
            raise ValueError(f"`poly_power` must be above 0 (1.0 is linear), got {poly_power}.")
        warmed, last = start_warmup_step + num_warmup_steps, num_train_steps - 1
        if num_warmup_steps and warmed > min(first_decay_step or last, last):
            logging.warning(
                "the warm-up ends at step %d, the decay begins at step %d of %d: the learning rate "
                "never gets to %g",
                *(warmed, first_decay_step, num_train_steps, init_lr),
            )

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate `<float32>[]` of the update after `step` `<int>[]` updates."""
        # The decay, from `first_decay_step` on.
        step = ops.cast(step, "float32")
        first, last = float(self.first_decay_step), float(self.num_train_steps)
        done = ops.maximum(ops.minimum(step, last) - first, 0.0) / max(last - first, 1.0)
        decayed = self.init_lr * ops.power(1.0 - done, self.poly_power)
        if not self.num_warmup_steps:
            return decayed
        # The warm-up replaces the first steps.
        warm = step - float(self.start_warmup_step)
        warmed = self.init_lr * (warm / float(self.num_warmup_steps))
        return ops.where(warm < self.num_warmup_steps, warmed, decayed)

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))  # Nothing but the arguments.
