"""Models of albert_tf in Keras' own files: .keras and .weights.h5."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from albert_tf.config import CONFIG_FILE, AlbertConfig
from albert_tf.conversion import arrays, names
from albert_tf.storage import files
from albert_tf.storage.text_files import parse_json_object

LOOKED_FOR = "one .keras or .weights.h5 file (Keras)"
_ARCHIVE, _WEIGHTS = ".keras", ".weights.h5"
_WEIGHTS_MEMBER, _CONFIG_MEMBER = "model.weights.h5", "config.json"
_OF_PRESETS = ("model.weights.h5", "task.weights.h5")
_REGISTERED = "albert_tf>"
# Keras' names of the losses for multi-label classification.
_LOSSES_OF_SEVERAL = ("BinaryCrossentropy", "BinaryFocalCrossentropy")


def matches(path: str) -> bool:
    """Tells whether a path is such a file, or a directory with one."""
    return _file(path) is not None


def _file(path: str) -> str | None:
    if path.endswith((_ARCHIVE, _WEIGHTS)) and os.path.isfile(path):
        return path
    found = found_in(path)
    return found[0] if len(found) == 1 else None


def found_in(directory: str) -> list[str]:
    """Returns a directory's .keras and .weights.h5 files, except those of a KerasHub preset."""
    found = [f for ending in (_ARCHIVE, _WEIGHTS) for f in files.find(directory, f"*{ending}")]
    # A config.json beside them belongs to a KerasHub preset, which has a layout of its own.
    is_preset = os.path.isfile(os.path.join(directory, _CONFIG_MEMBER))
    others = _OF_PRESETS if is_preset else ()
    return [f for f in found if os.path.isfile(f) and os.path.basename(f) not in others]


def read_config(path: str) -> AlbertConfig:
    """Reads the config in a .keras file, or the albert_config.json beside a .weights.h5."""
    file = _file(path)
    if file.endswith(_WEIGHTS):
        return AlbertConfig.from_json_file(os.path.join(os.path.dirname(file), CONFIG_FILE))
    found = [arguments["config"] for _, arguments in _models(_read_description(file))]
    if not found or any(other != found[0] for other in found):
        raise ValueError(
            f"{file} must contain one model of albert_tf, not {len(found)}: with a class of your "
            "own call `save_weights`, and `load_weights` to fill a model of albert_tf"
        )
    return AlbertConfig.from_dict(found[0], file)


def read_task(path: str) -> tuple[str, bool, Mapping[str, Any]]:
    """Reads the description of the model in a .keras file.

    Returns:
      Its class, or "" if there is no such file, or not exactly one class of albert_tf in it;
      whether its loss is for several labels; and the class's arguments.
    """
    file = _file(path)
    if file is None or not file.endswith(_ARCHIVE):
        return "", False, {}
    # A user's model may hold several classes of ours: its task is then unknown.
    description = _read_description(file)
    models = list(_models(description))
    if len({name for name, _ in models}) != 1:
        return "", False, {}
    name, arguments = models[0]
    compiled = description.get("compile_config")
    loss = compiled.get("loss") if isinstance(compiled, dict) else None
    is_of_several = isinstance(loss, dict) and loss.get("class_name") in _LOSSES_OF_SEVERAL
    return name, arguments.get("num_labels") != 1 and is_of_several, arguments


def _read_description(file: str) -> dict[str, Any]:
    return parse_json_object(_read_member(file, _CONFIG_MEMBER, files.SMALL_BYTES), file)


def _models(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the classes of albert_tf in Keras' description of a model, with their arguments."""
    if isinstance(node, dict):
        arguments, registered = node.get("config"), str(node.get("registered_name", ""))
        is_ours = registered.startswith(_REGISTERED)
        if is_ours and isinstance(arguments, dict) and "config" in arguments:
            yield registered.removeprefix(_REGISTERED), arguments
            return
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from _models(child)


def read_weights(path: str) -> dict[str, np.ndarray]:
    """Returns the weights of albert_tf's layers by the release's names, whatever model has them.

    Weights of other layers get the names <layer>/<number>.
    """
    file = _file(path)
    is_archive = file.endswith(_ARCHIVE)
    stored: Any = io.BytesIO(_read_member(file, _WEIGHTS_MEMBER)) if is_archive else file
    datasets, layers = arrays.read_hdf5(stored, file)
    # A dataset's path names its layer and the number of the weight in it.
    weights: dict[str, np.ndarray] = {}
    for dataset, value in datasets.items():
        group, _, number = dataset.rpartition("/")
        layer = layers.get(group)
        if dataset.startswith("optimizer") or layer is None:
            continue
        # Keras numbers a layer's weights in the order in which the layer adds them.
        order = names.weights_of_layer(layer)
        known = number.isdecimal() and int(number) < len(order)
        name = order[int(number)] if known else f"{layer}/{number}"
        if name in weights:
            raise ValueError(
                f"{file} contains two layers named {layer}: expected a single ALBERT model"
            )
        weights[name] = value
    pooler = [name for name in weights if name.startswith(names.POOLER)]
    # A pooler of zeros was not stored: convert.py fills it in, because Keras needs all weights.
    if not any(weights[name].any() for name in pooler):
        weights = {name: value for name, value in weights.items() if name not in pooler}
    return arrays.as_float32(weights, file)


def _read_member(file: str, member: str, most: float = math.inf) -> bytes:
    """Reads one file of an archive into memory; nothing is unpacked to disk."""
    try:
        with zipfile.ZipFile(file) as archive:
            # Keras doesn't compress, so a member can't be larger than its archive.
            size = archive.getinfo(member).file_size
            if size > min(most, os.path.getsize(file)):
                raise ValueError(f"{member} in {file} has {size:,} bytes, too many for such a file")
            return archive.read(member)
    except KeyError:
        raise ValueError(f"there is no {member} in {file}: save the model with Keras 3") from None
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError) as error:
        raise ValueError(f"{file} is damaged ({error}): copy it again") from None
