"""Hugging Face directories: config.json and model.safetensors, perhaps sharded, or tf_model.h5."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.numpy
from absl import logging

from albert_tf.answers.kind import Labelled
from albert_tf.answers.kinds import KINDS
from albert_tf.config import LAYER_NORM_EPSILON, AlbertConfig
from albert_tf.conversion import arrays, names, sentence_transformers, tf_transformers
from albert_tf.storage import files, text_files
from albert_tf.text.tokenization import Tokenizer

LOOKED_FOR = "config.json with model_type albert (Hugging Face)"
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_INDEX = "model.safetensors.index.json"
_NAMES = names.Renaming(names.HUGGING_FACE_NAMES)
# Copies of other weights, and buffers, which older versions store.
_COPIES = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
# Hugging Face's name (its "gelu" is the exact function) -> ours; of several, we write the first.
_ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}
_SAME_KEYS = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_hidden_groups",
    "num_attention_heads",
    "intermediate_size",
    "inner_group_num",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
)
# The only values of these fields that albert_tf supports.
_FIXED = {
    "layer_norm_eps": LAYER_NORM_EPSILON,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "quantization_config": None,
}
_DEFAULT_LABEL = "LABEL_{}"
MOST_LABELS = 100_000
# The release's dropout rate, a constant in its code.
CLASSIFIER_DROPOUT = 0.1
# Architectures whose config names the classes.
_WITH_LABELS = {kind.model for kind in KINDS if issubclass(kind, Labelled)}
# architecture -> (whether it has a pooler, prefixes of the release's names of its heads, Hugging
# Face's name of its task).
ARCHITECTURES: dict[str, tuple[bool, tuple[str, ...], str]] = {
    "AlbertModel": (True, (), "feature-extraction"),
    "AlbertForMaskedLM": (False, (names.MASKED_LM_HEAD,), "fill-mask"),
    **{
        kind.model: (kind.reads_pooler, kind.heads, kind.pipeline)
        for kind in KINDS
        if kind.is_hugging_face
    },
}


def matches(path: str) -> bool:
    """Tells whether a directory has this layout."""
    config = os.path.join(path, _CONFIG)
    return os.path.isfile(config) and "model_type" in text_files.read_json_object(config)


def read_config(path: str) -> AlbertConfig:
    """Reads a directory's config."""
    file = os.path.join(path, _CONFIG)
    theirs = text_files.read_json_object(file)
    if theirs.get("model_type") != "albert":
        raise ValueError(f"{file}: model_type must be 'albert', not {theirs.get('model_type')!r}")
    # Refuse a model that albert_tf can't build.
    for key, value in _FIXED.items():
        if theirs.get(key, value) != value:
            raise ValueError(f"{file}: {key} must be {value!r}, not {theirs[key]!r}")
    activation = theirs.get("hidden_act", "gelu_new")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ValueError(
            f"{file}: hidden_act must be one of {sorted(_ACTIVATIONS)}, not {activation!r}"
        )
    if is_exact_gelu(path):
        logging.warning(
            "%s sets hidden_act to gelu, in Hugging Face the exact function; here, as in the "
            "release, it is the tanh approximation: outputs differ by about 1e-3",
            file,
        )
    # Most keys have the same names; each layer must use the same weights as in the release.
    ours = {key: theirs[key] for key in _SAME_KEYS if key in theirs}
    config = AlbertConfig.from_dict({**ours, "hidden_act": _ACTIVATIONS[activation]}, file)
    _check_schedule(config, file)
    return config


def is_exact_gelu(path: str) -> bool:
    """Whether a directory has this layout, and its config asks for the exact GELU."""
    theirs = text_files.read_json_object(os.path.join(path, _CONFIG)) if matches(path) else {}
    return theirs.get("hidden_act") == "gelu"


def _check_schedule(config: AlbertConfig, path: str) -> None:
    """Checks that each layer gets the same group in Hugging Face as here."""
    if config.parameter_sharing != "all":
        raise ValueError(
            f"{path}: parameter_sharing {config.parameter_sharing!r} can't be stored in this "
            "layout, only 'all'"
        )
    layers_of_group = config.num_hidden_layers / config.num_hidden_groups
    # Both round a floating-point quotient, so that some layers may get different groups.
    for layer in range(config.num_hidden_layers):
        ours, theirs = config.attention_group(layer), int(layer / layers_of_group)
        if ours != theirs:
            raise ValueError(
                f"{path}: with {config.num_hidden_layers} layers in {config.num_hidden_groups} "
                f"groups, layer {layer} belongs to group {theirs} in Hugging Face but to {ours} "
                "here, as in the release: such a model can't be converted"
            )


def read_labels(path: str) -> tuple[str, ...]:
    """Reads a directory's class names by id; () if it has none of its own."""
    file = os.path.join(path, _CONFIG)
    by_id = text_files.read_json_object(file).get("id2label") or {}
    if isinstance(by_id, dict) and len(by_id) > MOST_LABELS:
        raise ValueError(f"{file} has {len(by_id):,} labels, more than {MOST_LABELS:,}")
    if not isinstance(by_id, dict) or set(by_id) != {str(i) for i in range(len(by_id))}:
        raise ValueError(f"{file}: id2label must be an object that maps ids from 0 to names")
    # JSON's keys are strings and in any order: sort by number.
    given = tuple(by_id[str(i)] for i in range(len(by_id)))
    labels = tuple(x if isinstance(x, str) else text_files.class_of(str(x)) for x in given)
    are_names = all(isinstance(label, (str, int, float)) for label in given)
    if not are_names or len(set(labels)) < len(labels):
        raise ValueError(f"{file}: id2label must have distinct names or numbers, not {given}")
    return () if labels == tuple(_DEFAULT_LABEL.format(i) for i in range(len(labels))) else labels


def read_task(path: str) -> tuple[str, str, float]:
    """Returns a directory's first architecture, its problem_type and the dropout of its head.

    A name that the config lacks is returned as "".
    """
    theirs = text_files.read_json_object(os.path.join(path, _CONFIG))
    architectures = theirs.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    rate = theirs.get("classifier_dropout_prob")
    rate = rate if isinstance(rate, (int, float)) else CLASSIFIER_DROPOUT
    return str(first), str(theirs.get("problem_type") or ""), rate


def read_weights(path: str) -> dict[str, np.ndarray]:
    """Returns `<float32>` arrays by the release's names; other weights keep their own names."""
    tensors = _read_tensors(path)
    # Weight names of an AlbertModel, which has no heads, lack the prefix.
    if not any(name.startswith("albert.") for name in tensors):
        tensors = {f"albert.{name}": value for name, value in tensors.items()}
    # Drop buffers and copies of other weights, and transpose kernels.
    tensors = {name: v for name, v in tensors.items() if not name.endswith(_BUFFERS)}
    for copy, original in _COPIES.items():
        if copy in tensors and np.array_equal(tensors[copy], tensors.get(original)):
            del tensors[copy]
    weights = {}
    for name, value in arrays.as_float32(tensors, path).items():
        release = _NAMES.backward(name) or name
        weights[release] = value.T if release.endswith("/kernel") else value
    weights |= sentence_transformers.read_dense(path)
    return arrays.without_identity(weights, path)


def _read_tensors(path: str) -> dict[str, np.ndarray]:
    whole, index = (os.path.join(path, name) for name in (_WEIGHTS, _INDEX))
    if os.path.isfile(whole):
        return arrays.read_safetensors(whole)
    if os.path.isfile(index):
        return _read_shards(path, index)
    if os.path.isfile(keras := os.path.join(path, tf_transformers.FILE)):
        return tf_transformers.read(keras)
    raise FileNotFoundError(
        f"{path} contains no weights: expected {_WEIGHTS}, {_INDEX} or {tf_transformers.FILE}; a "
        "pickle (.bin) may run code: save the model again with transformers, as safetensors"
    )


def _read_shards(path: str, index: str) -> dict[str, np.ndarray]:
    weight_map = text_files.read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index}: weight_map must be an object that maps weights to file names")
    # A name with a path could point to any file on this machine.
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or shard != os.path.basename(shard) or shard in ("", ".."):
            raise ValueError(
                f"{index}: {name} must be in a file of the same directory, not {shard!r}"
            )
    tensors: dict[str, np.ndarray] = {}
    for shard in sorted(set(weight_map.values())):
        tensors.update(arrays.read_safetensors(os.path.join(path, shard)))
    absent = sorted(set(weight_map) - set(tensors))
    if absent:
        raise ValueError(
            f"{path} lacks {', '.join(absent)}, which {_INDEX} names: copy the whole directory"
        )
    return tensors


def write(
    directory: str,
    config: AlbertConfig,
    weights: Mapping[str, np.ndarray],
    architecture: str,
    tokenizer: Tokenizer | None,
    labels: Sequence[str] = (),
    problem_type: str = "",
    classifier_dropout: float = CLASSIFIER_DROPOUT,
) -> None:
    """Writes config.json, with the tokenizer's special ids, and model.safetensors."""
    _check_schedule(config, "the config")
    # Hugging Face always maps embeddings to hidden states, if only by the identity.
    weights = arrays.with_identity(weights, config.hidden_size)
    tensors = {}
    # PyTorch stores a dense layer's matrix as [out, in], the release as [in, out].
    for release, value in weights.items():
        name = _NAMES.forward(release)
        if architecture == "AlbertModel":
            name = name.removeprefix("albert.")
        tensors[name] = np.ascontiguousarray(value.T if release.endswith("/kernel") else value)
    # safetensors' own save_file makes files that only their owner can read.
    content = safetensors.numpy.save(tensors, metadata={"format": "pt"})
    files.replace(os.path.join(directory, _WEIGHTS), content)

    # The config also names the classes, the type of labels, and the special pieces.
    ours = config.to_dict()
    activation = next(name for name, value in _ACTIVATIONS.items() if value == config.hidden_act)
    theirs: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "albert",
        **{key: ours[key] for key in _SAME_KEYS},
        "hidden_act": activation,
        "layer_norm_eps": LAYER_NORM_EPSILON,
        "classifier_dropout_prob": classifier_dropout,
        "tie_word_embeddings": True,
    }
    if architecture in _WITH_LABELS:
        count = len(weights["output_bias"])
        names_by_id = dict(enumerate(labels or map(_DEFAULT_LABEL.format, range(count))))
        theirs |= {"label2id": {name: i for i, name in names_by_id.items()}}
        theirs |= {"id2label": {str(i): name for i, name in names_by_id.items()}}
    if problem_type:
        theirs |= {"problem_type": problem_type}
    if tokenizer:
        theirs |= {"pad_token_id": tokenizer.pad_id}
        theirs |= {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    text = json.dumps(theirs, indent=2, sort_keys=True)
    files.replace(os.path.join(directory, _CONFIG), text)
