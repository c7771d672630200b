"""Operations that replace JAX's own: dropout's bits, attention, and two kernels for NVIDIA GPUs.

XLA stores a block's attention scores, and reads the activations around GELU and the normalisations
more than once. docs/performance.md states the cost on an H100, docs/tpu_compiled.md on TPUs.
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from albert_tf.config import LAYER_NORM_EPSILON
from albert_tf.types import Array

# For fewer elements XLA is as fast. Triton needs pieces of a row whose sizes are powers of two.
_WORTH_A_KERNEL = 65_536
_LEAST_PIECE, _MOST_PIECE = 128, 1024
# Head sizes of JAX's kernel for TPUs. JAX 0.6.2 is the last version for Python 3.10.
_HEADS_ON_TPU = (64, 128) if jax.__version_info__ >= (0, 10) else (128,)


# Whether kernels are interpreted on any device; only tests set it.
interpreted = False
# Kinds of kernels, and the platforms that have them. ALBERT_KERNELS names the kinds that may run:
# all by default, none if it is "off".
KINDS = {"attention": ("cuda", "tpu"), "elementwise": ("cuda",)}


def used() -> tuple[str, ...]:
    """Returns the kinds of kernels that are not turned off."""
    names = os.environ.get("ALBERT_KERNELS", ",".join(KINDS))
    if not {*names.split(",")} <= {*KINDS, "off"}:
        raise ValueError(f"ALBERT_KERNELS must be off, attention or elementwise, not {names!r}")
    return tuple(kind for kind in KINDS if kind in names.split(","))


def turn_off(kind: str) -> None:
    """Turns a kind of kernels off in this process and those that it starts."""
    os.environ["ALBERT_KERNELS"] = ",".join(each for each in used() if each != kind) or "off"


def accelerator(kind: str) -> Literal["cuda", "tpu"] | None:
    """Returns the platform of JAX's devices, if it has a kind of kernels that may run."""
    platform = _found() if kind in used() else None
    return platform if platform in KINDS[kind] else None


@functools.cache
def _found() -> Literal["cuda", "tpu"] | None:
    """Looks for NVIDIA GPUs of 2020 (Ampere) or later, and for TPUs of 2021 (v4) or later."""
    device = jax.devices()[0]
    name = device.device_kind
    if name.startswith("TPU"):
        return None if name in ("TPU v2", "TPU v3") else "tpu"
    return "cuda" if "NVIDIA" in name and float(device.compute_capability) >= 8 else None


def _chosen(kernel: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that runs the kernel on the accelerator and plain code elsewhere.

    A process with an accelerator may also compute on its CPU. The gradient there recomputes the
    plain code: otherwise both would have to output the values that either keeps for it.
    """
    if interpreted:
        return kernel
    kernels = {str(_found()): kernel}
    return functools.partial(lax.platform_dependent, **kernels, default=jax.checkpoint(otherwise))


def why_not(kind: str) -> str | None:
    """Returns why a kind of kernels fails on this device; None if it runs, or is not used there."""
    # A small loss through the platform's kernels, and its gradient.
    platform = accelerator(kind)
    x = jnp.ones((2, 256 if platform == "tpu" else 64, 1, 128), jnp.bfloat16)
    vector = jnp.ones(128, jnp.float32)

    def loss(x: Array, vector: Array) -> Array:
        if kind == "attention":
            y = attention(x, x, x, jnp.zeros((2, 1, 1, x.shape[1])))
        else:
            seed = jnp.zeros(2, jnp.int32)
            y = add_and_norm(x, x, vector.astype(x.dtype), vector, vector, rate=0.1, seed=seed)
            y = biased_activation(y, vector.astype(x.dtype), "gelu")
        return jnp.sum(y.astype(jnp.float32))

    try:
        if platform:
            jax.block_until_ready(jax.jit(jax.grad(loss, argnums=(0, 1)))(x, vector))
    except Exception as error:  # JAX, Triton, cuDNN and the driver raise errors of many classes.
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return None


# --- dropout --------------------------------------------------------------------------------


def dropout(x: Array, rate: float, seed: Array) -> Array:
    """Does what dropout.apply_dropout says."""
    numbers = lax.iota(jnp.uint32, math.prod(x.shape)).reshape(x.shape)
    return _drop(x.astype(jnp.float32), numbers, rate, _keys(seed)).astype(x.dtype)


def _drop(x: Array, numbers: Array, rate: float, keys: Array) -> Array:
    """Zeroes the elements of x `<float32>[...]` that keys select by `<uint32>[...]` numbers.

    JAX's generators are slower: threefry takes an eighth of ALBERT-base's step on an H100, and rbg,
    which stores its bits, takes more.

    Source: Chris Wellons, Prospecting for Hash Functions: lowbias32, with a key in its middle.
    """
    bits = numbers * np.uint32(0x9E3779B1) ^ keys[0]
    bits = (bits ^ bits >> 16) * np.uint32(0x7FEB352D)
    bits = (bits ^ bits >> 15 ^ keys[1]) * np.uint32(0x846CA68B)
    is_kept = (bits ^ bits >> 16) >= np.uint32(round(rate * 2**32))
    return jnp.where(is_kept, x * np.float32(1 / (1 - rate)), 0)


def _keys(seed: Array) -> Array:
    """Hashes a seed `<int>[2]` to a key `<uint32>[2]`, so that similar seeds have unlike keys."""

    def mixed(x: Array) -> Array:
        x = (x ^ x >> 16) * np.uint32(0x7FEB352D)
        x = (x ^ x >> 15) * np.uint32(0x846CA68B)
        return x ^ x >> 16

    first, second = seed.astype(jnp.uint32)
    key = mixed(first ^ mixed(second))
    return jnp.stack([key, mixed(key + np.uint32(0x9E3779B9))])


# --- attention ------------------------------------------------------------------------------


def attends(x: Array, heads: int) -> bool:
    """Whether a kernel computes the attention of a block with inputs x `<float>[B, S, H]`.

    Otherwise the scores are stored. cuDNN refuses odd lengths in training. All lengths that are
    chosen for a GPU are multiples of 8; plain code handles any others.
    """
    platform, (rows, length, width) = accelerator("attention"), x.shape
    if platform is None or rows == 0:
        return False
    size = width // heads
    if platform == "tpu":
        # At 128 positions the kernel would store more than the scores. float32 is untested.
        fits = length >= 256 and length % 128 == 0 and size in _HEADS_ON_TPU
        is_whole = keras.distribution.distribution() is None  # XLA can't divide a kernel.
        return x.dtype == jnp.bfloat16 and fits and is_whole
    is_half = x.dtype in (jnp.bfloat16, jnp.float16)
    return is_half and size % 8 == 0 and size <= 128 and length % 8 == 0


def attention(query: Array, key: Array, value: Array, masked_scores: Array) -> Array:
    """Attends by the accelerator's kernel, which doesn't store the scores.

    Args:
      query: `<float>[B, S, N, D]`.
      key: `<float>[B, S, N, D]`.
      value: `<float>[B, S, N, D]`.
      masked_scores: See layers.masked_scores.

    Returns:
      `<float>[B, S, N, D]`.
    """
    cudnn = functools.partial(_attention_by, "xla" if interpreted else "cudnn")
    kernel = _splash_attention if accelerator("attention") == "tpu" else cudnn
    plain = functools.partial(_attention_by, "xla")
    return _chosen(kernel, plain)(query, key, value, masked_scores == 0)


def _attention_by(
    implementation: Literal["cudnn", "xla"], query: Array, key: Array, value: Array, allowed: Array
) -> Array:
    """Attends from each position to the keys allowed by `<bool>[B, 1, 1 or S, S]`."""
    batch, length, _, size = query.shape
    # A row whose keys are all masked attends to all of them, as in the release.
    allowed |= ~jnp.any(allowed, axis=-1, keepdims=True)
    allowed = jnp.broadcast_to(allowed, (batch, 1, length, length))
    return jax.nn.dot_product_attention(
        query, key, value, mask=allowed, scale=1 / math.sqrt(size), implementation=implementation
    )


def _splash_attention(query: Array, key: Array, value: Array, allowed: Array) -> Array:
    """Attends on a TPU; for arguments see `_attention_by`."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, length, heads, size = query.shape
    # One block for up to 512 positions reads keys and values once and writes gradients once.
    block = length if length <= 512 else math.gcd(length, 512)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute")
    sizes: dict[str, Any] = {f"block_{name}": block for name in names}
    attend = splash.make_splash_mha(
        masks.MultiHeadMask([masks.FullMask((length, length))] * heads),
        block_sizes=splash.BlockSizes(**sizes, use_fused_bwd_kernel=True),
        head_shards=1,
        q_seq_shards=1,
        mask_value=-1e4,  # Far below any score, but finite: a packed example may have no key.
        interpret=interpreted,
    )
    # The kernel takes scaled queries, heads before positions, and no batch.
    query = (query.astype(jnp.float32) / math.sqrt(size)).astype(query.dtype)
    tensors = (jnp.swapaxes(tensor, 1, 2) for tensor in (query, key, value))
    context = jax.vmap(attend)(*tensors, splash.SegmentIds(*_segments(allowed[:, 0])))
    return jnp.swapaxes(context, 1, 2)


def _segments(allowed: Array) -> tuple[Array, Array]:
    """Returns ids of queries and keys `<int32>[B, S]` that are equal where attention is allowed.

    A query's id is the position of its first key. A key has the id of its first query, or -1 if no
    query attends to it. In a row without keys all ids are equal, as in the release.
    """
    batch, _, length = allowed.shape
    none = ~jnp.any(allowed, axis=(1, 2))[:, None]
    # argmax finds the first True.
    of_queries = jnp.argmax(allowed, axis=2).astype(jnp.int32)
    first_queries = jnp.argmax(allowed, axis=1)
    of_keys = jnp.take_along_axis(of_queries, first_queries, axis=1)
    of_keys = jnp.where(jnp.any(allowed, axis=1), of_keys, jnp.where(none, 0, -1))
    return jnp.broadcast_to(of_queries, (batch, length)), of_keys


# --- sums over rows -------------------------------------------------------------------------


@jax.custom_vjp
def plus_bias(x: Array, bias: Array) -> Array:
    """Adds a bias `<float>[N]` to x `<float>[..., N]`; its gradient is summed in float32.

    JAX sums in x's dtype, and in bfloat16 256 + 1 is 256.
    """
    return x + bias.astype(x.dtype)


def _plus_bias_backward(bias: Array, upstream: Array) -> tuple[Array, Array]:
    rows = upstream.astype(jnp.float32).reshape(-1, upstream.shape[-1])
    return upstream, rows.sum(axis=0).astype(bias.dtype)


plus_bias.defvjp(lambda x, bias: (plus_bias(x, bias), bias), _plus_bias_backward)


# --- chains of elementwise operations, each one kernel --------------------------------------


def kernel_or(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a chain of layers.py that runs as its kernel, if it has one, where that is faster."""
    kernels: dict[str, Callable[..., Array]] = {
        "add_and_norm": add_and_norm,
        "biased_activation": biased_activation,
    }
    if function.__name__ not in kernels:
        return function
    kernel = kernels[function.__name__]

    def call(*tensors: Array, **keywords: Any) -> Array:
        if not _gains(tensors[0], **keywords):
            return function(*tensors, **keywords)
        both = (functools.partial(each, **keywords) for each in (kernel, function))
        return _chosen(*both)(*tensors)

    return call


def _gains(x: Array, name: str = "gelu", **_: Any) -> bool:
    return (
        name == "gelu"
        and math.prod(x.shape) >= _WORTH_A_KERNEL
        and x.shape[-1] & -x.shape[-1] >= _LEAST_PIECE
        and accelerator("elementwise") is not None
        # XLA can't divide a kernel among devices. The scripts' steps are programs of one device.
        and keras.distribution.distribution() is None
    )


def add_and_norm(
    x: Array, y: Array, *vectors: Array, rate: float = 0.0, seed: Array = None
) -> Array:
    """Does what layers.add_and_norm does in one kernel; a second kernel computes the gradient."""
    matrices = x.reshape(-1, x.shape[-1]), y.reshape(-1, x.shape[-1])
    if seed is None:
        rate, keys = 0.0, jnp.zeros([2], jnp.uint32)
    else:
        keys = _keys(seed)
    return _add_and_norm(rate, *matrices, *vectors, keys).reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_and_norm(rate: float, *inputs: Array) -> Array:
    return _add_and_norm_forward(rate, *inputs)[0]


def _add_and_norm_forward(rate: float, *inputs: Array) -> tuple[Array, tuple[Array, ...]]:
    """Returns the result, and for the gradient the inputs, means and inverse deviations."""

    def kernel(*blocks: Any) -> None:
        x, y, bias, gamma, beta, keys, result, means, scales = blocks
        first = pl.program_id(0) * x.shape[0]

        def row(r: Array, _: None) -> None:
            # Residual and dropout, then mean and inverse deviation, then the normalised row.
            sums = _sums(r, first, rate, x, y, bias, keys)
            mean = sum(map(jnp.sum, sums)) / width
            scale = lax.rsqrt(
                sum(jnp.sum(jnp.square(z - mean)) for z in sums) / width + LAYER_NORM_EPSILON
            )
            for part, z in zip(parts, sums, strict=True):
                normed = (z - mean) * (scale * gamma[part]) + beta[part]
                result[r, part] = normed.astype(result.dtype)
            means[r], scales[r] = mean, scale

        lax.fori_loop(0, x.shape[0], row, None)

    # Each program normalises up to four rows.
    x, *_ = inputs
    count, width = x.shape
    parts, rows = _parts(width), math.gcd(count, 4)
    matrix, vector, of_row, keys = _blocks(rows, width)
    # For the gradient, which recomputes the rows, each one's mean and inverse deviation are kept.
    result, means, scales = pl.pallas_call(
        kernel,
        grid=(count // rows,),
        in_specs=[matrix, matrix, vector, vector, vector, keys],
        out_specs=[matrix, of_row, of_row],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype)]
        + [jax.ShapeDtypeStruct((count,), jnp.float32)] * 2,
        name="add_and_norm",
        **_compiled_with(warps=1),
    )(*inputs)
    return result, (*inputs, means, scales)


def _add_and_norm_backward(
    rate: float, kept: tuple[Array, ...], upstream: Array
) -> tuple[Array | None, ...]:
    """Returns the gradients; each program sums those of the vectors over its own rows."""

    def kernel(*blocks: Any) -> None:
        x, y, bias, gamma, keys, means, scales, upstream, dbias, dgamma, dbeta, *dxy = blocks
        first = pl.program_id(0) * x.shape[0]

        def row(r: Array, totals: Any) -> Any:
            # The normalised row again, and the gradient with respect to it.
            mean, scale = means[r], scales[r]
            normed = [(z - mean) * scale for z in _sums(r, first, rate, x, y, bias, keys)]
            above = [upstream[r, part].astype(jnp.float32) for part in parts]
            scaled = [d * gamma[part] for d, part in zip(above, parts, strict=True)]
            # The gradient passes through the mean and the deviation.
            mean_scaled = sum(map(jnp.sum, scaled)) / width
            mean_product = sum(jnp.sum(a * b) for a, b in zip(scaled, normed, strict=True)) / width
            found = []
            for part, d, g, z in zip(parts, above, scaled, normed, strict=True):
                dz = scale * (g - mean_scaled - z * mean_product)
                dropped = _drop(dz, _numbers(first + r, part, width), rate, keys) if rate else dz
                for gradient, value in zip(dxy, (dz, dropped), strict=False):
                    gradient[r, part] = value.astype(gradient.dtype)
                found.append((dropped, d * z, d))
            return jax.tree.map(jnp.add, totals, found)

        # Bias, gamma and beta act on all rows, so their gradients are sums over rows.
        zeros = [(jnp.zeros(part.size, jnp.float32),) * 3 for part in parts]
        totals = lax.fori_loop(0, x.shape[0], row, zeros)
        for part, (by_bias, by_gamma, by_beta) in zip(parts, totals, strict=True):
            dbias[0, part], dgamma[0, part], dbeta[0, part] = by_bias, by_gamma, by_beta

    # A program takes up to 32 rows: more would leave fewer programs to run at once, fewer would
    # leave more sums to add up.
    x, y, bias, gamma, _, keys, means, scales = kept
    count, width = x.shape
    parts, rows = _parts(width), math.gcd(count, 32)
    matrix, vector, of_row, of_keys = _blocks(rows, width)
    sums = pl.BlockSpec((1, width), lambda i: (i, 0))
    # Without dropout the gradients of x and y are equal.
    of_rows = 2 if rate else 1
    dbias, dgamma, dbeta, *dxy = pl.pallas_call(
        kernel,
        grid=(count // rows,),
        in_specs=[matrix, matrix, vector, vector, of_keys, of_row, of_row, matrix],
        out_specs=[sums] * 3 + [matrix] * of_rows,
        out_shape=[jax.ShapeDtypeStruct((count // rows, width), jnp.float32)] * 3
        + [jax.ShapeDtypeStruct(x.shape, x.dtype)] * of_rows,
        name="add_and_norm_backward",
        **_compiled_with(warps=2),
    )(x, y, bias, gamma, keys, means, scales, upstream)
    # Sum over the programs.
    dbias, dgamma, dbeta = (total.sum(axis=0) for total in (dbias, dgamma, dbeta))
    return dxy[0], dxy[-1], dbias.astype(bias.dtype), dgamma, dbeta, None


_add_and_norm.defvjp(_add_and_norm_forward, _add_and_norm_backward)


def _sums(r: Array, first: Array, rate: float, x: Any, y: Any, bias: Any, keys: Any) -> list[Array]:
    """Returns x + dropout(y + bias) in row r of a program's rows, in parts."""
    parts = []
    for part in _parts(x.shape[-1]):
        added = y[r, part].astype(jnp.float32) + bias[part].astype(jnp.float32)
        added = _drop(added, _numbers(first + r, part, x.shape[-1]), rate, keys) if rate else added
        parts.append(x[r, part].astype(jnp.float32) + added)
    return parts


def biased_activation(x: Array, bias: Array, name: str) -> Array:
    """Does what layers.biased_activation does for gelu; a kernel computes the gradient."""
    return _biased_gelu(x, bias)


@jax.custom_vjp
def _biased_gelu(x: Array, bias: Array) -> Array:
    x_and_bias = x.astype(jnp.float32) + bias.astype(jnp.float32)
    return jax.nn.gelu(x_and_bias, approximate=True).astype(x.dtype)


def _biased_gelu_backward(kept: tuple[Array, Array], upstream: Array) -> tuple[Array, Array]:
    def kernel(*blocks: Any) -> None:
        x, bias, upstream, dx, dbias = blocks

        def row(r: Array, total: Array) -> Array:
            # The derivative of GELU's tanh approximation.
            u = x[r, :].astype(jnp.float32) + bias[:].astype(jnp.float32)
            slope = math.sqrt(2 / math.pi)
            tanh = jnp.tanh(slope * (u + 0.044715 * u * u * u))
            inner = slope * (1 + 3 * 0.044715 * u * u)
            gradient = 0.5 * (1 + tanh + u * (1 - tanh * tanh) * inner)
            gradient *= upstream[r, :].astype(jnp.float32)
            dx[r, :] = gradient.astype(dx.dtype)
            return total + gradient

        # Add up the bias' gradient over the rows of this block.
        zeros = jnp.zeros(x.shape[-1], jnp.float32)
        dbias[0, :] = lax.fori_loop(0, x.shape[0], row, zeros)

    # A row of width I may be too long for one program, so the grid divides the columns as well.
    x, bias = kept
    shape, width = x.shape, x.shape[-1]
    count = math.prod(shape[:-1])
    rows, columns = math.gcd(count, 64), math.gcd(width, _MOST_PIECE)
    matrix = pl.BlockSpec((rows, columns), lambda i, j: (i, j))
    dx, dbias = pl.pallas_call(
        kernel,
        grid=(count // rows, width // columns),
        in_specs=[matrix, pl.BlockSpec((columns,), lambda i, j: (j,)), matrix],
        out_specs=[matrix, pl.BlockSpec((1, columns), lambda i, j: (i, j))],
        out_shape=[
            jax.ShapeDtypeStruct((count, width), x.dtype),
            jax.ShapeDtypeStruct((count // rows, width), jnp.float32),
        ],
        name="biased_gelu_backward",
        **_compiled_with(warps=4),
    )(x.reshape(count, width), bias, upstream.reshape(count, width))
    return dx.reshape(shape), dbias.sum(axis=0).astype(bias.dtype)


_biased_gelu.defvjp(lambda x, bias: (_biased_gelu(x, bias), (x, bias)), _biased_gelu_backward)


def _compiled_with(warps: int) -> dict[str, Any]:
    """Returns arguments of pallas_call: Triton's parameters, or interpretation."""
    if interpreted:
        return {"interpret": True}
    from jax.experimental.pallas import triton

    # JAX 0.11 warns at each kernel. Where Triton is gone, the import fails and `why_not` says so.
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
    return {"compiler_params": triton.CompilerParams(num_warps=warps, num_stages=1)}


def _blocks(rows: int, width: int) -> tuple[pl.BlockSpec, ...]:
    """Returns a program's blocks of a matrix, a vector of its width, a value per row, and keys."""
    return (
        pl.BlockSpec((rows, width), lambda i: (i, 0)),
        pl.BlockSpec((width,), lambda i: (0,)),
        pl.BlockSpec((rows,), lambda i: (i,)),
        pl.BlockSpec((2,), lambda i: (0,)),
    )


def _parts(width: int) -> list[Any]:
    """Returns slices of a row whose sizes are powers of two, as Triton needs."""
    size = math.gcd(width, _MOST_PIECE)
    return [pl.ds(start, size) for start in range(0, width, size)]


def _numbers(row: Array, part: Any, width: int) -> Array:
    """Returns the indices, in a flat matrix, of the elements in a part of a row."""
    return (row * width + part.start + jnp.arange(part.size)).astype(jnp.uint32)
