"""Weight arrays: casts and shapes that all layouts share; readers of safetensors and HDF5 files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

_MAPPING = "bert/encoder/embedding_hidden_mapping_in"


def is_float(value: Any) -> bool:
    """Whether a stored value is floating-point, bfloat16 included."""
    dtype = getattr(value, "dtype", np.dtype(object))
    return dtype.kind == "f" or dtype.name == "bfloat16"


def as_float32(values: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """Casts weights to float32, and checks that they are floating-point and finite."""
    wrong = [f"{name} ({value.dtype})" for name, value in values.items() if not is_float(value)]
    if wrong:
        raise ValueError(f"{path} has weights that are not floating-point: {', '.join(wrong)}")
    # A number too large for float32 becomes infinite here, and is reported below.
    with np.errstate(over="ignore"):
        cast = {name: np.asarray(value, np.float32) for name, value in values.items()}
    bad = [name for name, value in cast.items() if not np.isfinite(value).all()]
    if bad:
        raise ValueError(
            f"{path} has NaN or infinite numbers in {', '.join(bad)}: copy it again, or use a "
            "checkpoint from before training diverged"
        )
    return cast


def without_identity(values: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """Drops the projection of embeddings to hidden states if both have the same width.

    The release has none in such a model; other libraries multiply by the identity.
    """
    values = dict(values)
    kernel, bias = values.get(f"{_MAPPING}/kernel"), values.get(f"{_MAPPING}/bias")
    if kernel is None or kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
        return values
    if not np.array_equal(kernel, np.eye(len(kernel))) or (bias is not None and bias.any()):
        raise ValueError(
            f"{path} maps embeddings to hidden states of the same width ({len(kernel)}) by a "
            "matrix other than the identity: ALBERT here, as in the release, has no such matrix"
        )
    del values[f"{_MAPPING}/kernel"]
    values.pop(f"{_MAPPING}/bias", None)
    return values


def with_identity(values: Mapping[str, np.ndarray], width: int) -> dict[str, np.ndarray]:
    """Adds the projection of this width that `without_identity` drops."""
    if f"{_MAPPING}/kernel" in values:
        return dict(values)
    return {
        **values,
        f"{_MAPPING}/kernel": np.eye(width, dtype=np.float32),
        f"{_MAPPING}/bias": np.zeros(width, np.float32),
    }


def without_head_axis(name: str, value: np.ndarray) -> np.ndarray:
    """Merges the axes of heads and head size, which Keras' own attention keeps apart.

    `[H, N, D]`, `[N, D, H]` and `[N, D]` become `[H, H]` and `[H]`; other weights stay as they are,
    as do axes that are merged already. `name` is the weight's name in the release.
    """
    shape = value.shape
    if name.endswith("/attention_1/output/dense/kernel") and value.ndim == 3:
        return value.reshape(shape[0] * shape[1], shape[2])
    if "/attention_1/self/" in name and value.ndim == (2 if name.endswith("/bias") else 3):
        return value.reshape(*shape[:-2], shape[-2] * shape[-1])
    return value


def with_head_axis(name: str, value: np.ndarray, num_heads: int) -> np.ndarray:
    """Splits the axes that `without_head_axis` merges."""
    if name.endswith("/attention_1/output/dense/kernel"):
        return value.reshape(num_heads, -1, value.shape[-1])
    if "/attention_1/self/" in name:
        return value.reshape(*value.shape[:-1], num_heads, -1)
    return value


def read_safetensors(path: str) -> dict[str, np.ndarray]:
    """Returns a safetensors file's arrays by name."""
    try:
        return safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again") from None
    except (AttributeError, TypeError) as error:  # The package's errors for types that NumPy lacks.
        raise ValueError(
            f"{path} has weights of a type that is not read ({error}): save the model again in "
            "float32"
        ) from None


def read_hdf5(file: Any, path: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads all floating-point datasets of an HDF5 file; one stored in another file is an error.

    Args:
      file: The file's path, or an open binary file.
      path: Its name, for messages.

    Returns:
      Arrays by path within the file, and the attribute `name` (Keras' layer name) of the groups
      that have one.
    """
    values: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}

    def visit(where: str, member: h5py.Group | h5py.Dataset) -> None:
        if isinstance(where, bytes):
            raise TypeError(f"the name {where!r} is not UTF-8")  # h5py returns such names as bytes.
        # A group with a name is one of Keras' layers; its weights are the datasets in it.
        name = member.attrs.get("name")
        if isinstance(name, str):
            names[where] = name
        # HDF5 has no bfloat16: Keras stores two bytes and names the type in an attribute.
        is_bfloat16 = member.attrs.get("dtype") == "bfloat16"
        if not isinstance(member, h5py.Dataset) or not (member.dtype.kind == "f" or is_bfloat16):
            return
        # Keras writes datasets whole and uncompressed, so refuse any whose size in memory differs
        # from that in the file, or that is stored in another file.
        held = member.id.get_storage_size()
        if held != member.nbytes or member.external or member.is_virtual:
            raise ValueError(
                f"{path}: {where} declares {member.nbytes:,} bytes but the file holds {held:,} of "
                "it: it is damaged, or not as Keras writes it"
            )
        values[where] = member[()].view(ml_dtypes.bfloat16) if is_bfloat16 else member[()]

    try:
        with h5py.File(file, "r") as stored:
            stored.visititems(visit)  # It visits each object once and follows no link.
    except (OSError, KeyError, RuntimeError, TypeError, UnicodeError) as error:
        raise ValueError(
            f"{path} is damaged ({str(error).splitlines()[0]}): copy it again"
        ) from None
    return values, names
