"""Feeds the Trainer with batches of one static length, or of several that alternate."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.training import distribution

# Makes a host's dataset: per-replica batches, one for each of its replicas in turn.
InputFn = Callable[[tf.distribute.InputContext], tf.data.Dataset]


def replica_batches(strategy: tf.distribute.Strategy, input_fn: InputFn) -> Iterator[Any]:
    """Returns an iterator over a host's dataset; see `next_batch`.

    Autotuning is off: its thread can miss the signal to end and sleep until its next round, up to
    a minute later, and the iterator's end waits for it. (`num_parallel_calls=AUTOTUNE` then means
    one thread per core, up to 16.) The iterators that tf.distribute puts on each device have such
    a thread whatever the dataset's options; they are used only for TPUs, where they also feed the
    hosts of a pod.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return iter(
            strategy.distribute_datasets_from_function(
                lambda context: input_fn(context).with_options(options)
            )
        )
    return iter(input_fn(distribution.input_context(strategy)).with_options(options))


def next_batch(strategy: tf.distribute.Strategy, iterator: Iterator[Any]) -> Any:
    """Returns one batch for each of this host's replicas, for `strategy.run`."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return next(iterator)
    return strategy.experimental_distribute_values_from_function(lambda _: next(iterator))


def all_batches(strategy: tf.distribute.Strategy, input_fn: InputFn) -> Iterator[Any]:
    """Yields the batches of a finite dataset, for `strategy.run`."""
    iterator = replica_batches(strategy, input_fn)
    with contextlib.suppress(StopIteration):
        while True:
            yield next_batch(strategy, iterator)


@dataclasses.dataclass(frozen=True)
class InputByLength:
    """Batches of several static lengths, and which length each step takes.

    XLA and a TPU compile a step once for each shape: so each length has its own dataset, and the
    host picks.

    Attributes:
      input_fns: By length, a function that makes a host's dataset of the batches of that length, in
        step order, from the Trainer's current step.
      lengths: `<int>[T]`, the length at each step of the run, from step 0.
    """

    input_fns: Mapping[int, InputFn]
    lengths: np.ndarray


class StepIterators:
    """Splits steps into runs, each fed by an iterator over batches of one static length.

    Args:
      strategy: Distributes the batches.
      source: Makes the datasets.
      first_step: The step of the first batch.
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
            # A broadcast: one number in memory, however many steps.
            source = InputByLength({0: source}, np.broadcast_to(0, num_steps))
            lengths = [0] if first_step < num_steps else []
        else:
            lengths = np.unique(source.lengths[first_step:num_steps]).tolist()
        self._lengths = source.lengths
        self._iterators = {
            length: replica_batches(strategy, source.input_fns[length]) for length in lengths
        }

    def runs(self, step: int, count: int) -> Iterator[tuple[Any, int]]:
        """Splits the next `count` steps, from `step` on, into runs of one length.

        Yields:
          The iterator of each run, and its number of steps.
        """
        lengths = self._lengths[step : step + count]
        cuts = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), count]
        for start, end in zip(cuts, cuts[1:], strict=False):
            yield self._iterators[int(lengths[start])], end - start
