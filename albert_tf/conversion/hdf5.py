"""HDF5 weight files, read without following links out of them."""

from __future__ import annotations

from typing import Any

import h5py
import ml_dtypes
import numpy as np

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
