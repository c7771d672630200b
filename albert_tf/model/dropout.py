"""Dropout as a function of a seed.

A block recomputed for the backward pass gets the same mask again, each replica gets its own, and a
resumed run repeats the masks of an uninterrupted one.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from albert_tf.types import Array

# Sites of one forward pass: the embeddings take site 0, each block the next three.
SITES_PER_BLOCK = 3
# So that passes share no seed. Enough for 1,364 blocks and a head: the last sites of a deeper model
# have the seeds of the first sites of the next pass.
_SITES_PER_PASS = 4096


def hashed(seed: int) -> int:
    """Returns a run's seed for `pass_seed`, so that neighbouring seeds share no mask."""
    # Small, so that nothing overflows.
    return int(np.random.SeedSequence(seed).generate_state(1)[0] >> 2)


def pass_seed(run_seed: int, step: Array, number: Array) -> Array:
    """Returns the seed of a forward pass in training, `<int32>[2]`.

    Args:
      run_seed: The run's, hashed.
      step: The training step, `<int>[]`.
      number: The pass among those of the step, over all replicas and micro-batches, `<int>[]`.
    """
    first_site = run_seed + ops.cast(number, "int32") * _SITES_PER_PASS
    return ops.stack([first_site, ops.cast(step, "int32")])


def fold_in(seed: Array, site: Array) -> Array:
    """Derives the seed of a dropout site from the seed of the forward pass.

    Args:
      seed: `<int>[2]`, or None for no dropout.
      site: The site's number, an int or `<int>[]`.

    Returns:
      `<int>[2]`, or None.
    """
    if seed is None:
        return None
    return seed + ops.stack([ops.cast(site, seed.dtype), ops.zeros((), seed.dtype)])


def apply(x: Array, rate: float, seed: Array) -> Array:
    """Zeroes a fraction `rate` of x and scales the rest by 1 / (1 - rate).

    Args:
      x: `<float>[...]`.
      rate: Fraction to drop, in [0, 1).
      seed: `<int>[2]`; None (not training) returns x unchanged.

    Returns:
      `<float>[...]`, of x's shape and dtype.
    """
    if seed is None or rate == 0:
        return x
    if keras.backend.backend() != "tensorflow":
        return keras.random.dropout(x, rate, seed=_GivenSeed(ops.cast(seed, "uint32")))
    import tensorflow as tf

    # Keras leaves the algorithm to XLA, whose choice takes 200 ns an element on a CPU. Philox takes
    # 3, and draws the same numbers without XLA. A TPU has its own generator.
    on_tpu = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
    algorithm = "auto_select" if on_tpu else "philox"
    seed = ops.cast(seed, "int32")
    # Random numbers in bfloat16 would be multiples of 1/128.
    y = tf.nn.experimental.stateless_dropout(ops.cast(x, "float32"), rate, seed, rng_alg=algorithm)
    return ops.cast(y, x.dtype)


class _GivenSeed(keras.random.SeedGenerator):
    """Passes a seed tensor to keras.random, which accepts a generator instead."""

    def __init__(self, seed: Array) -> None:  # No super().__init__: it would create a variable.
        self._seed = seed

    def next(self, ordered: bool = True) -> Array:
        """Returns the seed, `<int>[2]`."""
        return self._seed
