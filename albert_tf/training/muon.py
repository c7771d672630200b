"""Muon: orthogonal updates of the encoder's matrices, AdamW's of all other weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
from absl import logging
from keras import ops

from albert_tf.training.adamw import AdamW
from albert_tf.types import Array

# The matrices of the encoder: those of its blocks, and the map from E to H.
ENCODER_MATRICES = r"(^|/)encoder/.*kernel$"
# A step of the iteration is x -> a x + b (x x^T) x + c (x x^T)^2 x.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
# An orthogonal m x n matrix has a root mean square of 1 / sqrt(max(m, n)); AdamW's is about 0.2.
_ROOT_MEAN_SQUARE = 0.2


@keras.saving.register_keras_serializable(package="albert_tf")
class Muon(AdamW):
    """Moves matrices along their momentum made orthogonal, and other weights as AdamW does.

    A matrix's momentum is averaged by `momentum`, once more with the newest gradient (Nesterov),
    and made roughly orthogonal: then all its singular values are near 1. The update is scaled to
    the root mean square of AdamW's, so that both parts have the same learning rate and decay.
    Everything else (embedding tables, biases, layer norms, heads) is AdamW's, with bias correction.

    Gradients are clipped as AdamW clips them. With several replicas, each matrix is made orthogonal
    on one of them, and the others receive the result.

    Source: Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon); the scale: Liu et al.
    2025 (arXiv 2502.16982).
    Differs: `keras.optimizers.Muon` takes the map from E to H for an embedding.

    Args:
      learning_rate: A float or a schedule.
      momentum: Decay of the matrices' momentum.
      adam_share: Learning rate of all other weights, as a share of the matrices'.
      matrices: A regular expression. Variables of two axes whose path it matches are matrices;
        it should match no embedding table.
      **kwargs: AdamW's arguments; `bias_correction` is True by default.

    Example:
      >>> optimizer = Muon(2e-3, weight_decay_rate=0.01, beta_2=0.95)
      >>> optimizer.bias_correction, optimizer.adam_share
      (True, 1.0)
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
        momentum: float = 0.95,
        adam_share: float = 1.0,
        matrices: str = ENCODER_MATRICES,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, **{"bias_correction": True, **kwargs})
        self.momentum = momentum
        self.adam_share = adam_share
        self.matrices = matrices
        # Computes a function of each of several arrays, each on one replica, and returns all
        # results on all replicas. Only the training loop knows JAX's replicas.
        self.each_once = _on_tensorflow if keras.backend.backend() == "tensorflow" else _here

    def is_matrix(self, variable: keras.Variable) -> bool:
        """Whether updates of `variable` are made orthogonal."""
        return len(variable.shape) == 2 and bool(re.search(self.matrices, variable.path))

    def get_config(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("momentum", "adam_share", "matrices")}
        return {**super().get_config(), **own}

    def _add_moments(self, variables: Sequence[keras.Variable]) -> None:
        """Creates `muon_m` for matrices, and AdamW's moments for other weights."""
        is_matrix = [*map(self.is_matrix, variables)]
        slots = [("muon_m",) if each else ("adam_m", "adam_v") for each in is_matrix]
        add = self.add_variable_from_reference
        made = [
            {name: add(variable, name=name) for name in names}
            for variable, names in zip(variables, slots, strict=True)
        ]
        self.muon_m, self.adam_m, self.adam_v = (
            [of.get(name) for of in made] for name in ("muon_m", "adam_m", "adam_v")
        )
        names = [v.path for v, of in zip(variables, made, strict=True) if "muon_m" in of]
        if not names:
            raise ValueError(f"Muon has no matrix here: no path of two axes has {self.matrices!r}")
        text = "Muon: %d matrices (%s); AdamW: the other %d weights"
        logging.info(text, len(names), ", ".join(names), len(variables) - len(names))

    # --- one update -----------------------------------------------------------------------------

    def _all_reduce_sum_gradients(self, grads_and_vars):  # Only on TensorFlow.
        grads, variables = zip(*super()._all_reduce_sum_gradients(grads_and_vars), strict=True)
        return list(zip(self._directed(grads, variables), variables, strict=True))

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if keras.backend.backend() != "tensorflow":
            grads = self._directed(grads, trainable_variables)
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _directed(self, grads: Sequence[Array], variables: Sequence[Any]) -> list[Array]:
        """Replaces the gradients of matrices by their new momentum and direction, stacked.

        Keras takes one tensor for each variable. `grads` are summed over all replicas, and clipped.
        """
        moments = [self.muon_m[self._get_variable_index(variable)] for variable in variables]
        new, mixed = {}, {}
        for i, (grad, moment) in enumerate(zip(grads, moments, strict=True)):
            if moment is not None:
                grad = ops.cast(grad, moment.dtype)
                new[i] = self.momentum * moment + (1.0 - self.momentum) * grad
                mixed[i] = self.momentum * new[i] + (1.0 - self.momentum) * grad
        directions = dict(zip(mixed, self.each_once(orthogonal, [*mixed.values()]), strict=True))
        return [ops.stack([new[i], directions[i]]) if i in new else x for i, x in enumerate(grads)]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates `variable` `<float>[...]` by one step, given what `_directed` returns for it."""
        index = self._get_variable_index(variable)
        moment = self.muon_m[index]
        if moment is None:
            super().update_step(gradient, variable, learning_rate * self.adam_share)
            return
        new, direction = ops.unstack(gradient, 2)
        value = ops.convert_to_tensor(variable)
        update = direction * (_ROOT_MEAN_SQUARE * max(variable.shape) ** 0.5)
        if index not in self._excluded_indices:
            update += self.weight_decay_rate * value
        self.assign(moment, new)
        self.assign(variable, value - ops.cast(learning_rate, value.dtype) * update)


def orthogonal(matrix: Array) -> Array:
    """Returns a matrix `<float>[M, N]` with another's singular vectors and singular values near 1.

    Five steps of a Newton-Schulz iteration, in the matrix's precision, bring all singular values
    above 1/200 of its norm to between 0.68 and 1.16.

    Source: Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon).

    Example:
      >>> found = orthogonal(ops.convert_to_tensor([[3.0, 0.0, 0.0], [0.0, 0.0, -2.0]]))
      >>> [[round(float(x), 1) for x in row] for row in found]
      [[1.1, 0.0, 0.0], [0.0, 0.0, -0.7]]
    """
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = ops.transpose(matrix) if is_tall else matrix
    # A norm of 1 bounds the singular values; a matrix of zeros stays zero.
    norm = ops.sqrt(ops.sum(ops.square(x)))
    x = x / ops.maximum(norm, 1e-30)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        square = ops.matmul(x, ops.transpose(x))
        x = a * x + ops.matmul(b * square + c * ops.matmul(square, square), x)
    return ops.transpose(x) if is_tall else x


def _here(function: Callable[[Array], Array], arrays: Sequence[Array]) -> list[Array]:
    return [function(array) for array in arrays]


def _on_tensorflow(function: Callable[[Array], Array], arrays: Sequence[Array]) -> list[Array]:
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return _here(function, arrays)
    # The replicas take turns to compute a result; for each, the others add zeros.
    number, replicas = context.replica_id_in_sync_group, context.num_replicas_in_sync

    def share(i: int, x: Array) -> Array:
        mine = tf.equal(number, i % replicas)
        return tf.cond(mine, lambda: function(x), lambda: tf.zeros_like(x))

    mine = [share(i, x) for i, x in enumerate(arrays)]
    return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)
