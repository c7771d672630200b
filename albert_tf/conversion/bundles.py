"""TensorFlow's checkpoints: the release's, TF-Hub's modules, and albert_zh's."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from absl import logging

from albert_tf.config import CONFIG_FILE, AlbertConfig
from albert_tf.conversion import arrays, names
from albert_tf.storage import checkpoint, files, protobuf

LOOKED_FOR = (
    "saved_model.pb (SavedModel, TF-Hub), checkpoint or model.ckpt-best.index (the release's, ours)"
)
_SAVED_MODEL = os.path.join("variables", "variables")
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Name of the config in albert_zh's archives.
_SIZED_CONFIG = "albert_config_*.json"
_GARDEN_NAMES = names.Renaming(names.MODEL_GARDEN_NAMES)
_ZH_NAMES = names.Renaming(names.ALBERT_ZH_NAMES)
_TABLE = names.WORD_EMBEDDINGS
_PROJECTION = f"{_TABLE}_2"


def matches(path: str) -> bool:
    """Tells whether a path is a bundle's prefix, one of its files, or a directory with one."""
    try:
        return bool(_prefix(path))
    except FileNotFoundError:
        return False


def _prefix(path: str) -> str:
    if files.exists(os.path.join(path, "saved_model.pb")):
        return os.path.join(path, _SAVED_MODEL)
    return checkpoint.resolve(path)


def read_config(path: str) -> AlbertConfig:
    """Reads the albert_config.json beside a bundle or among a module's assets.

    If there is none, reads the only file beside the bundle with a name like
    albert_config_tiny.json.
    """
    directory = files.directory_of(path)
    # The first pattern with any match decides.
    patterns = (CONFIG_FILE, f"assets/{CONFIG_FILE}", _SIZED_CONFIG)
    found = next(filter(None, (files.find(directory, pattern) for pattern in patterns)), [])
    if not found:
        raise FileNotFoundError(f"there is no {CONFIG_FILE} in {directory}")
    if len(found) > 1:
        raise ValueError(
            f"{directory} contains several configs ({', '.join(map(os.path.basename, found))}): "
            "keep the one that belongs to the weights"
        )
    config = AlbertConfig.from_json_file(found[0])
    if _is_albert_zh(checkpoint.shapes(_prefix(path))):
        return dataclasses.replace(config, embedding_size=config.hidden_size)
    return config


def read_weights(path: str) -> dict[str, np.ndarray]:
    """Returns `<float32>` arrays by the release's names; other weights keep their own names.

    The optimizer's slots, the step and tensors that are not floating-point are left out.
    """
    return weights_of(checkpoint.read(_prefix(path)), path)


def weights_of(tensors: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """Returns the weights among the tensors of the bundle at `path`."""
    if _OBJECT_GRAPH in tensors:
        tensors = _by_variable_name(tensors, path)
    weights = {
        name: value
        for name, value in tensors.items()
        # The name of an optimizer's slot begins with its weight's: output_bias/adam_m, /momentum.
        if arrays.is_float(value)
        and name.rpartition("/")[0] not in tensors
        and not name.startswith(names.OPTIMIZER)
    }
    weights = arrays.as_float32(weights, path)
    return _fold_albert_zh(weights, path) if _is_albert_zh(weights) else weights


def _by_variable_name(tensors: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """Renames TF2's tensors from their paths in the object graph to their variables' names."""
    # Find pairs of variable and tensor names in the TrackableObjectGraph.
    variables = []
    graph: Any = tensors[_OBJECT_GRAPH]
    try:
        for number, node in protobuf.fields(graph):
            attributes = protobuf.fields(node) if number == 1 else ()
            found = [dict(protobuf.fields(value)) for field, value in attributes if field == 2]
            variables += [(each.get(2, b"").decode(), each.get(3, b"").decode()) for each in found]
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again") from None
    named: dict[str, np.ndarray] = {}
    for name, key in variables:
        value = tensors.get(key)
        if not arrays.is_float(value):
            continue
        # The Model Garden, TF-Hub's modules and our own models name their variables differently.
        name = name.removesuffix(":0")
        name = _GARDEN_NAMES.backward(name) or names.tf1_name(name)
        # Several objects may share one variable, but different variables of the same name belong
        # to two models.
        if name in named and not np.array_equal(named[name], value):
            raise ValueError(
                f"{path} contains two variables named {name}: expected a single ALBERT model"
            )
        named[name] = value
    joined = {name: arrays.without_head_axis(name, value) for name, value in named.items()}
    return arrays.without_identity(joined, path)


def _is_albert_zh(tensors: Iterable[str]) -> bool:
    return any(name.startswith(names.ALBERT_ZH_LAYER) for name in tensors)


def _fold_albert_zh(weights: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """Renames weights, and multiplies the embedding's factors [V, E] and [E, H] into [V, H]."""
    # Rename the weights; none may exist under both names.
    renamed = {_ZH_NAMES.backward(name) or name: value for name, value in weights.items()}
    if len(renamed) != len(weights):
        raise ValueError(
            f"{path} contains weights under albert_zh's names and under the release's: keep one set"
        )
    # Multiply in float64, so that the product is rounded once.
    none = np.empty(0)
    table, projection = renamed.get(_TABLE, none), renamed.pop(_PROJECTION, none)
    shapes = [*table.shape, *projection.shape]
    if len(shapes) != 4 or shapes[1] != shapes[2]:
        raise ValueError(
            f"{path} is damaged: {_TABLE} {list(table.shape)} can't be multiplied by {_PROJECTION} "
            f"{list(projection.shape)}"
        )
    vocab_size, _, _, hidden = shapes
    product = table.astype(np.float64) @ projection.astype(np.float64)
    logging.info(
        "%s: word_embeddings @ word_embeddings_2 is loaded as one table (E = H = %d): training "
        "updates all of its %d x %d numbers, whereas albert_zh trains %d x %d and %d x %d",
        *(path, hidden, vocab_size, hidden, *shapes),
    )
    return {**renamed, _TABLE: product.astype(np.float32)}


def write(directory: str, config: AlbertConfig, weights: Mapping[str, np.ndarray]) -> None:
    """Writes model.ckpt-best and albert_config.json, as in the release's tar files."""
    prefix = os.path.join(directory, f"{checkpoint.BASENAME}-{checkpoint.BEST}")
    # The release's evaluation needs a step.
    checkpoint.write(prefix, {**weights, "global_step": np.int64(0)})
    files.replace(os.path.join(directory, CONFIG_FILE), config.to_json())
