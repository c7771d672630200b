"""KerasHub presets: config.json, model.weights.h5 and, for a task, task.weights.h5.

KerasHub has no sentence-order head, and its masked-LM head normalises with epsilon 1e-5 where the
release has 1e-12.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from albert_tf.config import AlbertConfig
from albert_tf.conversion import arrays, names
from albert_tf.storage import files, text_files

LOOKED_FOR = "config.json with registered_name keras_hub>AlbertBackbone (KerasHub)"
_CONFIG = "config.json"
_WEIGHTS, _TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"
_BACKBONE = ("keras_hub>AlbertBackbone", "keras_nlp>AlbertBackbone")
_BLOCK = re.compile(r"layers/transformer_encoder(?:_(\d+))?/")
_BACKBONE_NAMES = names.Renaming(names.KERAS_HUB_BACKBONE_NAMES)
_TASK_NAMES = names.Renaming((*names.KERAS_HUB_MASKED_LM_NAMES, *names.KERAS_HUB_CLASSIFIER_NAMES))
# Task -> prefixes of the release's names of its heads.
TASKS = {
    "AlbertMaskedLM": (names.MASKED_LM_HEAD,),
    "AlbertTextClassifier": (names.CLASSIFIER_HEAD,),
}
# Learning rate of the Adam optimizer that KerasHub compiles each task with. A task's file must
# hold the optimizer's two scalars, its iterations and this rate.
_RATES = {"AlbertMaskedLM": 5e-5, "AlbertTextClassifier": 1e-5}
_PACKAGE = "keras_hub.src.models.albert"
_MODULES = {
    "AlbertBackbone": "albert_backbone",
    "AlbertMaskedLM": "albert_masked_lm",
    "AlbertMaskedLMPreprocessor": "albert_masked_lm_preprocessor",
    "AlbertTextClassifier": "albert_text_classifier",
    "AlbertTextClassifierPreprocessor": "albert_text_classifier_preprocessor",
    "AlbertTokenizer": "albert_tokenizer",
}

# KerasHub's key -> the release's.
_KEYS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_groups": "num_hidden_groups",
    "num_inner_repetitions": "inner_group_num",
    "embedding_dim": "embedding_size",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}


def matches(path: str) -> bool:
    """Tells whether a directory has this layout."""
    config = os.path.join(path, _CONFIG)
    return os.path.isfile(config) and "registered_name" in text_files.read_json_object(config)


def read_config(path: str) -> AlbertConfig:
    """Reads a preset's config."""
    file = os.path.join(path, _CONFIG)
    preset = text_files.read_json_object(file)
    if preset["registered_name"] not in _BACKBONE:
        raise ValueError(
            f"{file}: registered_name must be {_BACKBONE[0]!r}, not {preset['registered_name']!r}"
        )
    theirs = text_files.json_member(preset, "config", file, dict)
    absent = sorted(set(_KEYS) - set(theirs))
    if absent:
        raise ValueError(f"{file}: config lacks {', '.join(absent)}")
    ours = {our_key: theirs[key] for key, our_key in _KEYS.items()}
    # KerasHub has one rate for both dropouts, and no setting for the activation.
    ours |= {"attention_probs_dropout_prob": theirs["dropout"], "hidden_act": "gelu"}
    config = AlbertConfig.from_dict(ours, file)
    _check_expressible(config, file)
    return config


def _check_expressible(config: AlbertConfig, path: str) -> None:
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    rates = (config.hidden_dropout_prob, config.attention_probs_dropout_prob)
    differences = []
    if config.hidden_act != "gelu":
        differences.append(f"hidden_act {config.hidden_act} (only gelu)")
    if config.parameter_sharing != "all":
        differences.append(f"parameter_sharing {config.parameter_sharing}")
    if rates[0] != rates[1]:
        differences.append(f"two dropout rates, {rates[0]} and {rates[1]} (only one)")
    # KerasHub's groups have equal sizes. The release's may not, because it rounds.
    if any(config.attention_group(i) != i * groups // layers for i in range(layers)) or (
        layers % groups
    ):
        differences.append(f"{layers} layers in {groups} groups (only groups of equal size)")
    if differences:
        raise ValueError(f"{path}: KerasHub's ALBERT does not support {'; '.join(differences)}")


def read_weights(path: str) -> dict[str, np.ndarray]:
    """Returns the weights of the backbone, and of the task if the preset has one."""
    inner = read_config(path).inner_group_num
    file = os.path.join(path, _WEIGHTS)
    if not os.path.isfile(file):
        raise FileNotFoundError(f"{path} contains no weights: expected {_WEIGHTS}")
    weights = {}
    for dataset, value in _read(file).items():
        name = _BACKBONE_NAMES.backward(_with_groups(dataset, inner)) or dataset
        weights[name] = arrays.without_head_axis(name, value)
    return arrays.without_identity({**weights, **_read_task(path)}, path)


def _read_task(path: str) -> dict[str, np.ndarray]:
    file = os.path.join(path, _TASK_WEIGHTS)
    found = _read(file) if os.path.isfile(file) else {}
    weights = {_TASK_NAMES.backward(dataset) or dataset: found[dataset] for dataset in found}
    return {name: v.T if name == "output_weights" else v for name, v in weights.items()}


def _read(file: str) -> dict[str, np.ndarray]:
    datasets, _ = arrays.read_hdf5(file, file)
    weights = {name: value for name, value in datasets.items() if not name.startswith("optimizer")}
    return arrays.as_float32(weights, file)


def _with_groups(dataset: str, inner_group_num: int) -> str:
    """Replaces a block's number in the file with its group and inner group."""

    def rename(match: re.Match[str]) -> str:
        group, inner = divmod(int(match[1] or 0), inner_group_num)
        return f"layers/transformer_encoder_{group}_{inner}/"

    return _BLOCK.sub(rename, dataset)


def _without_groups(dataset: str, inner_group_num: int) -> str:
    def rename(match: re.Match[str]) -> str:
        block = int(match[1]) * inner_group_num + int(match[2])
        return f"layers/transformer_encoder{f'_{block}' if block else ''}/"

    return re.sub(r"layers/transformer_encoder_(\d+)_(\d+)/", rename, dataset)


def write(
    directory: str,
    config: AlbertConfig,
    weights: Mapping[str, np.ndarray],
    task: str | None,
    has_tokenizer: bool,
) -> None:
    """Writes configs and weights of a backbone, and of its task (a key of TASKS) if it has one."""
    _check_expressible(config, "the config")
    # Sort the weights into the datasets of the backbone's file and of the task's file.
    backbone, head = {}, {}
    for name, value in arrays.with_identity(weights, config.hidden_size).items():
        # A weight that the backbone has no name for belongs to the task's head.
        dataset = _BACKBONE_NAMES.forward(name)
        if dataset:
            dataset = _without_groups(dataset, config.inner_group_num)
            backbone[dataset] = arrays.with_head_axis(name, value, config.num_attention_heads)
        else:
            head[_TASK_NAMES.forward(name)] = value.T if name == "output_weights" else value

    import keras  # Not at the top: reading needs no framework.

    # Each of KerasHub's objects has a file with its config; the task's repeats those of its parts.
    configs = {
        _CONFIG: _serialized("AlbertBackbone", backbone_arguments(config)),
        "metadata.json": {"keras_version": keras.version()},
    }
    tokenizer = _serialized("AlbertTokenizer", {"proto": None}) if has_tokenizer else None
    if tokenizer:
        configs["tokenizer.json"] = tokenizer
    # A task also has the config of its preprocessor, and a file with its head and optimizer.
    if task:
        preprocessor = None
        if tokenizer:
            arguments = {"tokenizer": tokenizer, "sequence_length": config.max_position_embeddings}
            preprocessor = _serialized(f"{task}Preprocessor", arguments)
            configs["preprocessor.json"] = preprocessor
        arguments = {"backbone": configs[_CONFIG], "preprocessor": preprocessor}
        if task == "AlbertTextClassifier":
            arguments["num_classes"] = len(weights["output_bias"])
        configs["task.json"] = _serialized(task, arguments)
        head["optimizer/vars/0"] = np.zeros((), np.int32)  # Steps done.
        head["optimizer/vars/1"] = np.full((), _RATES[task], np.float32)
        _write_hdf5(os.path.join(directory, _TASK_WEIGHTS), head)
    _write_hdf5(os.path.join(directory, _WEIGHTS), backbone)
    for name, content in configs.items():
        files.replace(os.path.join(directory, name), json.dumps(content, indent=2))


def backbone_arguments(config: AlbertConfig) -> dict[str, Any]:
    """Returns the arguments that give KerasHub's AlbertBackbone the sizes of a config."""
    ours = config.to_dict()
    return {key: ours[our_key] for key, our_key in _KEYS.items()}


def _serialized(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "module": f"{_PACKAGE}.{_MODULES[name]}",
        "class_name": name,
        "config": arguments,
        "registered_name": f"keras_hub>{name}",
    }


def _write_hdf5(path: str, datasets: Mapping[str, np.ndarray]) -> None:
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file.create_dataset(name, data=value)
