"""Feeds the Trainer with batches of one length, or of several that alternate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from albert_tf.training.devices import Devices, InputFn, Run


@dataclasses.dataclass(frozen=True)
class InputByLength:
    """Batches of several lengths, and which length each step takes.

    A step is compiled once for each shape: so each length has its own dataset, and the host picks.
    Where no shape is needed, several lengths may go by one number.

    Attributes:
      input_fns: By length, a function that makes a host's dataset of the batches of that length, in
        step order, from the Trainer's current step.
      lengths: `<int>[T]`, the length at each step of the run, from step 0.
    """

    input_fns: Mapping[int, InputFn]
    lengths: np.ndarray


class StepIterators:
    """Splits steps into runs, each fed by an iterator over batches of one length.

    Args:
      devices: What the batches are for.
      source: Makes the datasets.
      first_step: The step of the first batch.
      num_steps: The last step.
    """

    def __init__(
        self,
        devices: Devices,
        source: InputFn | InputByLength,
        first_step: int,
        num_steps: int,
    ) -> None:
        if callable(source):
            # A broadcast: one number in memory, however many steps.
            source = InputByLength({0: source}, np.broadcast_to(0, num_steps))
            lengths = [0] if first_step < num_steps else []
        else:
            lengths = np.unique(source.lengths[first_step:num_steps]).tolist()
        self._lengths = source.lengths
        self._iterators = {length: devices.iterator(source.input_fns[length]) for length in lengths}

    def runs(self, step: int, count: int) -> Iterator[Run]:
        """Splits the next `count` steps, from `step` on, into runs of one length.

        Yields:
          The iterator of each run, and its number of steps.
        """
        lengths = self._lengths[step : step + count]
        cuts = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), count]
        for start, end in zip(cuts, cuts[1:], strict=False):
            yield self._iterators[int(lengths[start])], end - start
