"""AdamW and LAMB as released."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from albert_tf.model.fusion import compiled


@keras.saving.register_keras_serializable(package="albert_tf")
class AdamW(keras.optimizers.Optimizer):
    """Adam with the release's weight decay and, by default, no bias correction.

    A variable whose gradient is None is left alone: it neither moves nor decays.

    Under `tf.distribute` each replica passes its share of the gradients. The shares are summed
    before they are clipped, so the update doesn't depend on the number of replicas.

    Source: the release's `optimization.AdamWeightDecayOptimizer`.
    Differs: the release clips on each core before the sum, and on a CPU or GPU takes the norm
    of a sparse gradient over its unsummed rows.

    Args:
      learning_rate: A float or a schedule.
      weight_decay_rate: Fraction of the weight added to its update, inside LAMB's norm.
      beta_1: Decay of the first moment.
      beta_2: Decay of the second moment.
      epsilon: Added to the square root of the second moment.
      exclude_names: A regular expression, or several. A variable is excluded from weight decay
        and from LAMB's scaling if one matches anywhere in its name or its layer's. A pattern with
        a slash, for example "encoder/", may match anywhere in the path.
      bias_correction: Whether the moments are divided by 1 - beta^t. The release doesn't,
        which can make fine-tuning on little data unstable (arXiv 2006.05987).
      sum_over_replicas: Whether `apply` sums the gradients over the replicas of a
        `tf.distribute` strategy. False for a loop that gives every replica the global
        gradient.
      **kwargs: Arguments of `keras.optimizers.Optimizer` except `weight_decay`, for example
        `global_clipnorm`. With `gradient_accumulation_steps` schedules count updates, not batches.

    Example:
      >>> optimizer = AdamW(1e-3, global_clipnorm=1.0)
      >>> optimizer.exclude_names
      ('LayerNorm', 'layer_norm', 'bias')
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_names: str | Sequence[str] = ("LayerNorm", "layer_norm", "bias"),
        bias_correction: bool = False,
        sum_over_replicas: bool = True,
        **kwargs: Any,
    ) -> None:
        if "weight_decay" in kwargs:
            raise ValueError(
                "`weight_decay` is Keras' own decay, which would be applied in addition to the "
                "release's: use `weight_decay_rate` instead."
            )
        super().__init__(learning_rate, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        # Iterating over a string would make each of its letters a pattern.
        names = [exclude_names] if isinstance(exclude_names, str) else exclude_names
        self.exclude_names = tuple(names)
        self.bias_correction = bias_correction
        self.sum_over_replicas = sum_over_replicas
        self._fused_step = compiled(self._step)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Refuses Keras' exclusions, which apply only to its own weight decay."""
        raise ValueError("use `exclude_names`, patterns of names, when you create the optimizer")

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the moments `adam_m` and `adam_v`, in the order of `variables`."""
        if self.built:
            return
        super().build(variables)
        self._add_moments(variables)
        # Decided here, by path: `update_step` may receive a replica's copy of the variable.
        self._excluded_indices = frozenset(
            index for index, variable in enumerate(variables) if self.is_excluded(variable)
        )

    def _add_moments(self, variables: Sequence[keras.Variable]) -> None:
        self.adam_m, self.adam_v = self.add_optimizer_variables(variables, ["adam_m", "adam_v"])

    def is_excluded(self, variable: keras.Variable) -> bool:
        """Whether the name of `variable` excludes it from weight decay and LAMB's scaling."""
        path = getattr(variable, "path", variable.name).partition("/replica_")[0]
        # Ignore the model's name: one like "bias_detector" would exclude all of its weights.
        own = "/".join(path.split("/")[-2:])
        return any(re.search(each, path if "/" in each else own) for each in self.exclude_names)

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> None:
        """Updates the variables that have a gradient and counts one step.

        Args:
          grads: A tensor, `tf.IndexedSlices` or None for each variable.
          trainable_variables: The variables; by default those from `build`.
        """
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        trainable_variables = list(trainable_variables)
        if not self.built:
            self.build(trainable_variables)
        # A variable without a gradient neither moves nor decays.
        pairs = [
            (_sum_rows(grad, variable), variable)
            for grad, variable in zip(grads, trainable_variables, strict=True)
            if grad is not None
        ]
        if not pairs:
            raise ValueError("No variable has a gradient: the loss doesn't depend on any of them.")
        super().apply(*zip(*pairs, strict=True))

    def _get_current_learning_rate(self):
        # Keras would pass the number of micro-batches, several of which make one update.
        if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            return self._learning_rate(self.iterations)
        return super()._get_current_learning_rate()

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates `variable` `<float>[...]` by one step, given its clipped `gradient`."""
        dtype = variable.dtype
        index = self._get_variable_index(variable)
        m, v = self.adam_m[index], self.adam_v[index]
        step = self._fused_step(
            ops.convert_to_tensor(variable),
            m.value,
            v.value,
            ops.cast(gradient, dtype),
            ops.cast(learning_rate, dtype),
            ops.cast(self.iterations + 1, dtype),
            excluded=index in self._excluded_indices,
        )
        for target, value in zip((variable, m, v), step, strict=True):
            self.assign(target, value)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["weight_decay"]
        own = ("weight_decay_rate", "beta_1", "beta_2", "epsilon", "bias_correction")
        config |= {name: getattr(self, name) for name in (*own, "sum_over_replicas")}
        return {**config, "exclude_names": list(self.exclude_names)}

    def _step(self, variable, m, v, gradient, learning_rate, updates, excluded):
        """Returns the variable and its moments after a step; `updates` includes this one."""
        # Moments, and their correction for the start from 0.
        m = self.beta_1 * m + (1.0 - self.beta_1) * gradient
        v = self.beta_2 * v + (1.0 - self.beta_2) * ops.square(gradient)
        corrected_m, corrected_v = m, v
        if self.bias_correction:
            corrected_m = m / (1.0 - ops.power(ops.cast(self.beta_1, m.dtype), updates))
            corrected_v = v / (1.0 - ops.power(ops.cast(self.beta_2, v.dtype), updates))
        # Weight decay is a part of the update, so that LAMB scales it, too.
        update = corrected_m / (ops.sqrt(corrected_v) + self.epsilon)
        if not excluded:
            update = self._scale(update + self.weight_decay_rate * variable, variable)
        return variable - learning_rate * update, m, v

    def _scale(self, update, variable):
        del variable
        return update

    # Keras clips each replica's gradients and then sums them over the replicas. These two hooks
    # reverse the order. Only TensorFlow's optimizer calls the second: other backends don't sum.

    def _clip_gradients(self, grads):
        on_tensorflow = keras.backend.backend() == "tensorflow"
        return grads if on_tensorflow else super()._clip_gradients(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        if self.sum_over_replicas:
            grads_and_vars = super()._all_reduce_sum_gradients(grads_and_vars)
        grads, variables = zip(*grads_and_vars, strict=True)
        if self.global_clipnorm:
            grads = _clip_by_global_norm(grads, self.global_clipnorm)
        else:
            grads = super()._clip_gradients(grads)
        return list(zip(grads, variables, strict=True))


@keras.saving.register_keras_serializable(package="albert_tf")
class Lamb(AdamW):
    """AdamW with steps scaled to the norm of the weight they update, for batches of thousands.

    The update, weight decay included, is multiplied by norm(weight) / norm(update), unclipped; or
    by 1 if either norm is 0 or the variable's name excludes it. The arguments are AdamW's.

    Source: arXiv 1904.00962, algorithm 2; ALBERT (arXiv 1909.11942), section 4.1; the release's
    `lamb_optimizer.LAMBOptimizer`.

    Example:
      >>> optimizer = Lamb(1e-3, global_clipnorm=1.0)
      >>> optimizer.weight_decay_rate
      0.01
    """

    def _scale(self, update, variable):
        # The trust ratio.
        weight_norm = ops.sqrt(ops.sum(ops.square(variable)))
        update_norm = ops.sqrt(ops.sum(ops.square(update)))
        usable = ops.logical_and(weight_norm > 0, update_norm > 0)
        ratio = ops.where(usable, weight_norm, 1.0) / ops.where(usable, update_norm, 1.0)
        return ratio * update


@compiled
def _squared_norm(x):
    return ops.sum(ops.square(x))


def _clip_by_global_norm(grads, clip_norm):
    """Does what Keras' function does, in one pass over each gradient instead of two."""
    norm = ops.sqrt(ops.sum(ops.stack([_squared_norm(grad) for grad in grads])))
    scale = ops.minimum(clip_norm / norm, 1.0)
    return [scale * grad for grad in grads]


def _sum_rows(grad, variable):
    """Converts a gather's gradient, `tf.IndexedSlices`, to a tensor; returns others unchanged."""
    if not hasattr(grad, "dense_shape"):
        return grad
    return ops.segment_sum(grad.values, grad.indices, num_segments=variable.shape[0])
