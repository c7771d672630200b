"""Converts models to TFLite and ONNX (features in, numbers out), and measures their drift."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from albert_tf import directories
from albert_tf.conversion import labels
from albert_tf.serving.choices import FORMATS
from albert_tf.serving.served_models import FEATURES, ServedModel
from albert_tf.text import vocabulary
from albert_tf.types import Features

# What the program that runs them must do itself.
NOT_KEPT = "how text is split into features, and answers made of numbers (thresholds, windows)"
_OPSET = 17
# Random sequences to compare a converted model on: their number, and lengths as a share of the
# longest.
_PROBE_ROWS = 2
_PROBE_LENGTHS = (0.125, 0.5)
_NO_SCORE = -1e29


@dataclasses.dataclass(frozen=True)
class Drift:
    """How far a converted model is from the original, on random sequences.

    Attributes:
      largest: Maximum absolute difference of the outputs.
      spread: Standard deviation of the model's outputs.
    """

    largest: float
    spread: float

    def __str__(self) -> str:
        return (
            f"outputs differ by up to {self.largest:.2g}, their own deviation is {self.spread:.2g}"
        )


def save(served: ServedModel, directory: str | os.PathLike[str], file_format: str) -> Drift:
    """Converts a model's `features` signature, and writes it with its vocabulary and labels.

    The result takes `input_ids`, `input_mask` and `segment_ids`, of any batch size and length, and
    returns `served.numbers`: making features from texts and answers from numbers is left out.

    Args:
      served: The model.
      directory: Empty or new; it appears once everything is written.
      file_format: "tflite" (float32), "tflite_int8" (weights in 8 bits, dynamic range) or "onnx",
        for which tf2onnx and onnxruntime must be installed.

    Returns:
      How far the converted model drifts.

    Raises:
      ValueError: If the directory is not empty, the format unknown, or a package missing.
    """
    directory = os.fspath(directory)
    if file_format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {file_format!r}")
    directories.check_free(directory)
    function = tf.function(
        lambda **features: served.numbers(features), autograph=False
    ).get_concrete_function(**served.feature_specs())
    if file_format == "onnx":
        content, run = _onnx(function)
    else:
        content, run = _tflite(function, is_int8=file_format == "tflite_int8")
    drift = _drift(served, run)
    with directories.whole_directory(directory) as temporary:
        with open(os.path.join(temporary, FORMATS[file_format]), "xb") as file:
            file.write(content)
        vocabulary.copy(served.vocabulary, temporary)
        if served.labels:
            labels.write(temporary, served.labels)
    return drift


def _tflite(function: Any, is_int8: bool) -> tuple[bytes, Callable[[Features], Features]]:
    # The converter would neither include nor quantise weights that are variables.
    frozen = convert_variables_to_constants_v2(function)

    def named(**features: tf.Tensor) -> Features:
        return tf.nest.pack_sequence_as(function.structured_outputs, frozen(**features))

    specs = function.structured_input_signature[1]
    signature = tf.function(named, autograph=False).get_concrete_function(**specs)
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        # tf.lite.Interpreter warns that it will move to its own package.
        warnings.simplefilter("ignore")
        tf.saved_model.save(tf.Module(), directory, signatures=signature)
        converter = tf.lite.TFLiteConverter.from_saved_model(directory)
        if is_int8:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        content = converter.convert()
        runner = tf.lite.Interpreter(model_content=content).get_signature_runner()
    return content, lambda features: runner(**features)


def _onnx(function: Any) -> tuple[bytes, Callable[[Features], Features]]:
    try:
        import onnxruntime
        import tf2onnx
    except ImportError as error:
        raise ValueError(f"{error}; it comes with pip install 'albert_tf[onnx]'") from None
    specs = function.structured_input_signature[1]
    signature = [specs[name] for name in FEATURES]
    model, _ = tf2onnx.convert.from_function(
        tf.function(lambda *values: function(**dict(zip(FEATURES, values, strict=True)))),
        input_signature=signature,
        opset=_OPSET,
    )
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return content, lambda features: dict(
        zip(names, session.run(names, dict(features)), strict=True)
    )


def _drift(served: ServedModel, run: Callable[[Features], Features]) -> Drift:
    random = np.random.default_rng(0)
    config, longest = served.config, served.joiner.max_seq_length
    largest, values = 0.0, []
    for share in _PROBE_LENGTHS:
        shape = [_PROBE_ROWS] * (served.feature_rank - 1) + [max(8, int(longest * share))]
        features = {
            "input_ids": random.integers(0, config.vocab_size, shape, np.int32),
            "input_mask": np.ones(shape, np.int32),
            "segment_ids": np.broadcast_to(np.arange(shape[-1]) >= shape[-1] // 2, shape).astype(
                np.int32
            ),
        }
        expected = served.numbers({name: tf.constant(value) for name, value in features.items()})
        for name, value in run(features).items():
            right = expected[name].numpy()
            if right.dtype.kind == "f":
                # Scores where no answer can be mean nothing: they are about -1e30.
                is_score = right > _NO_SCORE
                largest = max(largest, float(np.abs(value - right).max(where=is_score, initial=0)))
                values.append(right[is_score])
    return Drift(largest, float(np.concatenate(values).std()))
