"""ONNX files in a Hugging Face directory, with the names and types that its libraries expect."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.conversion import huggingface, sentence_transformers
from albert_tf.model import albert, configured, finetuning, heads
from albert_tf.serving import other_formats
from albert_tf.serving.exported_files import runtime_loader
from albert_tf.storage import files
from albert_tf.text import vocabulary
from albert_tf.types import Features

# Files that transformers.js and optimum look for -> whether their weights have 8 bits.
FILES = {"onnx/model.onnx": False, "onnx/model_quantized.onnx": True}
# Their names of features -> ours.
_OURS = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
_HIDDEN = {"sequence_output": "last_hidden_state", "pooled_output": "pooler_output"}
_MASKED = {"masked_lm_logits": "logits"}
# Architecture -> our class, and our names of outputs -> theirs, where they differ.
_OTHERS: dict[str, tuple[type[configured.ConfiguredModel], dict[str, str]]] = {
    "AlbertModel": (albert.AlbertModel, _HIDDEN),
    "AlbertForMaskedLM": (heads.AlbertForPreTraining, _MASKED),
    # Serves both the pipelines fill-mask and feature-extraction.
    "AlbertForPreTraining": (
        heads.AlbertForPreTraining,
        {**_MASKED, **_HIDDEN, "sentence_order_logits": "sop_logits"},
    ),
}


def write(directory: str) -> str:
    """Adds FILES to a Hugging Face directory that `convert` wrote, and returns a report.

    They take `input_ids`, `attention_mask` and `token_type_ids` `<int64>[B, S]` (`[B, C, S]` for
    multiple choice). If all `token_type_ids` of a row are 0, as transformers.js sends them even for
    pairs, they are set to 1 after the first [SEP], except in models that embed texts.
    """
    architecture, *_ = huggingface.read_task(directory)
    model_class, renamed = _OTHERS.get(architecture) or (getattr(finetuning, architecture), {})
    model = model_class.from_weights(directory)
    rank = len(model.input_axes["input_ids"].split(","))
    sep_id = vocabulary.need(directory).tokenizer.sep_id
    embeds = sentence_transformers.matches(directory)

    def numbers(features: Features) -> Features:
        # Hugging Face's masked LM scores every position, ours only given ones.
        if "masked_lm_logits" in renamed:
            ids = features["input_ids"]
            positions = tf.range(tf.shape(ids)[1])[None] * tf.ones_like(ids)
            features = {**features, "masked_lm_positions": positions}
        found: Any = model(features, training=False)
        if not isinstance(found, dict):
            return {"logits": found}
        return {theirs: found[ours] for ours, theirs in (renamed or {n: n for n in found}).items()}

    @tf.function(autograph=False)
    def theirs(**given: tf.Tensor) -> Features:
        # An exclusive sum, so that the first [SEP] itself still belongs to the first text.
        is_sep = tf.cast(given["input_ids"] == sep_id, tf.int64)
        second = tf.cast(tf.cumsum(is_sep, axis=-1, exclusive=True) > 0, tf.int64)
        types = given["token_type_ids"]
        has_types = tf.reduce_any(types > 0, axis=-1, keepdims=True) | embeds
        given["token_type_ids"] = tf.where(has_types, types, second)
        return numbers({ours: tf.cast(given[name], tf.int32) for name, ours in _OURS.items()})

    # Convert once for each file, and compare each with the model.
    specs = {name: tf.TensorSpec([None] * rank, tf.int64, name) for name in _OURS}
    function = theirs.get_concrete_function(**specs)
    os.makedirs(os.path.join(directory, "onnx"))
    said = []
    for name, is_int8 in FILES.items():
        content = other_formats.to_onnx(function, is_int8)
        run = runtime_loader(True)(content).run

        def converted(features: Features, run: Any = run) -> Features:
            return run({name: features[ours].astype(np.int64) for name, ours in _OURS.items()})

        longest = model.config.max_position_embeddings
        drift = other_formats.measure_drift(numbers, converted, model.config, longest, rank)
        # The comparison raises if outputs are not finite, before anything is written.
        files.replace(os.path.join(directory, name), content)
        said.append(f"{name}: {drift}")
    return "; ".join(said)
