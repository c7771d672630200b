"""Exports TFLite files with which MediaPipe's TextClassifier and TextEmbedder answer raw texts.

Such a file has a batch of 1 and a fixed length, tells MediaPipe by its metadata which input is
which, and carries labels and a SentencePiece model.
"""

from __future__ import annotations

import functools
import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flatbuffers
import numpy as np
import sentencepiece
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from albert_tf.answers.classify import Classify
from albert_tf.answers.kinds import KINDS
from albert_tf.answers.rows import FEATURES
from albert_tf.model import encoder
from albert_tf.serving import other_formats, vectors
from albert_tf.serving.exported_files import runtime_loader
from albert_tf.serving.graphs.base import ServedModel
from albert_tf.serving.other_formats import Drift
from albert_tf.serving.settings import MEDIAPIPE, MEDIAPIPE_FILE
from albert_tf.storage import files
from albert_tf.text import folder_ids, vocabulary
from albert_tf.types import Features

# MediaPipe's names of our inputs.
_INPUTS = dict(zip(FEATURES, ("ids", "mask", "segment_ids"), strict=True))
_TOKENIZER_FILE, _LABELS_FILE = "spiece.model", "labels.txt"
# Enum values of metadata_schema.fbs (M001): a file of an axis's labels, SentencePiece's options.
_AXIS_LABELS, _SENTENCE_PIECE = 2, 5
_METADATA = "TFLITE_METADATA"
# The fields of a flatbuffer's table, by their numbers.
_Table = dict[int, Any]


class Written(NamedTuple):
    """How far a file's outputs, and its tokenizer's ids, differ from those in evaluation."""

    drift: Drift
    texts: int  # The number of texts whose ids were compared.
    differing: Sequence[str]

    def __str__(self) -> str:
        begin = f", as for {self.differing[0][:40]!r}" if self.differing else ""
        return (
            f"{self.drift}; ids differ from evaluation's for {len(self.differing)} of "
            f"{self.texts} texts{begin}"
        )


def save(
    served: ServedModel, directory: str | os.PathLike[str], texts: Sequence[str] = ()
) -> Written:
    """Writes a classifier's or an embedder's file for MediaPipe; `load_exported` opens it as well.

    Args:
      served: The model; it reads single texts, and has a SentencePiece vocabulary.
      directory: Empty or new; it appears once everything is written.
      texts: Further texts to compare ids on, beside those of vectors.rows_of.

    Source: mediapipe 1.2.3, tasks/metadata/metadata_schema.fbs; bert_preprocessor_calculator.cc.
    """
    _check(served)
    kind = served.kind
    # Fix the length: MediaPipe would not truncate long texts for a model of variable length.
    shape = [1, kind.max_seq_length]
    function = tf.function(
        lambda **features: _shown(served, features), autograph=False
    ).get_concrete_function(**{name: tf.TensorSpec(shape, tf.int32, name) for name in FEATURES})
    content = other_formats.to_tflite(function, is_int8=False)
    # Measure before anything is written: the numbers, and then the ids.
    run, numbers = runtime_loader(is_onnx=False)(content).run, functools.partial(_shown, served)
    drift = other_formats.measure_drift(numbers, run, served.config, shape[1], len(shape))
    packed = {_TOKENIZER_FILE: folder_ids.standing_alone(served.vocabulary.tokenizer)}
    probes = [*(text for (text,) in vectors.rows_of(kind)), *texts]
    differing = _differing(served, packed[_TOKENIZER_FILE], probes)
    if isinstance(kind, Classify):
        packed[_LABELS_FILE] = "".join(f"{label}\n" for label in kind.labels).encode()
    with files.whole_directory(os.fspath(directory)) as temporary:
        files.replace(os.path.join(temporary, MEDIAPIPE_FILE), _described(content, packed))
        served.describe(temporary)
        vocabulary.copy(served.vocabulary, temporary)
    return Written(drift, len(probes), differing)


def _check(served: ServedModel) -> None:
    kind: Any = served.kind
    is_classifier, known = isinstance(kind, Classify), [k.task for k in KINDS if k.mediapipe]
    tokenizer, most = served.vocabulary.tokenizer, encoder.MOST_UNROLLED_LAYERS
    reasons = {
        f"has no task {kind.task}, only {' and '.join(known)}": not kind.mediapipe,
        "reads single texts, not pairs": is_classifier and kind.pairs,
        "has no regression": is_classifier and not kind.labels,
        "reads only the beginning of a text, not its `windows`": is_classifier and kind.windows,
        "puts no `default_prompt` before texts": getattr(kind, "prefix", ""),
        "splits texts by SentencePiece, not WordPiece": served.vocabulary.is_word_piece,
        "lower-cases texts, but the model is cased": not tokenizer.do_lower_case,
        "answers with all layers, not at `depths`": served.depths,
        f"can't run more than {most} layers": served.config.num_hidden_layers > most,
    }
    if reason := next((text for text, holds in reasons.items() if holds), None):
        raise ValueError(f"`format={MEDIAPIPE}` {reason}: leave that out, or give another `format`")


def _shown(served: ServedModel, features: Features) -> Features:
    """Returns the model's single output, as MediaPipe shows it."""
    outputs, kind = served.numbers(features), served.kind
    if not isinstance(kind, Classify):
        return outputs
    shares = tf.nn.sigmoid if kind.multilabel else tf.nn.softmax
    return {"probabilities": shares(outputs["logits"])}


def _differing(served: ServedModel, model: bytes, texts: Sequence[str]) -> list[str]:
    """Returns the texts that MediaPipe turns into other ids than evaluation does."""
    kind, tokenizer = served.kind, served.vocabulary.tokenizer
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    differing = []
    for text in texts:
        (row,) = kind.rows(tokenizer, text)
        # Like bytes.lower, MediaPipe lower-cases only ASCII.
        ids = processor.encode(text.encode().lower().decode())[: kind.max_seq_length - 2]
        if [tokenizer.cls_id, *ids, tokenizer.sep_id] != row["input_ids"].tolist():
            differing.append(text)
    return differing


def _described(content: bytes, packed: Mapping[str, bytes]) -> bytes:
    """Adds metadata, and the files that they name, to a TFLite file."""
    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    graph = model.subgraphs[0]
    # The converter may reorder the inputs; the name of each contains its feature's.
    names = [graph.tensors[i].name.decode() for i in graph.inputs]
    inputs = [next(_INPUTS[each] for each in FEATURES if each in name) for name in names]
    # Tables of metadata_schema.fbs, each by the numbers of its fields.
    labels = [{0: name, 2: _AXIS_LABELS} for name in packed if name == _LABELS_FILE]
    head: _Table = {0: "probability" if labels else "embedding", 6: labels}
    splitter = {0: _SENTENCE_PIECE, 1: {0: [{0: _TOKENIZER_FILE}]}}
    tables: _Table = {2: [{0: name} for name in inputs], 3: [head], 5: [splitter]}
    builder = flatbuffers.Builder()
    builder.Finish(_packed(builder, {0: "albert_tf", 3: [tables]}), file_identifier=b"M001")
    # The model stores them as a named buffer.
    model.metadata = [*(model.metadata or ()), schema.MetadataT(_METADATA, len(model.buffers))]
    model.buffers.append(schema.BufferT(np.frombuffer(builder.Output(), np.uint8)))
    file = io.BytesIO(flatbuffer_utils.convert_object_to_bytearray(model))
    # Don't compress the files after the model: MediaPipe reads their bytes as they are stored.
    with zipfile.ZipFile(file, "a") as archive:
        for name, data in packed.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return file.getvalue()


def _packed(builder: flatbuffers.Builder, value: Any) -> int:
    """Writes a text, a list or a table of a flatbuffer; returns its offset."""
    if isinstance(value, str):
        return builder.CreateString(value)
    if isinstance(value, list):
        offsets = [_packed(builder, each) for each in value]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()
    # The texts, lists and tables in a table must be written before it; its numbers are bytes.
    parts = {i: _packed(builder, part) for i, part in value.items() if not isinstance(part, int)}
    builder.StartObject(max(value) + 1)
    for i, part in value.items():
        if i in parts:
            builder.PrependUOffsetTRelativeSlot(i, parts[i], 0)
        else:
            builder.PrependByteSlot(i, part, 0)
    return builder.EndObject()
