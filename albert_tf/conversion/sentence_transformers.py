"""Folders of sentence-transformers: modules that make vectors of encoder outputs, and prompts.

The encoder lies in the folder itself, in Hugging Face's layout, and each further module in a folder
of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from albert_tf.answers.embed import PROMPTS, Embed
from albert_tf.conversion import arrays
from albert_tf.conversion.names import DENSE
from albert_tf.storage import files
from albert_tf.storage.text_files import json_member, parse_json, read_json_object
from albert_tf.text import fast_tokenizer

MODULES_FILE = "modules.json"
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_SETTINGS, _TOKENIZER = "config_sentence_transformers.json", "tokenizer_config.json"
# The encoder's own settings file; old versions named it after the encoder's type.
_ENCODER = ("sentence_bert_config.json", "sentence_albert_config.json")
# Their name of a pooling -> ours; before version 6 each had a field of its own.
_POOLINGS = {"mean": "mean", "cls": "cls", "max": "max", "mean_sqrt_len_tokens": "mean_sqrt"}
_FIELDS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt",
}
# Classes of activations -> our names.
_ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "linear",
    "torch.nn.modules.activation.ReLU": "relu",
}
_TYPES, _MODEL = "sentence_transformers.", "SentenceTransformer"
# The modules that can be read, in this order, each with the fields of its file that would change
# vectors -> the field's only supported value, which is also its default.
_ENDS = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
_ARGUMENTS = ("tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
_LENGTHS = ("query_length", "document_length", "query_expansion", "processing_kwargs")
_FIXED: dict[str, dict[str, Any]] = {
    "Transformer": {
        "do_lower_case": False,  # Lower-casing, if any, is left to the tokenizer.
        "transformer_task": "feature-extraction",
        "module_output_name": "token_embeddings",
        **dict.fromkeys((*_ARGUMENTS, *_LENGTHS)),
    },
    "Pooling": {"include_prompt": True},
    "Dense": {"use_residual": False, **_ENDS},
    "Normalize": _ENDS,
}
# Names of a dense layer's tensors.
_KERNEL, _BIAS = "linear.weight", "linear.bias"


def matches(directory: str) -> bool:
    """Tells whether a directory has modules of sentence-transformers that embed texts."""
    # Its classifiers have modules, too.
    kind = _read(os.path.join(directory, _SETTINGS)).get("model_type", _MODEL)
    return kind == _MODEL and os.path.isfile(os.path.join(directory, MODULES_FILE))


def read_options(directory: str) -> dict[str, Any]:
    """Returns the options of Embed that a directory's files specify."""
    paths = [os.path.join(directory, name) for name in _ENCODER]
    files_of = {n: os.path.join(folder, _CONFIG) for n, folder in _modules(directory).items()}
    files_of["Transformer"] = next(filter(os.path.isfile, paths), paths[0])
    modules = {name: _read(file, _FIXED[name]) for name, file in files_of.items()}
    options = {
        "pooling": _pooling(modules["Pooling"], files_of["Pooling"]),
        "normalize": "Normalize" in modules,
        **_settings(os.path.join(directory, _SETTINGS), "Normalize" in modules),
        **_length(modules["Transformer"], directory),
    }
    if "Dense" in modules:
        dense, file = modules["Dense"], files_of["Dense"]
        name = str(dense.get("activation_function", next(iter(_ACTIVATIONS))))
        if name not in _ACTIVATIONS:
            raise ValueError(f"{file}: the activation {name} is not known here")
        units = json_member(dense, "out_features", file, int)
        options |= {"dense_units": units, "dense_activation": _ACTIVATIONS[name]}
    return options


def read_dense(directory: str) -> dict[str, np.ndarray]:
    """Returns the dense layer's weights by our names; none if there is no such layer."""
    modules = _modules(directory) if matches(directory) else {}
    if "Dense" not in modules:
        return {}
    path = os.path.join(modules["Dense"], _WEIGHTS)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"{path} does not exist; a pickle (.bin) may run code: save the model again with "
            "sentence-transformers, as safetensors"
        )
    tensors = arrays.as_float32(arrays.read_safetensors(path), path)
    kernel = tensors.get(_KERNEL)
    if kernel is None or kernel.ndim != 2 or not {*tensors} <= {_KERNEL, _BIAS}:
        raise ValueError(f"{path} must have {_KERNEL} and {_BIAS}, not {', '.join(tensors)}")
    # A layer without a bias adds zeros.
    bias = tensors.get(_BIAS, np.zeros(len(kernel), np.float32))
    return dict(zip(DENSE, (np.ascontiguousarray(kernel.T), bias), strict=True))


def write(directory: str, kind: Embed, width: int, dense: Mapping[str, np.ndarray]) -> None:
    """Writes the modules that follow an encoder with outputs of this width."""
    found: list[tuple[str, dict[str, Any]]] = [("Transformer", {})]
    pooling = {field: name == kind.pooling for field, name in _FIELDS.items()}
    found.append(("Pooling", {"word_embedding_dimension": width, **pooling}))
    kernel, bias = (dense.get(name) for name in DENSE)
    activation = kind.dense_activation
    # sentence-transformers has no module that truncates vectors, so a dense layer does it.
    if kernel is None and kind.dimensions:
        kernel, bias = np.eye(width, dtype=np.float32), np.zeros(width, np.float32)
        activation = "linear"
    if kernel is not None:
        kernel, bias = kernel[:, : kind.dimensions], bias[: kind.dimensions]
        theirs = next(name for name, ours in _ACTIVATIONS.items() if ours == activation)
        sizes = {"in_features": width, "out_features": len(bias), "bias": True}
        found.append(("Dense", {**sizes, "activation_function": theirs}))
    found += [("Normalize", {})] * kind.normalize

    listed = []
    for place, (name, config) in enumerate(found):
        path = f"{place}_{name}" if place else ""
        kind_of = f"{_TYPES}models.{name}"
        listed.append({"idx": place, "name": str(place), "path": path, "type": kind_of})
        if place:
            os.makedirs(os.path.join(directory, path))
            _write(os.path.join(directory, path, _CONFIG), config)
        if name == "Dense":
            tensors = {_KERNEL: np.ascontiguousarray(kernel.T), _BIAS: np.ascontiguousarray(bias)}
            content = safetensors.numpy.save(tensors, metadata={"format": "pt"})
            files.replace(os.path.join(directory, path, _WEIGHTS), content)
    _write(os.path.join(directory, MODULES_FILE), listed)
    _write(os.path.join(directory, _ENCODER[0]), {"max_seq_length": kind.max_seq_length})
    prompts = {name: getattr(kind, f"{name}_prompt") for name in PROMPTS}
    settings = {"prompts": prompts, "default_prompt_name": kind.default_prompt}
    settings |= {"model_type": _MODEL, "similarity_fn_name": kind.similarity}
    _write(os.path.join(directory, _SETTINGS), settings)


def _write(path: str, value: Any) -> None:
    files.replace(path, json.dumps(value, indent=2) + "\n")


def _read(file: str, fixed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Reads a JSON object, {} if there is no file; members in `fixed` must have no other value."""
    values = read_json_object(file) if os.path.isfile(file) else {}
    for name, value in (fixed or {}).items():
        if values.get(name) not in (None, {}, value):
            raise ValueError(
                f"{file}: {name} must be {json.dumps(value)}, not {json.dumps(values[name])}"
            )
    return values


def _modules(directory: str) -> dict[str, str]:
    """Returns the folders of a directory's modules by the names of their classes."""
    file = os.path.join(directory, MODULES_FILE)
    listed = parse_json(files.read_bytes(file), file)
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ValueError(f"{file} must be a list of objects")
    types = [str(each.get("type")) for each in listed]
    # A custom class that comes with the model may do anything, even under a known class's name.
    names = [each.rpartition(".")[2] if each.startswith(_TYPES) else each for each in types]
    # Each occurs at most once, in this order; the encoder's folder is the directory itself.
    known = [*_FIXED]
    if names[:2] != known[:2] or names != [each for each in known if each in names]:
        raise ValueError(
            f"{file}: expected the modules {', '.join(known)}, of which the last two may be "
            f"missing, not {', '.join(names)}; without this file, the encoder alone is read"
        )
    paths = [str(each.get("path")) for each in listed]
    # A path could point to any folder on this machine.
    if paths[0] or any(path != os.path.basename(path) or path in ("", "..") for path in paths[1:]):
        raise ValueError(f"{file}: modules must be in folders of this one, not {', '.join(paths)}")
    return {n: os.path.join(directory, p) for n, p in zip(names, paths, strict=True)}


def _pooling(config: Mapping[str, Any], file: str) -> str:
    of_old = [name for name in config if name.startswith("pooling_mode_") and config[name]]
    modes, known = config.get("pooling_mode") or of_old, _POOLINGS | _FIELDS
    modes = [*map(str, modes)] if isinstance(modes, list) else [str(modes)]
    if len(modes) != 1 or modes[0] not in known:
        raise ValueError(
            f"{file}: the pooling {' and '.join(modes) or 'none'} is not known here, "
            f"only one of {', '.join(_POOLINGS)}"
        )
    return known[modes[0]]


def _settings(file: str, normalize: bool) -> dict[str, Any]:
    """Returns the options in a directory's own file: prompts, similarity and dimensions."""
    settings = _read(file)
    prompts = json_member({"prompts": settings.get("prompts") or {}}, "prompts", file, dict)
    default, dimensions = (settings.get(n) for n in ("default_prompt_name", "truncate_dim"))
    unknown = [name for name in prompts if name not in PROMPTS and prompts[name]]
    if unknown or default not in (None, *PROMPTS):
        raise ValueError(
            f"{file}: the prompt {(*unknown, default)[0]!r} is not known here, only "
            f"{' and '.join(PROMPTS)}"
        )
    if dimensions and normalize:
        raise ValueError(
            f"{file}: truncate_dim after the module Normalize is not known here: take it out, and "
            f"set `dimensions={dimensions}`, which leaves vectors their length 1"
        )
    options = {f"{name}_prompt": prompts.get(name) or "" for name in PROMPTS}
    options |= {"similarity": settings.get("similarity_fn_name") or "cosine"}
    # An empty prompt changes nothing, and leaves requests free to ask for the other one.
    given = {"default_prompt": default if prompts.get(default) else None, "dimensions": dimensions}
    return options | {name: value for name, value in given.items() if value is not None}


def _length(encoder: Mapping[str, Any], directory: str) -> dict[str, int]:
    # Newer versions keep the maximum length with the tokenizer. Texts must be truncated at the end.
    of_tokenizer = _read(file := os.path.join(directory, _TOKENIZER))
    truncation = _read(os.path.join(directory, fast_tokenizer.FILE)).get("truncation")
    side = (truncation if isinstance(truncation, dict) else {}).get("direction", "right")
    if (side := of_tokenizer.get("truncation_side", side)) not in ("right", "Right"):
        raise ValueError(f"{file}: truncation_side must be right, not {side}")
    length, longest = encoder.get("max_seq_length"), of_tokenizer.get("model_max_length")
    if length is None and isinstance(longest, (int, float)):
        # A tokenizer's limit may be a huge number, which means none, or exceed the encoder's.
        config = read_json_object(os.path.join(directory, _CONFIG))
        length = int(min(longest, config.get("max_position_embeddings", 512)))
    return {} if length is None else {"max_seq_length": length}
