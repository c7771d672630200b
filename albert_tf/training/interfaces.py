"""The interfaces through which the Trainer knows a task, and the devices of each framework."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras.optimizers import Optimizer

from albert_tf.types import Array, Features

if TYPE_CHECKING:
    import tensorflow as tf


class Task(abc.ABC):
    """Base class of tasks: everything that the Trainer knows about a task.

    Every quantity is a sum and a weight, never a mean. Sums add up over micro-batches, replicas
    and batches, so a loss does not depend on how its batch is split.

    Attributes:
      loss_names: Names of the losses; their total is minimised.
      loss_epsilon: By loss name, a number added to the weight before dividing by it.
      key_metric: The metric that ranks checkpoints; larger is better, unless it is a loss.
      classes: Names of the classes, by id; () for a task without classes.
      depths: Numbers of layers after which the task reads the model, besides all of them.
      compares_examples: Whether losses compare the examples of a batch with each other. If so,
        `loss_sums` gets the outputs of the whole batch, a tensor `<float32>[B, ...]`, and the
        features of a part of it.
    """

    loss_names: tuple[str, ...]
    loss_epsilon: Mapping[str, float] = {}
    key_metric: str
    classes: tuple[str, ...] = ()
    depths: tuple[int, ...] = ()
    compares_examples: bool = False

    @abc.abstractmethod
    def build_model(self) -> keras.Model:
        """Returns a new, randomly initialised model."""

    def with_drawn(self, features: Features, seed: int, step: Array) -> Features:
        """Returns a batch's features and anything drawn at random for it, the same on all replicas.

        Args:
          features: The features of a replica's share of the batch.
          seed: The run's seed.
          step: The training step, `<int>[]`; None in an evaluation.
        """
        return features

    @abc.abstractmethod
    def loss_weights(self, features: Features) -> dict[str, Array]:
        """Returns the weight of each loss, `<float32>[]` by name, from a batch's features."""

    @abc.abstractmethod
    def loss_sums(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns the weighted sum of each loss, `<float32>[]` by name: loss = sum / weight."""

    def losses(self, sums: Mapping[str, Array], weights: Mapping[str, Array]) -> list[Array]:
        """Returns the losses `<float32>[]`, in the order of `loss_names`, from sums and weights."""
        return [
            sums[name] / (weights[name] + self.loss_epsilon.get(name, 0.0))
            for name in self.loss_names
        ]

    def metrics(self, outputs: Any, features: Features) -> dict[str, tuple[Array, Array]]:
        """Returns sum and weight of each metric over a batch, `<float32>[]` by name.

        By default the metrics are the losses.
        """
        sums, weights = self.loss_sums(outputs, features), self.loss_weights(features)
        return {name: (sums[name], weights[name]) for name in sums}


# Makes a host's dataset of per-replica batches, one for each of its replicas in turn.
InputFn = Callable[["tf.distribute.InputContext"], "tf.data.Dataset"]
# An iterator over batches, made by Devices.iterator, and the number of steps to take from it.
Run = tuple[Any, int]
# Trains for several runs of steps in sequence, and returns their statistics.
RunSteps = Callable[[Iterable[Run]], np.ndarray]
# Name of a micro-batch's feature: the gradients of the total loss with respect to its outputs.
OUTPUT_GRADIENTS = "output_gradients"
# A function of a batch, or of one replica's share of a batch.
OnBatch = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class StepSettings:
    """How a training step is computed."""

    seed: int = 0  # Seed of dropout and other draws.
    # Whether XLA compiles the gradients; None: only on GPUs. TPUs and JAX always compile them.
    jit_compile: bool | None = None
    accumulation_steps: int = 1  # Number of micro-batches that a replica splits its batch into.


class Devices(abc.ABC):
    """The devices of this process and of the processes that train together with it.

    Each device is a replica: it holds all weights and takes an equal share of each batch. Between
    calls Keras' variables hold the weights, wherever the devices keep them.

    Attributes:
      name: Name of the devices in messages.
      is_chief: Whether this process writes the files.
      num_replicas: Number of devices in all processes.
      num_processes: Number of processes that train together.
      process: Index of this process.
      on_cpu: Whether the devices are CPUs.
      static_shapes: Whether a step is compiled for the exact shapes of its batch, even if short.
    """

    name: str
    is_chief: bool
    num_replicas: int
    num_processes: int
    process: int
    on_cpu: bool
    static_shapes: bool = True

    @property
    def input_context(self) -> tf.distribute.InputContext:
        """The share of the input that this process feeds to its replicas."""
        import tensorflow as tf

        return tf.distribute.InputContext(self.num_processes, self.process, self.num_replicas)

    def __enter__(self) -> Devices:
        return self

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        """Ends this process' part in a run; after an error it does not wait for the others."""
        return

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which models and optimizers must be created."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def mean_over_processes(self, *values: float) -> list[float]:
        """Returns the means of values over all processes; waits until every process calls it."""

    def any_process(self, answer: bool) -> bool:
        """Returns whether the answer is true in any process; every process calls it."""
        return self.mean_over_processes(float(answer))[0] > 0

    def of_chief(self, number: int) -> int:
        """Returns the chief's number; every process calls it.

        Use it for decisions that depend on files written by the chief. Other processes might
        still see an older state, take another branch, and hang.
        """
        (mean,) = self.mean_over_processes(float(number if self.is_chief else 0))
        return round(mean * self.num_processes)

    def wait_for_all(self) -> None:
        """Waits until every process calls it."""
        self.mean_over_processes(0.0)

    @abc.abstractmethod
    def host_values(self, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns copies of variables and arrays that no later step changes.

        Every process calls it.
        """

    @abc.abstractmethod
    def iterator(self, input_fn: InputFn) -> Any:
        """Returns an iterator over a host's dataset, for the function of `train_steps`."""

    @abc.abstractmethod
    def batches(self, input_fn: InputFn) -> Iterator[Any]:
        """Yields the batches of a finite dataset, for the functions of `summed` and `gathered`."""

    @abc.abstractmethod
    def train_steps(
        self, task: Task, model: keras.Model, optimizer: Optimizer, settings: StepSettings
    ) -> RunSteps:
        """Returns a function that trains for several runs of steps in sequence.

        It returns the statistics of each step, `<float32>[steps, len(stat_names(task))]`. It
        launches all runs before it fetches anything, since the host must not wait between them.
        The model comes from `task.build_model`, and the optimizer is built.
        """

    @abc.abstractmethod
    def summed(self, model: keras.Model, function: OnBatch) -> OnBatch:
        """Returns a function of a batch that sums `function` of each replica's share.

        `function` calls the model and returns tensors by name; the result has arrays instead.
        """

    @abc.abstractmethod
    def gathered(self, model: keras.Model, function: OnBatch) -> OnBatch:
        """Like `summed`, but concatenates the rows of all replicas."""


def stat_names(task: Task) -> tuple[str, ...]:
    """Returns the names of a training step's statistics over the global batch.

    They are the total loss, each loss, the learning rate, and the global norm of the gradients
    before clipping.
    """
    return ("loss", *task.loss_names, "learning_rate", "grad_norm")
