"""What the Trainer reads: batches of one static length, or of several that take turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

InputFn = Callable[[tf.distribute.InputContext], tf.data.Dataset]


@dataclasses.dataclass(frozen=True)
class InputByLength:
    """Batches of several static lengths, and whose turn it is at each step.

    XLA and a TPU compile a step for each shape, once: so each length has a dataset of its own, and
    the host picks.

    Attributes:
      input_fns: By length, makes a host's dataset of the batches of that length, in the order of
        their steps, from the step that the Trainer is at.
      lengths: `<int>[T]`, the length at each step of the run, from step 0.
    """

    input_fns: Mapping[int, InputFn]
    lengths: np.ndarray


class StepIterators:
    """Runs of steps, each from a distributed iterator over batches of one static length.

    Args:
      strategy: Shares out the batches.
      source: Makes the datasets.
      first_step: The step whose batch comes first.
      num_steps: The last step.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        source: InputFn | InputByLength,
        first_step: int,
        num_steps: int,
    ) -> None:
        if callable(source):
            source = InputByLength({0: source}, np.zeros(num_steps, np.int64))
        self._lengths = source.lengths
        self._iterators = {
            length: iter(strategy.distribute_datasets_from_function(source.input_fns[length]))
            for length in np.unique(source.lengths[first_step:num_steps]).tolist()
        }

    def runs(self, step: int, count: int) -> Iterator[tuple[Any, int]]:
        """Cuts the `count` steps from `step` on into runs of one length.

        Yields:
          The iterator of each run, and its number of steps.
        """
        lengths = self._lengths[step : step + count]
        cuts = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), count]
        for start, end in zip(cuts, cuts[1:], strict=False):
            yield self._iterators[int(lengths[start])], end - start
