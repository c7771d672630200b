"""What JAX runs on GPUs and TPUs, on a CPU: the same numbers as the plain code. Can't see: either.

On GPUs attention is cuDNN's, here that of XLA by the same call; kernels are interpreted.
"""

import dataclasses
import functools
import itertools
import math

import numpy as np

from tests import jax_process, tolerances


def test_attention_kernels_and_dropout():
    """One process for all: it imports Keras for seconds."""
    jax_process.finish(jax_process.start(check_all))


def check_all() -> None:
    compare_attention_of_tpus()
    compare_attention()
    compare_kernels()
    check_dropout()


def compare_attention() -> None:
    """Outputs and all gradients, for rows of every kind.

    Where no key is allowed, the plain code adds -10000 to each score, which leaves three decimals.
    """
    import jax
    import jax.numpy as jnp

    from albert_tf import AlbertConfig
    from albert_tf.model import jax_ops, layers

    config = AlbertConfig(31, embedding_size=5, hidden_size=48, num_attention_heads=3)
    layer = layers.SelfAttention(config)
    layer.build()
    rng = np.random.default_rng(3)
    # All keys, padding, holes, none.
    mask = np.ones((4, 11), np.int32)
    mask[1, 10:] = 0
    mask[2, ::3] = 0
    mask[3] = 0
    # Packed: the examples of a row begin at 0, 4 and 9.
    starts = np.repeat([[0, 4, 9]], 4, axis=0)[:, [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]]
    x, upstream = (jnp.asarray(rng.standard_normal((4, 11, 48)), jnp.float32) for _ in range(2))
    weights = jax.tree.map(
        lambda w: jnp.asarray(rng.standard_normal(w.shape), jnp.float32), layer.read()
    )

    cudnn, asked = jax_ops.attention, []

    def by_xla(*tensors):
        asked.append(tensors)
        return cudnn(*tensors, implementation="xla")

    @functools.partial(jax.jit, static_argnums=0)
    def run(attends, x, weights, masked_scores, upstream):
        jax_ops.attends, jax_ops.attention = lambda x, heads: attends, by_xla
        results, back = jax.vjp(lambda x, w: layer(x, w, masked_scores), x, weights)
        return jax.tree.leaves((results, back(upstream)))

    for rows, tolerance in ((slice(3), 1e-6), (slice(3, 4), 1e-3)):
        for packed in (None, starts[rows]):
            given = x[rows], weights, layers.masked_scores(mask[rows], packed), upstream[rows]
            for a, e in zip(run(True, *given), run(False, *given), strict=True):
                np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * np.abs(e).max())
    assert len(asked) == 4
    # Dropout of the probabilities, and a few positions alone, need the scores.
    jax_ops.attends, masked_scores = lambda x, heads: True, layers.masked_scores(mask)
    drops = dataclasses.replace(config, attention_probs_dropout_prob=0.1)
    dropped = layers.SelfAttention(drops)
    dropped.build()
    given = x, weights, masked_scores
    jax.eval_shape(functools.partial(dropped, *given, seed=jnp.array([3, 5])))
    jax.eval_shape(functools.partial(layer, *given, positions=jnp.zeros([4, 1], "int32")))
    assert len(asked) == 4


def compare_attention_of_tpus() -> None:
    """Contexts and gradients, for rows of every kind, in both dtypes."""
    import jax
    import jax.numpy as jnp

    from albert_tf.model import jax_ops, layers

    shape = rows, length, heads, size = 4, 128, 1, 128
    rng = np.random.default_rng(7)
    # As above, in another order: holes, none, all keys, padding.
    mask = np.ones((rows, length), np.int32)
    mask[0, ::3] = 0
    mask[1] = 0
    mask[3, 110:] = 0
    starts = np.repeat([[0, 50, 101]], rows, axis=0).repeat([50, 51, 27], axis=1)

    def plain(query, key, value, masked_scores):
        scores = jnp.einsum("bqnd,bknd->bnqk", query, key)
        probs = layers._softmax(scores, scale=size**-0.5, masked_scores=masked_scores)
        return jnp.einsum("bnqk,bknd->bqnd", probs, value)

    def by_kernel(*tensors):
        return jax_ops.attention(*tensors, implementation="splash")

    @functools.partial(jax.jit, static_argnums=0)
    def run(attend, tensors, masked_scores, upstream):
        context, back = jax.vjp(lambda *t: attend(*t, masked_scores), *tensors)
        return context, *back(upstream)

    *tensors, upstream = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for _ in range(4))
    for packed in (None, starts):
        masked_scores = layers.masked_scores(mask, packed)
        allowed = np.asarray(masked_scores == 0)[:, 0]
        of_queries, of_keys = jax_ops._segments(allowed)
        same = np.asarray(of_queries)[:, :, None] == np.asarray(of_keys)[:, None]
        assert np.all(same == (allowed | ~allowed.any(axis=(1, 2), keepdims=True)))
    expected = run(plain, tensors, masked_scores, upstream)
    for dtype, tolerance in ((jnp.float32, 1e-5), (jnp.bfloat16, 1e-2)):
        cast = [x.astype(dtype) for x in (*tensors, upstream)]
        found = run(by_kernel, cast[:3], masked_scores, cast[3])
        for a, e in zip(found, expected, strict=True):
            assert a.dtype == dtype
            # Where no key is allowed the plain code's scores have three decimals left.
            for row, limit in ((slice(None), max(tolerance, 1e-3)), ([0, 2, 3], tolerance)):
                error = np.abs(np.asarray(a, np.float32)[row] - np.asarray(e)[row]).max()
                assert error <= limit * np.abs(e).max(), (dtype, error)
    # A packed example without keys: nobody makes such rows. Finite.
    mask[2:, :101] = 0
    masked_scores = layers.masked_scores(mask, starts)
    assert all(np.isfinite(a).all() for a in run(by_kernel, tensors, masked_scores, upstream))


def compare_kernels() -> None:
    """Outputs and all gradients, with and without dropout."""
    import jax
    import jax.numpy as jnp

    from albert_tf.model import jax_ops, layers

    rng = np.random.default_rng(5)

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    def compare(function, plain, arrays, upstream):
        for a, e in zip(*(run(f, arrays, upstream) for f in (function, plain)), strict=True):
            atol = tolerances.OUTPUT * np.abs(e).max()
            np.testing.assert_allclose(a, e, rtol=0, atol=atol)

    def run(function, arrays, upstream):
        results, back = jax.vjp(function, *arrays)
        return results, *back(upstream)

    # Three pieces of a row; three programs.
    matrices, vectors = [draw(3, 4, 384) for _ in range(3)], [draw(384) for _ in range(3)]
    for seed in (None, jnp.array([3, 5])):
        pair = [
            functools.partial(module.add_and_norm, rate=0.3, seed=seed)
            for module in (jax_ops, layers)
        ]
        compare(*pair, [*matrices[:2], *vectors], matrices[2])
    pair = [
        functools.partial(module.biased_activation, name="gelu") for module in (jax_ops, layers)
    ]
    compare(*pair, [matrices[0], vectors[0]], matrices[1])


def check_dropout() -> None:
    """Masks of 12 sites are unrelated: to each other, and to themselves some places further.

    Six standard deviations of 198 correlations: p = 4e-7; seeded.
    """
    import jax.numpy as jnp

    from albert_tf.model import dropout

    count, rate = 1 << 20, 0.3
    seeds = [jnp.array([site, step]) for site in range(4) for step in (0, 1, 125_000)]
    ones = jnp.ones([count // 1024, 1024], jnp.bfloat16)
    drawn = [np.asarray(dropout.apply_dropout(ones, rate, seed), np.float32) for seed in seeds]
    # In float32 and then rounded, once: bfloat16's 1 / 0.7 has three digits.
    assert {*np.unique(drawn)} == {0, np.float32(jnp.bfloat16(1 / (1 - rate)))}
    masks = [np.where(mask.ravel() > 0, 1, 0) - (1 - rate) for mask in drawn]
    deviations = [mask.sum() / math.sqrt(count) for mask in masks]
    pairs = list(itertools.combinations(masks, 2))
    pairs += [(mask[lag:], mask[:-lag]) for mask in masks for lag in (1, 2, 64, 768, 1024, 65_536)]
    products = [a @ b / math.sqrt(len(a)) for a, b in pairs]
    assert np.abs(deviations).max() < 6 * math.sqrt(rate * (1 - rate))
    assert np.abs(products).max() < 6 * rate * (1 - rate)
