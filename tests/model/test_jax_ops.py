"""JAX's operations for GPUs and TPUs, run on a CPU, against float64. Not tested here: GPUs, TPUs.

On a GPU attention is cuDNN's, here it is XLA's by the same call; other kernels are interpreted. The
plain code is held to the same numbers, so that a failure says which of the two is wrong.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import albert_tf
from albert_tf.model import dropout, layers
from tests.kit import jax_process, tolerances

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
jax_ops = pytest.importorskip("albert_tf.model.jax_ops")


@pytest.mark.slow
def test_attention_kernels_and_dropout():
    """One process for all checks: importing Keras takes seconds."""
    jax_process.finish(jax_process.start(check_all))


@pytest.mark.peers  # A minute, interpreted.
@pytest.mark.parametrize(("platform", "length"), [("tpu", 640), ("cuda", 8)])
def test_attention_by_several_blocks_and_to_few_keys(platform, length):
    written = jax_process.finish(jax_process.start(compare_attention, platform, length))
    assert f"{platform} attends at {length}" in written


@pytest.mark.parametrize(
    ("kind", "capability", "platform"),
    [
        ("NVIDIA A100-SXM4-40GB", "8.0", "cuda"),
        ("NVIDIA GeForce RTX 2080 Ti", "7.5", None),
        ("AMD Instinct MI300X", "gfx942", None),
        ("TPU v2", None, None),
        ("TPU v3", None, None),
        ("TPU v4", None, "tpu"),
        ("cpu", None, None),
    ],
)
def test_kernels_are_for_ampere_tpu_v4_and_what_came_later(kind, capability, platform, monkeypatch):
    device = SimpleNamespace(device_kind=kind, compute_capability=capability)
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert jax_ops._found.__wrapped__() == platform


@pytest.mark.parametrize(
    ("named", "used"),
    [
        ("off", ()),
        ("attention", ("attention",)),
        ("elementwise,attention", ("attention", "elementwise")),
    ],
)
def test_kinds_of_kernels_are_turned_off_by_name(named, used, monkeypatch):
    monkeypatch.setenv("ALBERT_KERNELS", named)
    assert jax_ops.used() == used
    monkeypatch.setenv("ALBERT_KERNELS", f"{named},on")
    with pytest.raises(ValueError, match="ALBERT_KERNELS must be .*,on'"):
        jax_ops.used()


def check_all() -> None:
    for platform, length in {"cuda": 40, "tpu": 128}.items():
        compare_attention(platform, length)
    compare_kernels()
    check_where_they_are()
    check_no_rows()
    check_dropout()


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(function, given, inputs, upstream):
    """Returns a function's result, and its gradients by `inputs`, but not by `given`."""
    result, back = jax.vjp(functools.partial(function, *given), *inputs)
    return result, *back(upstream)


def assert_right(function, inputs, upstream, reference, dtype, given=(), masked=None) -> None:
    """Compares results and gradients with a reference in float64.

    Limits are relative to the largest value; row `masked` of plain code is as exact as the release.
    """
    limit = tolerances.KERNEL if dtype == jnp.float32 else tolerances.BFLOAT16_KERNEL
    cast = [jnp.asarray(x, dtype) if x.ndim > 1 else jnp.asarray(x) for x in inputs]
    above = jnp.asarray(upstream, dtype)
    expected = reference(*(np.asarray(x, np.float64) for x in (*cast, above)))
    results = value_and_gradients(function, given, cast, above)
    for found, wanted in zip(results, expected, strict=True):
        errors = np.abs(np.asarray(found, np.float64) - wanted) / np.abs(wanted).max()
        if masked is not None:
            assert errors[masked].max() <= max(limit, tolerances.ALL_MASKED_ROW)
            errors = np.delete(errors, masked, axis=0)
        assert errors.max() <= limit, (str(function)[:80], dtype, wanted.shape, errors.max())


def attention_in_float64(allowed, query, key, value, upstream):
    """Returns contexts and gradients `<float64>[B, S, N, D]`; a query without keys sees all."""
    allowed = allowed | ~allowed.any(axis=-1, keepdims=True)
    scale = query.shape[-1] ** -0.5
    scores = np.where(allowed, np.einsum("bqnd,bknd->bnqk", query, key) * scale, -np.inf)
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    d_probs = np.einsum("bqnd,bknd->bnqk", upstream, value)
    d_scores = probs * (d_probs - np.sum(probs * d_probs, axis=-1, keepdims=True)) * scale
    return (
        np.einsum("bnqk,bknd->bqnd", probs, value),
        np.einsum("bnqk,bknd->bqnd", d_scores, key),
        np.einsum("bnqk,bqnd->bknd", d_scores, query),
        np.einsum("bnqk,bqnd->bknd", probs, upstream),
    )


def compare_attention(platform: str, length) -> None:
    """Contexts and gradients, for rows of every kind: with a mask, and packed."""

    def plain(masked_scores, query, key, value):
        scores = jnp.einsum("bqnd,bknd->bnqk", query, key)
        scale = query.shape[-1] ** -0.5
        probs = layers._softmax(scores, scale=scale, masked_scores=masked_scores)
        return jnp.einsum("bnqk,bknd->bqnd", probs, value)

    def by_kernel(masked_scores, query, key, value):
        return jax_ops.attention(query, key, value, masked_scores)

    rng = np.random.default_rng(7)
    jax_ops.interpreted, jax_ops._found = True, lambda: platform
    heads, size = (3, 24) if platform == "cuda" else (1, 128)  # JAX 0.6 takes it, too.
    length = int(length)
    # By row: holes, no keys, all keys, padding.
    mask = np.ones((4, length), np.int32)
    mask[0, ::3] = 0
    mask[1] = 0
    mask[3, -length // 16 :] = 0
    # Packed: examples of unlike lengths.
    firsts = np.array([0, length * 3 // 8, length * 5 // 8 + 1])
    starts = np.repeat([firsts], 4, 0)[:, np.searchsorted(firsts, range(length), "right") - 1]
    shape = 4, length, heads, size
    *inputs, upstream = (rng.standard_normal(shape).astype(np.float32) for _ in range(4))
    for packed, dtype in zip((None, starts), (jnp.bfloat16, jnp.float32), strict=True):
        masked_scores = layers.masked_scores(mask, packed)
        allowed = np.asarray(masked_scores == 0)
        if platform == "tpu":
            of_queries, of_keys = map(np.asarray, jax_ops._segments(allowed[:, 0]))
            same = of_queries[:, :, None] == of_keys[:, None]
            assert np.all(same == (allowed | ~allowed.any(axis=(2, 3), keepdims=True))[:, 0])
        reference = functools.partial(attention_in_float64, allowed)
        assert_right(by_kernel, inputs, upstream, reference, dtype, [masked_scores])
    # Not in bfloat16: on CPUs, JAX 0.12 would also sum in bfloat16.
    assert_right(plain, inputs, upstream, reference, dtype, [masked_scores], masked=1)
    print(platform, "attends at", length)
    if platform == "tpu":
        # A packed example without keys, which nobody makes: results need only be finite.
        mask[2:, : firsts[2]] = 0
        given = [layers.masked_scores(mask, starts)]
        cast = [jnp.asarray(x) for x in inputs]
        found = value_and_gradients(by_kernel, given, cast, jnp.asarray(upstream))
        assert all(np.isfinite(each).all() for each in found)


def add_and_norm_in_float64(factors, x, y, bias, gamma, beta, upstream):
    """Returns the result and all gradients; dropout multiplies by `factors`."""
    total = x + (y + bias) * factors
    centred = total - total.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-12)
    normed, above = centred * scale, upstream * gamma
    along = np.mean(above * normed, axis=-1, keepdims=True)
    dx = scale * (above - above.mean(axis=-1, keepdims=True) - normed * along)
    dy, axes = dx * factors, tuple(range(x.ndim - 1))
    sums = (each.sum(axis=axes) for each in (dy, upstream * normed, upstream))
    return normed * gamma + beta, dx, dy, *sums


def gelu_in_float64(x, bias, upstream):
    slope = math.sqrt(2 / math.pi)
    u = x + bias
    tanh = np.tanh(slope * (u + 0.044715 * u**3))
    inner = slope * (1 + 3 * 0.044715 * u**2)
    du = upstream * 0.5 * (1 + tanh + u * (1 - tanh**2) * inner)
    return 0.5 * u * (1 + tanh), du, du.sum(axis=tuple(range(x.ndim - 1)))


def compare_kernels() -> None:
    """Outputs and all gradients: odd rows, pieces of rows, dropout, recomputed or not."""
    rng, seed = np.random.default_rng(5), jnp.array([3, 5])
    for shape, wrap, dtype in (
        ((3, 4, 384), jax.checkpoint, jnp.float32),
        ((1, 33, 128), functools.partial, jnp.bfloat16),
    ):
        x, y, upstream = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
        vectors = [rng.standard_normal(shape[-1]).astype(np.float32) for _ in range(3)]
        factors = np.asarray(jax_ops.dropout(jnp.ones(shape), 0.3, seed), np.float64)
        for module in (jax_ops, layers):
            gelu = functools.partial(module.biased_activation, name="gelu")
            assert_right(wrap(gelu), [x, vectors[0]], upstream, gelu_in_float64, dtype)
            for own_seed, own in ((None, np.float64(1)), (seed, factors)):
                norm = functools.partial(module.add_and_norm, rate=0.3, seed=own_seed)
                reference = functools.partial(add_and_norm_in_float64, own)
                assert_right(wrap(norm), [x, y, *vectors], upstream, reference, dtype)


def check_where_they_are() -> None:
    """Kernels take only supported lengths, heads and dtypes, and nothing that needs the scores."""
    asked, attention = [], jax_ops.attention
    jax_ops._found = lambda: "cuda"
    jax_ops.attention = lambda *tensors: asked.append(1) or attention(*tensors)
    config = albert_tf.AlbertConfig(31, embedding_size=5, hidden_size=48, num_attention_heads=3)
    drops = dataclasses.replace(config, attention_probs_dropout_prob=0.1)

    def attends(config=config, length=16, rows=2, dtype="bfloat16", **arguments):
        layer = layers.SelfAttention(config, dtype=dtype)
        layer.build()
        masked_scores = layers.masked_scores(np.ones((rows, length), np.int32))
        x = jnp.ones((rows, length, config.hidden_size), dtype)
        asked.clear()
        y = jax.eval_shape(functools.partial(layer, x, layer.read(), masked_scores, **arguments))
        assert y.shape[0] == rows
        return bool(asked)

    assert attends() and attends(dtype="float16") and attends(drops)
    assert attends(seed=jnp.array([3, 5])) and not attends(drops, seed=jnp.array([3, 5]))
    assert not attends(positions=jnp.zeros([2, 1], "int32"))
    assert not any(attends(length=length) for length in (1, 9, 63, 81, 82, 127))
    assert not attends(dtype="float32") and not attends(rows=0)
    for width, heads in ((48, 4), (272, 2)):  # Heads of 12 and of 136.
        sizes = {"hidden_size": width, "num_attention_heads": heads}
        assert not attends(dataclasses.replace(config, **sizes))
    jax_ops.attention = attention

    # Keras divides arrays among devices, but XLA divides no kernel: cuDNN's alone is no kernel.
    x = jax.ShapeDtypeStruct((2, 256, 128), "bfloat16")
    for divided in (False, True):
        with keras.distribution.DataParallel().scope() if divided else contextlib.nullcontext():
            jax_ops._found = lambda: "tpu"
            assert jax_ops.attends(x, 1) != divided
            jax_ops._found = lambda: "cuda"
            assert jax_ops._gains(x) != divided and jax_ops.attends(x, 1)


def check_no_rows() -> None:
    """Outputs for a batch that a filter has emptied have the usual shape, as on TensorFlow."""
    config = albert_tf.AlbertConfig(31, embedding_size=5, hidden_size=48, num_attention_heads=3)
    ids = {"input_ids": jax.ShapeDtypeStruct((0, 7), "int32")}
    for kind, shape in (("SequenceClassification", (0, 2)), ("TokenClassification", (0, 7, 2))):
        model = getattr(albert_tf, f"AlbertFor{kind}")(config, num_labels=2)
        assert jax.eval_shape(model, ids).shape == shape
    assert jax.eval_shape(albert_tf.AlbertModel(config), ids)["pooled_output"].shape == (0, 48)


def check_dropout() -> None:
    """Masks of 12 sites are uncorrelated with each other, and with themselves when shifted.

    Six standard deviations of 198 correlations: p = 4e-7; seeded.
    """
    count, rate = 1 << 20, 0.3
    seeds = [jnp.array([site, step]) for site in range(4) for step in (0, 1, 125_000)]
    ones = jnp.ones([count // 1024, 1024], jnp.bfloat16)
    drawn = [np.asarray(dropout.apply_dropout(ones, rate, seed), np.float32) for seed in seeds]
    # Computed in float32 and rounded once: in bfloat16, 1 / 0.7 has three digits.
    assert {*np.unique(drawn)} == {0, np.float32(jnp.bfloat16(1 / (1 - rate)))}
    masks = [np.where(mask.ravel() > 0, 1, 0) - (1 - rate) for mask in drawn]
    deviations = [mask.sum() / math.sqrt(count) for mask in masks]
    pairs = list(itertools.combinations(masks, 2))
    pairs += [(mask[lag:], mask[:-lag]) for mask in masks for lag in (1, 2, 64, 768, 1024, 65_536)]
    products = [a @ b / math.sqrt(len(a)) for a, b in pairs]
    assert np.abs(deviations).max() < 6 * math.sqrt(rate * (1 - rate))
    assert np.abs(products).max() < 6 * rate * (1 - rate)
