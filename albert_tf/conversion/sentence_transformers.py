"""Folders of sentence-transformers: what turns an encoder's outputs into vectors, and prompts.

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

MODULES_FILE = "modules.json"
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_SETTINGS, _LENGTH = "config_sentence_transformers.json", "sentence_bert_config.json"
_TOKENIZER = "tokenizer_config.json"
# Their name of a pooling -> ours; before version 6 each had a field of its own.
_POOLINGS = {"mean": "mean", "cls": "cls", "max": "max", "mean_sqrt_len_tokens": "mean_sqrt"}
_FIELDS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt",
}
# Classes of activations in torch.nn.modules -> our names.
_ACTIVATIONS = {
    "activation.Tanh": "tanh",
    "linear.Identity": "linear",
    "activation.ReLU": "relu",
}
_TORCH = "torch.nn.modules."
# The modules that are read, in this order; the first is the encoder.
_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
_TYPES = "sentence_transformers.models."
# Names of a dense layer's tensors.
_KERNEL, _BIAS = "linear.weight", "linear.bias"


def matches(directory: str) -> bool:
    """Tells whether a directory has modules of sentence-transformers."""
    return os.path.isfile(os.path.join(directory, MODULES_FILE))


def read_options(directory: str) -> dict[str, Any]:
    """Returns the options of Embed that a directory tells."""
    modules, lengths = _modules(directory), os.path.join(directory, _LENGTH)
    lower = os.path.isfile(lengths) and read_json_object(lengths).get("do_lower_case", False)
    pooling = _read(modules["Pooling"])
    # The tokenizer lower-cases, if any.
    for name, value, allowed in (
        (f"{lengths}: do_lower_case", lower, False),
        (f"{modules['Pooling']}: include_prompt", pooling.get("include_prompt", True), True),
    ):
        if value != allowed:
            raise ValueError(f"{name} must be {json.dumps(allowed)}, not {json.dumps(value)}")
    options = {
        "pooling": _pooling(pooling),
        "normalize": "Normalize" in modules,
        **_prompts(directory),
        **_length(directory),
    }
    if "Dense" in modules:
        dense = _read(modules["Dense"])
        name = str(dense.get("activation_function", f"{_TORCH}activation.Tanh"))
        kind = _ACTIVATIONS.get(name.removeprefix(_TORCH))
        if kind is None or dense.get("use_residual"):
            what = f"the activation {name}" if kind is None else "a residual connection"
            raise ValueError(f"{modules['Dense']}: {what} is not known here")
        units = json_member(dense, "out_features", modules["Dense"], int)
        options |= {"dense_units": units, "dense_activation": kind}
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
    """Writes the modules behind an encoder with vectors of this width."""
    found: list[tuple[str, dict[str, Any]]] = [("Transformer", {})]
    pooling = {field: name == kind.pooling for field, name in _FIELDS.items()}
    found.append(("Pooling", {"word_embedding_dimension": width, **pooling}))
    kernel, bias = (dense.get(name) for name in DENSE)
    activation = kind.dense_activation
    # They have no module that leaves out dimensions: a dense layer can.
    if kernel is None and kind.dimensions:
        kernel, bias = np.eye(width, dtype=np.float32), np.zeros(width, np.float32)
        activation = "linear"
    if kernel is not None:
        kernel, bias = kernel[:, : kind.dimensions], bias[: kind.dimensions]
        theirs = next(name for name, ours in _ACTIVATIONS.items() if ours == activation)
        sizes = {"in_features": width, "out_features": len(bias), "bias": True}
        found.append(("Dense", {**sizes, "activation_function": f"{_TORCH}{theirs}"}))
    found += [("Normalize", {})] * kind.normalize

    listed = []
    for place, (name, config) in enumerate(found):
        path = f"{place}_{name}" if place else ""
        listed.append({"idx": place, "name": str(place), "path": path, "type": f"{_TYPES}{name}"})
        if place:
            os.makedirs(os.path.join(directory, path))
            _write(os.path.join(directory, path, _CONFIG), config)
        if name == "Dense":
            tensors = {_KERNEL: np.ascontiguousarray(kernel.T), _BIAS: np.ascontiguousarray(bias)}
            content = safetensors.numpy.save(tensors, metadata={"format": "pt"})
            files.replace(os.path.join(directory, path, _WEIGHTS), content)
    _write(os.path.join(directory, MODULES_FILE), listed)
    length = {"max_seq_length": kind.max_seq_length, "do_lower_case": False}
    _write(os.path.join(directory, _LENGTH), length)
    prompts = {name: getattr(kind, f"{name}_prompt") for name in PROMPTS}
    settings = {"prompts": prompts, "default_prompt_name": kind.default_prompt}
    settings |= {"model_type": "SentenceTransformer", "similarity_fn_name": kind.similarity}
    _write(os.path.join(directory, _SETTINGS), settings)


def _write(path: str, value: Any) -> None:
    files.replace(path, json.dumps(value, indent=2) + "\n")


def _read(module: str) -> dict[str, Any]:
    return read_json_object(os.path.join(module, _CONFIG))


def _modules(directory: str) -> dict[str, str]:
    """Returns the folders of a directory's modules by the names of their classes."""
    file = os.path.join(directory, MODULES_FILE)
    listed = parse_json(files.read_bytes(file), file)
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ValueError(f"{file} must be a list of objects")
    names = [str(each.get("type")).rpartition(".")[2] for each in listed]
    # Each at most once, and in their order; the folder of the encoder is the directory.
    if names[:2] != [*_ORDER[:2]] or names != [each for each in _ORDER if each in names]:
        raise ValueError(
            f"{file}: expected the modules {', '.join(_ORDER)}, of which the last two may be "
            f"missing, not {', '.join(names)}"
        )
    paths = [str(each.get("path")) for each in listed]
    # A path could lead to any folder of this machine.
    if paths[0] or any(path != os.path.basename(path) or path in ("", "..") for path in paths[1:]):
        raise ValueError(f"{file}: modules must be in folders of this one, not {', '.join(paths)}")
    return {n: os.path.join(directory, p) for n, p in zip(names, paths, strict=True)}


def _pooling(config: Mapping[str, Any]) -> str:
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [
            name for name, value in config.items() if name.startswith("pooling_mode_") and value
        ]
        known = _FIELDS
    else:
        modes, known = [modes] if isinstance(modes, str) else list(modes), _POOLINGS
    if len(modes) != 1 or modes[0] not in known:
        raise ValueError(
            f"the pooling {' and '.join(map(str, modes)) or 'none'} is not known here, only one of "
            f"{', '.join(_POOLINGS)}"
        )
    return known[modes[0]]


def _prompts(directory: str) -> dict[str, Any]:
    file = os.path.join(directory, _SETTINGS)
    settings = read_json_object(file) if os.path.isfile(file) else {}
    prompts = settings.get("prompts") or {}
    unknown = [name for name in prompts if name not in PROMPTS and prompts[name]]
    default = settings.get("default_prompt_name")
    if unknown or default not in (None, *PROMPTS):
        raise ValueError(
            f"{file}: the prompt {(*unknown, default)[0]!r} is not known here, only "
            f"{' and '.join(PROMPTS)}"
        )
    options = {f"{name}_prompt": prompts.get(name) or "" for name in PROMPTS}
    options["similarity"] = settings.get("similarity_fn_name") or "cosine"
    return options | ({"default_prompt": default} if default else {})


def _length(directory: str) -> dict[str, Any]:
    # Newer versions keep the length with the tokenizer.
    for name, member in ((_LENGTH, "max_seq_length"), (_TOKENIZER, "model_max_length")):
        file = os.path.join(directory, name)
        length = read_json_object(file).get(member) if os.path.isfile(file) else None
        # A tokenizer may have no limit, which is a huge number, or a larger one than the encoder.
        if type(length) is int and name == _TOKENIZER:
            length = min(
                length,
                read_json_object(os.path.join(directory, _CONFIG)).get(
                    "max_position_embeddings", 512
                ),
            )
        if type(length) is int:
            return {"max_seq_length": length}
    return {}
