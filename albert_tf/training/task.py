"""The contract between the Trainer and a task."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import keras

from albert_tf.types import Array, Features


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
