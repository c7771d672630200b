"""Decides when a run of limited time, not of limited steps, begins its decay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from albert_tf.training.optimizers import count_decay_steps
from albert_tf.training.progress import StepTimer


class Deadline:
    """Plans the decay of a run so that training ends after a given number of seconds.

    Args:
      seconds: Training time of the whole run.
      decay_steps: Steps of the decay, fewer if time is short; None for a tenth of all steps.
      settle: Called once with the decay's first and last step; returns the new learning rate.
    """

    def __init__(
        self, seconds: float, decay_steps: int | None, settle: Callable[[int, int], Any]
    ) -> None:
        self.settle = settle
        self.used = self._compilation = 0.0  # Seconds so far, and those of loops that compiled.
        self._seconds, self._decay_steps, self._timer = seconds, decay_steps, StepTimer()

    def add(self, steps: int, seconds: float, compiled: bool) -> None:
        """Counts a loop, together with the save or the evaluation before it."""
        self.used += seconds
        if compiled:
            self._compilation += seconds
        else:
            self._timer.add(steps, seconds)

    def decay(self, step: int) -> tuple[int, int | None]:
        """Returns the decay's first and last step as estimated after `step`.

        The last step is None as long as the time of a step is unknown.
        """
        # The decay's learning rate needs a new program: reserve the time to compile it.
        left = max(0.0, self._seconds - self.used - self._compilation)
        step_seconds = self._timer.step_seconds()
        if left and not step_seconds:
            return step + 1, None
        # The decay ends when the time is up, but at least one step from now.
        last = step + max(1, int(left and left / step_seconds))
        return max(step, last - count_decay_steps(self._decay_steps, last)), last
