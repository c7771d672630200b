"""Arrays of weights by the release's names, made alike whatever file they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_MAPPING = "bert/encoder/embedding_hidden_mapping_in"


def is_float(value: Any) -> bool:
    """Whether a stored value is floating-point numbers, bfloat16 too."""
    dtype = getattr(value, "dtype", np.dtype(object))
    return dtype.kind == "f" or dtype.name == "bfloat16"


def as_float32(values: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """Casts weights to float32, in which they are kept here, and checks what all must be.

    Args:
      values: Arrays by name.
      path: Where they are from, for messages.

    Returns:
      The same in float32.

    Raises:
      ValueError: If some are no floating-point numbers, are NaN or infinite in float32, or have
        names with control characters, which would otherwise get to a terminal.
    """
    odd = [ascii(name) for name in values if not name.isprintable()]
    if odd:
        raise ValueError(f"{path} has weights whose names are no text: {', '.join(odd)}")
    wrong = [f"{name} ({value.dtype})" for name, value in values.items() if not is_float(value)]
    if wrong:
        raise ValueError(f"{path} holds no floating-point numbers in {', '.join(wrong)}")
    with np.errstate(over="ignore"):
        cast = {name: np.asarray(value, np.float32) for name, value in values.items()}
    bad = [name for name, value in cast.items() if not np.isfinite(value).all()]
    if bad:
        raise ValueError(
            f"{path} holds NaN or infinite numbers in {', '.join(bad)}: copy it again, or take a "
            "checkpoint of before the training diverged"
        )
    return cast


def without_identity(values: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """Drops the map of embeddings to hidden states where both are of one width.

    There the release has none, and others multiply by a matrix all the same.

    Args:
      values: Arrays by the release's names.
      path: Where they are from, for messages.

    Returns:
      The same without an identity.

    Raises:
      ValueError: The map is square and no identity: no model here can hold it.
    """
    values = dict(values)
    kernel, bias = values.get(f"{_MAPPING}/kernel"), values.get(f"{_MAPPING}/bias")
    if kernel is None or kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
        return values
    if not np.array_equal(kernel, np.eye(len(kernel))) or (bias is not None and bias.any()):
        raise ValueError(
            f"{path} maps embeddings to hidden states of the same width ({len(kernel)}) by a "
            "matrix that is no identity: the release's ALBERT, and so this one, has none there"
        )
    del values[f"{_MAPPING}/kernel"]
    values.pop(f"{_MAPPING}/bias", None)
    return values


def with_identity(values: Mapping[str, np.ndarray], width: int) -> dict[str, np.ndarray]:
    """Adds the map that `without_identity` drops.

    Args:
      values: Arrays by the release's names.
      width: Of embeddings and hidden states.

    Returns:
      The same, with an identity of float32 if there was no map.
    """
    if f"{_MAPPING}/kernel" in values:
        return dict(values)
    return {
        **values,
        f"{_MAPPING}/kernel": np.eye(width, dtype=np.float32),
        f"{_MAPPING}/bias": np.zeros(width, np.float32),
    }


def without_head_axis(name: str, value: np.ndarray) -> np.ndarray:
    """Joins the axes of heads and head size, which Keras' own attention keeps apart.

    Args:
      name: The release's name.
      value: `[H, N, D]`, `[N, D, H]` or `[N, D]`; or joined already, or of another weight.

    Returns:
      `[H, H]`, `[H]`, or the other weight as it is.
    """
    shape = value.shape
    if name.endswith("/attention_1/output/dense/kernel") and value.ndim == 3:
        return value.reshape(shape[0] * shape[1], shape[2])
    if "/attention_1/self/" in name and value.ndim == (2 if name.endswith("/bias") else 3):
        return value.reshape(*shape[:-2], shape[-2] * shape[-1])
    return value


def with_head_axis(name: str, value: np.ndarray, num_heads: int) -> np.ndarray:
    """Splits what `without_head_axis` joins."""
    if name.endswith("/attention_1/output/dense/kernel"):
        return value.reshape(num_heads, -1, value.shape[-1])
    if "/attention_1/self/" in name:
        return value.reshape(*value.shape[:-1], num_heads, -1)
    return value
