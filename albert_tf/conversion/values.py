"""Weight arrays by the release's names, made uniform whatever file they come from."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from typing import Any

import h5py
import ml_dtypes
import numpy as np

_MAPPING = "bert/encoder/embedding_hidden_mapping_in"


def is_float(value: Any) -> bool:
    """Whether a stored value is floating-point, bfloat16 included."""
    dtype = getattr(value, "dtype", np.dtype(object))
    return dtype.kind == "f" or dtype.name == "bfloat16"


def as_float32(values: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """Casts weights to float32, in which we keep them, and checks names, dtypes and values.

    Args:
      values: Arrays by name.
      path: Their source, for messages.

    Returns:
      The same in float32.

    Raises:
      ValueError: If some are not floating-point, are NaN or infinite in float32, or have names
        with control characters, which would otherwise reach a terminal.
    """
    odd = [ascii(name) for name in values if not name.isprintable()]
    if odd:
        raise ValueError(
            f"{path} has weights whose names contain unprintable characters: {', '.join(odd)}"
        )
    wrong = [f"{name} ({value.dtype})" for name, value in values.items() if not is_float(value)]
    if wrong:
        raise ValueError(f"{path} has weights that are not floating-point: {', '.join(wrong)}")
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
    """Drops the projection of embeddings to hidden states where both have the same width.

    There the release has none, and others multiply by the identity.

    Args:
      values: Arrays by the release's names.
      path: Their source, for messages.

    Returns:
      The same without an identity projection.

    Raises:
      ValueError: If it is square but not the identity: none of our models has it.
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
    """Adds the projection that `without_identity` drops.

    Args:
      values: Arrays by the release's names.
      width: Of embeddings and hidden states.

    Returns:
      The same, with a float32 identity if there was no projection.
    """
    if f"{_MAPPING}/kernel" in values:
        return dict(values)
    return {
        **values,
        f"{_MAPPING}/kernel": np.eye(width, dtype=np.float32),
        f"{_MAPPING}/bias": np.zeros(width, np.float32),
    }


def without_head_axis(name: str, value: np.ndarray) -> np.ndarray:
    """Merges the axes of heads and head size, which Keras' own attention keeps apart.

    Args:
      name: The release's name.
      value: `[H, N, D]`, `[N, D, H]` or `[N, D]`; or merged already, or another weight.

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
    """Splits what `without_head_axis` merges."""
    if name.endswith("/attention_1/output/dense/kernel"):
        return value.reshape(num_heads, -1, value.shape[-1])
    if "/attention_1/self/" in name:
        return value.reshape(*value.shape[:-1], num_heads, -1)
    return value


def check_not_compressed(path: str) -> None:
    """Checks that a zip archive is not compressed, as those of Keras and torch never are.

    Raises:
      ValueError: If it is compressed, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again") from None
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError(
            f"{path} is compressed, as Keras and torch never write it: save the model again"
        )
    declared, held = sum(member.file_size for member in members), os.path.getsize(path)
    if declared > held:
        raise ValueError(
            f"{path} is damaged (its members declare {declared:,} bytes, but it has {held:,}): "
            "copy it again"
        )


_DEPTH = 32


def read_hdf5(file: Any, path: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads all floating-point datasets of an HDF5 file.

    Only data inside the file is read. Links, external storage and virtual datasets could name any
    file on the machine: they are refused, and so are sizes larger than what the file holds.

    Args:
      file: The file's path, or an open binary file.
      path: Its name, for messages.

    Returns:
      Arrays by path within the file, and the attribute `name` (Keras' layer name) of the groups
      that have one.

    Raises:
      ValueError: If it is damaged or refused.
    """
    values: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    try:
        with h5py.File(file, "r") as stored:
            _read_group(stored, path, values, names, seen=set(), depth=0)
    except (OSError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({str(error).splitlines()[0]}): copy it again"
        ) from None
    return values, names


def _read_group(
    group: h5py.Group,
    path: str,
    values: dict[str, np.ndarray],
    names: dict[str, str],
    seen: set[int],
    depth: int,
) -> None:
    if depth > _DEPTH:
        raise ValueError(f"{path} is nested deeper than {_DEPTH} groups: it is not a weights file")
    name = group.attrs.get("name")
    if isinstance(name, str):
        names[group.name.strip("/")] = name
    for key in group:
        where = f"{group.name.rstrip('/')}/{key}".strip("/")
        if group.id.links.get_info(key.encode()).type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{path}: {where} is a link, which is not followed")
        member = group[key]
        address = h5py.h5o.get_info(member.id).addr
        if address in seen:
            raise ValueError(
                f"{path}: {where} is a second name of the same object: it is not a weights file"
            )
        seen.add(address)
        if isinstance(member, h5py.Group):
            _read_group(member, path, values, names, seen, depth + 1)
        elif isinstance(member, h5py.Dataset) and member.dtype.kind == "f":
            values[where] = _read_dataset(member, path, where)
        elif isinstance(member, h5py.Dataset) and _is_bfloat16(member):
            values[where] = _read_dataset(member, path, where).view(ml_dtypes.bfloat16)


def _is_bfloat16(dataset: h5py.Dataset) -> bool:
    """Whether these are two bytes each that Keras marks as bfloat16, which HDF5 doesn't have."""
    mark = dataset.attrs.get("dtype")
    return dataset.dtype == np.dtype("V2") and isinstance(mark, str) and mark == "bfloat16"


def _read_dataset(dataset: h5py.Dataset, path: str, where: str) -> np.ndarray:
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"{path}: {where} is stored in another file, which is not read")
    held = dataset.id.get_storage_size()
    # A filter would run plug-in code from this machine, chosen by the file.
    if held != dataset.nbytes or dataset.id.get_create_plist().get_nfilters():
        raise ValueError(
            f"{path}: {where} declares {dataset.nbytes:,} bytes but has {held:,}: it is damaged, "
            "or compressed, as Keras never writes it"
        )
    return dataset[()]
