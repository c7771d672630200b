"""Devices that TensorFlow runs, under a tf.distribute strategy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert_tf.records.datasets import untuned
from albert_tf.training import distribution
from albert_tf.training.devices import Devices, InputFn, Run
from albert_tf.training.task import Task
from albert_tf.training.train_step import TrainStep
from albert_tf.types import Features


class TensorFlowDevices(Devices):
    """The replicas of a strategy.

    Args:
      strategy: From distribution.create_strategy.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        self.name = type(strategy).__name__
        self.is_chief = distribution.is_chief(strategy)
        self.input_context = distribution.input_context(strategy)
        self.static_shapes = any("CPU" not in name for name in strategy.extended.worker_devices)

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the strategy's scope."""
        return self._strategy.scope()

    def mean_over_processes(self, *values: float) -> list[float]:
        """See Devices."""
        return distribution.mean_over_workers(self._strategy, *values)

    def host_values(self, tensors: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """See Devices."""
        # On a CPU it is the variable's own memory, in which TensorFlow then updates nothing.
        with tf.device("CPU"):
            return {
                name: tf.identity(tf.convert_to_tensor(tensor)) for name, tensor in tensors.items()
            }

    # --- batches ----------------------------------------------------------------------------

    def iterator(self, input_fn: InputFn) -> Iterator[Any]:
        """Returns an iterator over a host's dataset, untuned.

        The iterators that tf.distribute puts on each device are tuned whatever the dataset's
        options; they are used only for TPUs, where they also feed the hosts of a pod.
        """
        if self._on_tpu:
            return iter(
                self._strategy.distribute_datasets_from_function(
                    lambda context: untuned(input_fn(context))
                )
            )
        return iter(untuned(input_fn(self.input_context)))

    def batches(self, input_fn: InputFn) -> Iterator[Any]:
        """See Devices."""
        iterator = self.iterator(input_fn)
        with contextlib.suppress(StopIteration):
            while True:
                yield self._next_batch(iterator)

    def _next_batch(self, iterator: Iterator[Any]) -> Any:
        """Returns one batch for each of this host's replicas, for `strategy.run`."""
        if self._on_tpu:
            return next(iterator)
        return self._strategy.experimental_distribute_values_from_function(lambda _: next(iterator))

    # --- what runs on the devices -----------------------------------------------------------

    def train_steps(
        self,
        task: Task,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        seed: int,
        jit_compile: bool,
        accumulation_steps: int,
    ) -> Callable[[Iterable[Run]], np.ndarray]:
        """See Devices."""
        train_step = TrainStep(task, model, optimizer, seed, jit_compile, accumulation_steps)

        # Nothing there is Python that AutoGraph must rewrite, at more than a second a run.
        @tf.autograph.experimental.do_not_convert
        def step(iterator: Any) -> tf.Tensor:
            replicas = self._strategy.run(train_step, args=(self._next_batch(iterator),))
            # All replicas hold the same numbers: they have been summed.
            return self._first(replicas)

        @tf.function
        def run(iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
            stats = tf.TensorArray(tf.float32, size=num_steps)
            for i in tf.range(num_steps):
                stats = stats.write(i, step(iterator))
            return stats.stack()  # [steps, len(stat_names)]

        def run_all(runs: Iterable[Run]) -> np.ndarray:
            stats = [run(iterator, tf.constant(count)) for iterator, count in runs]
            return tf.concat(stats, axis=0).numpy()

        return run_all

    def summed(
        self, model: keras.Model, function: Callable[[Features], Any]
    ) -> Callable[[Any], Any]:
        """See Devices."""

        def replica_sums(batch: Features) -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, function(batch))

        @tf.function(autograph=False)
        def sums(batch: Any) -> Any:
            replicas = self._strategy.run(replica_sums, args=(batch,))
            return {name: self._first(value) for name, value in replicas.items()}

        return lambda batch: _arrays(sums(batch))

    def gathered(
        self, model: keras.Model, function: Callable[[Features], Any]
    ) -> Callable[[Any], Any]:
        """See Devices."""

        @tf.function(autograph=False)
        def rows(batch: Any) -> Any:
            replicas = self._strategy.run(function, args=(batch,))
            return tf.nest.map_structure(lambda x: self._strategy.gather(x, axis=0), replicas)

        return lambda batch: _arrays(rows(batch))

    def _first(self, replicas: Any) -> tf.Tensor:
        return self._strategy.experimental_local_results(replicas)[0]


def _arrays(tensors: Any) -> Any:
    return tf.nest.map_structure(lambda x: x.numpy(), tensors)
