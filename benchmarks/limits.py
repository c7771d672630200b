"""A framework's fastest matrix product on this machine: the upper limit for a step.

The products are the model's own: batches of 1,024 and 2,048 tokens times the kernels of
ALBERT-base, and the gradient of a kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

# (M, K, N) of [M, K] x [K, N].
PRODUCTS = (
    (1024, 768, 768),
    (1024, 768, 2304),
    (1024, 768, 3072),
    (1024, 3072, 768),
    (3072, 1024, 768),
    (2048, 768, 3072),
)
SECONDS_PER_PRODUCT = 0.3


def tensorflow(dtype: str) -> Callable[[], float]:
    """Returns a function that measures tf.matmul in GFLOP/s."""
    import tensorflow as tf

    product = tf.function(tf.matmul)
    return partial(_best, lambda x: tf.cast(tf.constant(x), dtype), product)


def torch(dtype: str) -> Callable[[], float]:
    """Returns a function that measures torch's product in GFLOP/s."""
    import torch

    return partial(_best, lambda x: torch.tensor(x).to(getattr(torch, dtype)), torch.matmul)


def numpy(dtype: str) -> Callable[[], float]:
    """Returns a function that measures NumPy's product in GFLOP/s; it has no bfloat16."""
    del dtype
    return partial(_best, np.asarray, np.matmul)


LIMITS: dict[tuple[str, str], Callable[[], Callable[[], float]]] = {
    (dtype, framework.__name__): partial(framework, dtype)
    for dtype, frameworks in (
        ("float32", (tensorflow, torch, numpy)),
        ("bfloat16", (tensorflow, torch)),
    )
    for framework in frameworks
}


def _best(convert: Callable[[np.ndarray], Any], product: Callable[[Any, Any], Any]) -> float:
    rng = np.random.default_rng(0)
    rates = []
    for m, k, n in PRODUCTS:
        a = convert(rng.standard_normal((m, k), np.float32))
        b = convert(rng.standard_normal((k, n), np.float32))
        rates.append(2e-9 * m * k * n / np.median(list(_times(product, a, b))))
    return float(max(rates))


def _times(product: Callable[[Any, Any], Any], a: Any, b: Any) -> Iterable[float]:
    product(a, b)
    end = time.perf_counter() + SECONDS_PER_PRODUCT
    while time.perf_counter() < end:
        start = time.perf_counter()
        product(a, b)
        yield time.perf_counter() - start
