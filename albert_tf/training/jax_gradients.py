"""The losses of a step and their gradients on JAX: only what runs on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
from jax import lax
from jax.custom_derivatives import SymbolicZero
from keras import ops

from albert_tf.model import dropout
from albert_tf.training.task import Task
from albert_tf.types import Array, Features


class Gradients:
    """The losses of a global batch and their gradients; each replica calls it on its share.

    The results are the same on all replicas; it does what TrainStep does, up to the update.

    Args:
      task: Defines the losses.
      model: The result of `task.build_model`.
      seed: Seed of dropout.
      accumulation_steps: Number of micro-batches that a replica splits its batch into.
      axis: Name of the mesh's axis of replicas.
    """

    def __init__(
        self, task: Task, model: keras.Model, seed: int, accumulation_steps: int, axis: str
    ) -> None:
        self._task = task
        self._model = model
        self._seed = dropout.hashed(seed)
        self._accumulation_steps = accumulation_steps
        self._axis = axis

    def __call__(self, weights: list[Array], step: Array, features: Features) -> Any:
        """Returns the losses, and the gradients: None of a weight that no loss depends on."""
        totals = lax.psum(self._task.loss_weights(features), self._axis)
        count = self._accumulation_steps
        first_pass = lax.axis_index(self._axis) * count

        def one(i: Array, features: Features) -> Any:
            seed = dropout.pass_seed(self._seed, step, first_pass + i)
            return self._micro_step(weights, features, totals, seed)

        def add(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(ops.add, total, one(*part)), None

        if count == 1:
            local = one(0, features)
        else:
            parts = {
                name: ops.reshape(feature, (count, -1, *feature.shape[1:]))
                for name, feature in features.items()
            }
            first = one(0, {name: part[0] for name, part in parts.items()})
            rest = {name: part[1:] for name, part in parts.items()}
            local, _ = lax.scan(add, first, (ops.arange(1, count), rest))
        sums, grads = lax.psum(local, self._axis)
        return self._task.losses(sums, totals), grads

    def _micro_step(
        self, weights: list[Array], features: Features, totals: Any, seed: Array
    ) -> Any:
        variables = self._model.trainable_variables
        # JAX's gradient of a weight that no loss depends on is 0, with which it would decay.
        tracked, is_used = _track_use()

        def loss(weights: list[Array]) -> tuple[Array, Any]:
            with keras.StatelessScope(list(zip(variables, tracked(weights), strict=True))):
                outputs = self._model(features, training=True, dropout_seed=seed)
                sums = self._task.loss_sums(outputs, features)
            return sum(self._task.losses(sums, totals)), sums

        (_, sums), grads = jax.value_and_grad(loss, has_aux=True)(weights)
        return sums, [grad if used else None for grad, used in zip(grads, is_used, strict=True)]


def _track_use() -> tuple[Callable[[list[Array]], list[Array]], list[bool]]:
    """Returns the identity of weights, and a list that differentiating it fills.

    The list tells for each weight whether what is differentiated depends on it.
    """
    is_used: list[bool] = []

    @jax.custom_vjp
    def identity(weights: list[Array]) -> list[Array]:
        return weights

    def forward(weights: list[Any]) -> tuple[list[Array], None]:
        return [weight.value for weight in weights], None

    def backward(_: None, grads: list[Any]) -> tuple[list[Array]]:
        is_used[:] = [not isinstance(grad, SymbolicZero) for grad in grads]
        zeros = [ops.zeros(grad.shape, grad.dtype) for grad in grads]
        return ([g if used else zero for g, used, zero in zip(grads, is_used, zeros, strict=True)],)

    identity.defvjp(forward, backward, symbolic_zeros=True)
    return identity, is_used
