"""Dropout as a function of a seed: it needs no generator's state, and a pass can be repeated."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from albert_tf.model.fusion import on_jax
from albert_tf.types import Array

if on_jax:
    from albert_tf.model import jax_ops

# Dropout sites of a forward pass: the embeddings have site 0, each block the next three.
SITES_PER_BLOCK = 3
# No two passes share a seed in models of up to 1,364 blocks and a head. In a deeper model the last
# sites would have the seeds of the next pass' first sites.
_SITES_PER_PASS = 4096


def pass_seed(run_seed: int, step: Array, number: Array) -> Array:
    """Returns the seed of a forward pass in training, `<int32>[2]`.

    Args:
      run_seed: Seed of the run.
      step: The training step, `<int>[]`.
      number: Index of the pass in its step, over all replicas and micro-batches, `<int>[]`.
    """
    # The hash keeps neighbouring seeds from sharing masks, and is small enough not to overflow.
    hashed = int(np.random.SeedSequence(run_seed).generate_state(1)[0] >> 2)
    first_site = hashed + ops.cast(number, "int32") * _SITES_PER_PASS
    return ops.stack([first_site, ops.cast(step, "int32")])


def draw_seed(generator: keras.random.SeedGenerator) -> Array:
    """Draws the seed of a forward pass, `<int>[2]`, different on each replica of a strategy."""
    seed = generator.next()
    if keras.backend.backend() != "tensorflow":
        return seed
    import tensorflow as tf

    # The generator has the same state on all replicas, so its draws are the same.
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    # So each replica moves on by as many sites as a pass may use.
    return fold_in(seed, _SITES_PER_PASS * ops.cast(context.replica_id_in_sync_group, seed.dtype))


def fold_in(seed: Array, site: Array) -> Array:
    """Derives a site's seed `<int>[2]` from the pass' seed; None (no dropout) stays None."""
    if seed is None:
        return None
    return seed + ops.stack([ops.cast(site, seed.dtype), ops.zeros((), seed.dtype)])


def apply_dropout(x: Array, rate: float, seed: Array) -> Array:
    """Zeroes a fraction `rate` of x `<float>[...]` and scales the rest by 1 / (1 - rate).

    The seed `<int>[2]` determines the mask; without a seed (not training) x is unchanged.
    """
    if seed is None or rate == 0:
        return x
    if on_jax:
        return jax_ops.dropout(x, rate, seed)
    import tensorflow as tf

    # Keras leaves the algorithm to XLA, whose choice takes 200 ns an element on a CPU. Philox takes
    # 3 ns. A TPU has its own generator.
    on_tpu = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
    algorithm = "auto_select" if on_tpu else "philox"
    seed = ops.cast(seed, "int32")
    # In bfloat16 random numbers would be multiples of 1/128, and 1 / (1 - rate) would be rounded.
    y = ops.cast(x, "float32")
    y = tf.nn.experimental.stateless_dropout(y, rate, seed, rng_alg=algorithm)
    return ops.cast(y, x.dtype)
