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

# --- tasks ----------------------------------------------------------------------------------


class Task(abc.ABC):
    """Base class of tasks: all that the Trainer knows about a task.

    Every quantity is a sum and a weight, never a mean: sums add up over micro-batches, replicas
    and batches, so that a loss does not depend on how its batch is split.

    Attributes:
      loss_names: Names of the losses; their total is minimised.
      loss_epsilon: By loss name, a number added to the weight before dividing by it.
      key_metric: The metric by which checkpoints are compared; larger is better, except of a loss.
      classes: Names of the classes, by id; () for a task without.
    """

    loss_names: tuple[str, ...]
    loss_epsilon: Mapping[str, float] = {}
    key_metric: str
    classes: tuple[str, ...] = ()

    @abc.abstractmethod
    def build_model(self) -> keras.Model:
        """Returns a new, randomly initialised model."""

    @abc.abstractmethod
    def loss_weights(self, features: Features) -> dict[str, Array]:
        """Returns the weight of each loss, `<float32>[]` by name, from a batch's features."""

    @abc.abstractmethod
    def loss_sums(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns the weighted sum of each loss, `<float32>[]` by name; a loss is sum / weight."""

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


# --- devices --------------------------------------------------------------------------------

# Makes a host's dataset: per-replica batches, one for each of its replicas in turn.
InputFn = Callable[["tf.distribute.InputContext"], "tf.data.Dataset"]
# An iterator over batches, made by the devices themselves, and how many steps to take from it.
Run = tuple[Any, int]
# Trains for one run of steps after the other.
RunSteps = Callable[[Iterable[Run]], np.ndarray]
# A function of a batch, or of a replica's share of one.
OnBatch = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class StepSettings:
    """How a training step is computed."""

    seed: int = 0  # Seed of dropout.
    # Whether XLA compiles forward and backward pass, by default on GPUs; a TPU and JAX always do.
    jit_compile: bool | None = None
    accumulation_steps: int = 1  # Number of micro-batches that a replica splits its batch into.


class Devices(abc.ABC):
    """The devices of this process, and of the processes that train together with it.

    Each device is a replica: it holds all weights and takes an equal share of each batch. Between
    calls the weights are the values of Keras' variables, wherever the devices keep them.

    Attributes:
      name: Their name in messages.
      is_chief: Whether this process is the one that writes files.
      num_replicas: Number of devices of all processes.
      num_processes: Number of processes that train together.
      process: The number of this one.
      on_cpu: Whether they are CPUs.
      static_shapes: Whether a step is compiled for the shapes of its batch, even of short ones.
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
        """The part of the input that this process feeds to its replicas."""
        import tensorflow as tf

        return tf.distribute.InputContext(self.num_processes, self.process, self.num_replicas)

    def __enter__(self) -> Devices:
        return self

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        """Ends this process' part in a run; after an error, without waiting for the others."""
        return

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which models and optimizers are made."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def mean_over_processes(self, *values: float) -> list[float]:
        """Returns the means of the values over all processes; waits until each calls it."""

    def any_process(self, answer: bool) -> bool:
        """Returns whether the answer is true in any process; every process calls it."""
        return self.mean_over_processes(float(answer))[0] > 0

    def of_chief(self, number: int) -> int:
        """Returns the chief's number; every process calls it.

        Use it for decisions that depend on files the chief writes: other processes may still see
        an older state, take another branch, and hang.
        """
        (mean,) = self.mean_over_processes(float(number if self.is_chief else 0))
        return round(mean * self.num_processes)

    def wait_for_all(self) -> None:
        """Waits until every process calls it."""
        self.mean_over_processes(0.0)

    @abc.abstractmethod
    def host_values(self, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the values of variables and arrays, which no later step changes.

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
        """Returns a function that trains for one run of steps after the other.

        It returns the statistics of each step, `<float32>[steps, len(stat_names(task))]`. Nothing
        is fetched before all runs are launched: the host must not wait between them. The model is
        the result of `task.build_model`, and the optimizer is built.
        """

    @abc.abstractmethod
    def summed(self, model: keras.Model, function: OnBatch) -> OnBatch:
        """Returns a function of a batch: `function` of each replica's share, summed over them.

        It calls the model and returns tensors, by name; the result has arrays in their place.
        """

    @abc.abstractmethod
    def gathered(self, model: keras.Model, function: OnBatch) -> OnBatch:
        """Like `summed`, but with the rows of all replicas one after the other."""


def stat_names(task: Task) -> tuple[str, ...]:
    """Returns the names of a training step's statistics, all of the global batch.

    They are the total loss, each loss, the learning rate used, and the gradients' global norm
    before clipping.
    """
    return ("loss", *task.loss_names, "learning_rate", "grad_norm")
