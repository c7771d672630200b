"""When it is time for the decay of a run that is to end at a time, not at a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from albert_tf.training.optimizers import count_decay_steps
from albert_tf.training.progress import StepTimer


class Deadline:
    """Tells when the decay of a run begins that is to take so many seconds of training.

    Args:
      seconds: Of the whole run.
      decay_steps: Steps of the decay, if there is time for so many; None for a tenth of all.
      settle: Called once, with the decay's first and last step; returns the rates from then on.
    """

    def __init__(
        self, seconds: float, decay_steps: int | None, settle: Callable[[int, int], Any]
    ) -> None:
        self.settle = settle
        self.used = self._compilation = 0.0  # Seconds so far; of them those of compiled loops.
        self._seconds, self._decay_steps, self._timer = seconds, decay_steps, StepTimer()

    def add(self, steps: int, seconds: float, compiled: bool) -> None:
        """Counts a loop, and what came before it: a save, an evaluation."""
        self.used += seconds
        if compiled:
            self._compilation += seconds
        else:
            self._timer.add(steps, seconds)

    def decay(self, step: int) -> tuple[int, int | None]:
        """Returns the decay's first and last step as they look after `step`; None is unknown."""
        # With the decay comes another program, which is compiled.
        left = max(0.0, self._seconds - self.used - self._compilation)
        of_a_step = self._timer.step_seconds()
        if left and not of_a_step:
            return step + 1, None
        last = step + max(1, int(left and left / of_a_step))
        return max(step, last - count_decay_steps(self._decay_steps, last)), last
