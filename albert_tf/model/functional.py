"""The functions that layers are built from. Axis letters: see model/__init__.py."""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
from keras import ops

from albert_tf.config import LAYER_NORM_EPSILON
from albert_tf.model import dropout
from albert_tf.model.fusion import fused
from albert_tf.types import Array

# What the release adds to the attention score of a masked key. Not -inf: a row whose keys are all
# masked must still give finite numbers, and the release's.
MASKED_SCORE = -10000.0


def get_activation(name: str) -> Callable[[Array], Array]:
    """Returns the function of a config's `hidden_act`; gelu is the tanh approximation."""
    if name == "gelu":
        return lambda x: ops.gelu(x, approximate=True)
    return keras.activations.get(name)


def masked_scores(input_mask: Array, starts: Array = None) -> Array:
    """Returns the additive attention mask: 0, or MASKED_SCORE for keys not to attend to.

    Args:
      input_mask: `<int32>[B, S]`, 1 = attend to this position.
      starts: `<int32>[B, S]`, for packed rows: where the example of each position begins.

    Returns:
      `<float32>[B, 1, 1, S]`, or `[B, 1, S, S]` for packed rows, where only positions of the
      same example attend to each other.
    """
    # Not slicing with new axes: TFLite has no such operation.
    masked = 1.0 - ops.expand_dims(ops.cast(input_mask, "float32"), (1, 2))
    if starts is not None:
        others = ops.expand_dims(starts, (1, 3)) != ops.expand_dims(starts, (1, 2))
        masked = ops.maximum(masked, ops.cast(others, "float32"))
    return masked * MASKED_SCORE


def layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
    """Normalises the last axis, in float32 whatever the dtype of x.

    Args:
      x: `<float>[..., H]`.
      gamma: `<float32>[H]` scale.
      beta: `<float32>[H]` offset.

    Returns:
      `<float>[..., H]`, of x's dtype.

    Source: tf.contrib.layers.layer_norm: epsilon 1e-12, biased variance.
    """
    y = ops.cast(x, "float32")
    mean = ops.mean(y, axis=-1, keepdims=True)
    centred = y - mean
    variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
    y = centred * (ops.rsqrt(variance + LAYER_NORM_EPSILON) * gamma) + beta
    return ops.cast(y, x.dtype)


@fused
def add_and_norm(
    x: Array,
    y: Array,
    bias: Array,
    gamma: Array,
    beta: Array,
    rate: float = 0.0,
    seed: Array = None,
) -> Array:
    """Ends a sublayer: normalises x `<float>[..., H]` plus dropout of its product y plus bias."""
    y = dropout.apply(ops.cast(y, "float32") + ops.cast(bias, "float32"), rate, seed)
    return ops.cast(layer_norm(ops.cast(x, "float32") + y, gamma, beta), x.dtype)


@fused
def biased_activation(x: Array, bias: Array, name: str) -> Array:
    """Applies `hidden_act`, in float32, to a product x `<float>[..., I]` plus its bias."""
    x_and_bias = ops.cast(x, "float32") + ops.cast(bias, "float32")
    return ops.cast(get_activation(name)(x_and_bias), x.dtype)


def project(x: Array, kernel: Array, bias: Array, heads: int) -> list[Array]:
    """Returns a projection for each H columns of a kernel, `<float>[B, N, S, D]`.

    Args:
      x: `<float>[B, S, H]`.
      kernel: `<float>[H, count * H]`: several side by side are one product.
      bias: `<float>[count * H]`.
      heads: N.
    """
    batch, length, width = ops.shape(x)
    count = kernel.shape[1] // width
    y = ops.matmul(ops.reshape(x, (-1, width)), kernel) + bias
    y = ops.reshape(y, (batch, length, count, heads, width // heads))
    return ops.unstack(ops.transpose(y, (2, 0, 3, 1, 4)), count)


def attention_probs(
    scores: Array, scale: float, masked_scores: Array, rate: float = 0.0, seed: Array = None
) -> Array:
    """Turns query-key products `<float>[B, N, P, S]` into attention probabilities."""
    return dropout.apply(_softmax(scores, scale=scale, masked_scores=masked_scores), rate, seed)


def _softmax_gradient(probs: Array, upstream: Array, scale: float, masked_scores: Array) -> Array:
    del masked_scores  # Where they are large, the probabilities are 0.
    probs = ops.cast(probs, "float32")
    products = probs * ops.cast(upstream, "float32")
    gradient = (products - probs * ops.sum(products, axis=-1, keepdims=True)) * scale
    return ops.cast(gradient, upstream.dtype)


@functools.partial(fused, gradient=_softmax_gradient)
def _softmax(scores: Array, scale: float, masked_scores: Array) -> Array:
    probs = ops.softmax(ops.cast(scores, "float32") * scale + masked_scores, axis=-1)
    return ops.cast(probs, scores.dtype)


def example_starts(cls_positions: Array, length: int) -> Array:
    """Returns for each position of a packed row where its example begins.

    Args:
      cls_positions: `<int32>[B, K]`, where examples begin; the first at 0, empty slots are 0 too.
      length: S.

    Returns:
      `<int32>[B, S]`; padding after the last example counts as part of it.
    """
    firsts = cls_positions[:, :, None]
    begun = firsts <= ops.arange(length, dtype=cls_positions.dtype)  # [B, K, S]
    return ops.max(ops.where(begun, firsts, 0), axis=1)


def gather_positions(sequence: Array, positions: Array) -> Array:
    """Gathers the vectors at given positions of each sequence.

    Args:
      sequence: `<float>[B, S, H]`.
      positions: `<int32>[B, P]`, in [0, S).

    Returns:
      `<float>[B, P, H]`.
    """
    batch, length, width = ops.shape(sequence)
    first_rows = ops.expand_dims(ops.arange(batch, dtype=positions.dtype) * length, 1)
    # Not take_along_axis: on TensorFlow that is a gather, and a scatter, of single numbers.
    return ops.take(ops.reshape(sequence, (-1, width)), first_rows + positions, axis=0)


def with_positions(sequence: Array, p_mask: Array, least: int) -> tuple[Array, Array]:
    """Adds positions to short sequences, where no answer can be, as a beam needs them.

    Args:
      sequence: `<float>[B, S, H]`.
      p_mask: `<int32>[B, S]`, 1 where no answer can be.
      least: The least number of positions.
    """
    length = ops.shape(sequence)[1]
    if not isinstance(length, int):
        lacking = ops.maximum(least - length, 0)
    elif length < least:
        lacking = least - length
    else:
        return sequence, p_mask
    sequence = ops.pad(sequence, [[0, 0], [0, lacking], [0, 0]])
    return sequence, ops.pad(p_mask, [[0, 0], [0, lacking]], constant_values=1)
