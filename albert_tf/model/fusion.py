"""Compiles chains of elementwise operations to one loop: XLA on TensorFlow, kernels on JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from albert_tf.types import Array

if on_jax := keras.backend.backend() == "jax":
    from albert_tf.model.jax_ops import kernel_or

# For fewer elements TensorFlow is as fast, and XLA takes a while to compile a chain.
WORTH_COMPILING = 65_536


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Like `fused`, for a chain without a gradient, which may return several tensors."""
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    by_xla = tf.function(function, jit_compile=True, autograph=False)

    def call(*tensors: Any, **keywords: Any) -> Array:
        return (by_xla if _gains(tensors) else function)(*tensors, **keywords)

    return call


def fused(
    function: Callable[..., Any], gradient: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Compiles a chain of elementwise operations and reductions, and its gradient, with XLA.

    TensorFlow makes a pass over memory for each operation of such a chain, which on a CPU costs as
    much as the matrix products between the chains. XLA needs only one pass. The backward pass
    recomputes the chain from its inputs, so only the inputs are stored; or only the result, if
    `gradient` is given.

    A chain stays as it is where there is nothing to gain: for few elements, in eager mode, and for
    dynamic shapes (XLA compiles for one shape). TPUs and JAX compile the whole step anyway, but on
    NVIDIA GPUs some chains are kernels: see jax_ops.py.

    Args:
      function: Maps tensors, and keyword arguments without gradients, to a tensor.
      gradient: Maps the result, its upstream gradient and the keyword arguments to the gradient
        of each tensor.

    Returns:
      A function with the same arguments and result.
    """
    # Only TensorFlow would run the chain operation by operation.
    if keras.backend.backend() != "tensorflow":
        return kernel_or(function) if on_jax else function
    import tensorflow as tf

    forward = tf.function(function, jit_compile=True, autograph=False)

    # By default the backward pass runs the chain once more, under a tape, in a program of its own.
    def differentiate(tensors: Any, upstream: Any, **keywords: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors, **keywords)
        return tape.gradient(result, tensors, upstream)

    backward = tf.function(gradient or differentiate, jit_compile=True, autograph=False)

    # This is decided at each call: the same chain may see few elements now and many later.
    def call(*tensors: Any, **keywords: Any) -> Array:
        if not _gains(tensors):
            return function(*tensors, **keywords)

        # TensorFlow would store every intermediate tensor; a gradient of our own keeps only these.
        @tf.custom_gradient
        def differentiable(*tensors: Any) -> Any:
            result = forward(*tensors, **keywords)
            kept = result if gradient else tensors
            return result, lambda upstream: backward(kept, upstream, **keywords)

        return differentiable(*tensors)

    return call


def _gains(tensors: Any) -> bool:
    """Whether XLA would speed up a chain over these tensors."""
    import tensorflow as tf

    on_tpu = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
    static = all(tensor.shape.is_fully_defined() for tensor in tensors)
    return (
        static
        and max(tensor.shape.num_elements() for tensor in tensors) >= WORTH_COMPILING
        and not on_tpu
        and not tf.executing_eagerly()
    )
