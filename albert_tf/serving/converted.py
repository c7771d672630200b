"""Converts models to TFLite and ONNX (features in, numbers out), and measures their drift."""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from albert_tf import directories
from albert_tf.serving import description, onnx_graph, runtimes
from albert_tf.serving.choices import FORMATS
from albert_tf.serving.sequences import FEATURES
from albert_tf.serving.served_models import ServedModel
from albert_tf.text import vocabulary
from albert_tf.types import Features

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
            f"outputs differ by up to {self.largest:.2g} from the model's, whose standard "
            f"deviation is {self.spread:.2g}"
        )


def check_format(file_format: str) -> None:
    """Checks that a format is one of FORMATS, and that what writes it is installed.

    Raises:
      ValueError: If the format is unknown, or a package is missing.
    """
    if file_format not in FORMATS:
        raise ValueError(f"`format` must be one of {', '.join(FORMATS)}, not {file_format!r}")
    if file_format.startswith("onnx"):
        for package in ("onnxruntime", "tf2onnx"):
            runtimes.check_installed(package)


def save(served: ServedModel, directory: str | os.PathLike[str], file_format: str) -> Drift:
    """Converts a model's `features` signature, and writes it with what converted_models.load needs.

    The file takes `input_ids`, `input_mask` and `segment_ids`, of any batch size and length, and
    returns `served.numbers`. It neither makes features from texts nor answers from numbers.

    Args:
      served: The model.
      directory: Empty or new; it appears once everything is written.
      file_format: "tflite" or "onnx" (float32), "tflite_int8" or "onnx_int8" (weights in 8 bits,
        activations where they are multiplied, dynamic range). ONNX needs tf2onnx and onnxruntime.

    Returns:
      How far the converted model drifts.

    Raises:
      ValueError: If the directory is not empty, the format unknown, a package missing, or an output
        of the model or the converted one NaN or infinite: then nothing is written.
    """
    directory = os.fspath(directory)
    check_format(file_format)
    directories.check_free(directory)
    function = tf.function(
        lambda **features: served.numbers(features), autograph=False
    ).get_concrete_function(**served.feature_specs())
    is_int8 = file_format.endswith("_int8")
    is_onnx = file_format.startswith("onnx")
    load = runtimes.loader(is_onnx)
    content = (_onnx if is_onnx else _tflite)(function, is_int8)
    drift = _drift(served, load(content))
    with directories.whole_directory(directory) as temporary:
        with open(os.path.join(temporary, FORMATS[file_format]), "xb") as file:
            file.write(content)
        description.write(served, temporary)
        vocabulary.copy(served.vocabulary, temporary)
    return drift


def _tflite(function: Any, is_int8: bool) -> bytes:
    # The converter would neither include nor quantise weights that are variables.
    frozen = convert_variables_to_constants_v2(function)

    def named(**features: tf.Tensor) -> Features:
        return tf.nest.pack_sequence_as(function.structured_outputs, frozen(**features))

    specs = function.structured_input_signature[1]
    signature = tf.function(named, autograph=False).get_concrete_function(**specs)
    with tempfile.TemporaryDirectory() as directory:
        tf.saved_model.save(tf.Module(), directory, signatures=signature)
        converter = tf.lite.TFLiteConverter.from_saved_model(directory)
        if is_int8:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        return converter.convert()


def _onnx(function: Any, is_int8: bool) -> bytes:
    import tf2onnx

    specs = function.structured_input_signature[1]
    signature = [specs[name] for name in FEATURES]
    model, _ = tf2onnx.convert.from_function(
        tf.function(
            lambda *values: function(**dict(zip(FEATURES, values, strict=True))), autograph=False
        ),
        input_signature=signature,
        opset=_OPSET,
    )
    # tf2onnx numbers the axes whose size is not fixed.
    axes = ("batch", "length") if len(signature[0].shape) == 2 else ("batch", "choices", "length")
    for tensor in (*model.graph.input, *model.graph.output):
        for size, axis in zip(tensor.type.tensor_type.shape.dim, axes, strict=False):
            if not size.HasField("dim_value"):
                size.dim_param = axis
    onnx_graph.fuse_layer_norms(model.graph)
    return _quantised(model) if is_int8 else model.SerializeToString()


def _quantised(model: Any) -> bytes:
    from onnxruntime import quantization

    before = logging.root.manager.disable
    # It recommends to optimise the graph first, which changes nothing here.
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model.onnx")
            quantization.quantize_dynamic(
                model,
                path,
                per_channel=True,
                weight_type=quantization.QuantType.QInt8,
                # 7 bits: products of 8 saturate on x86 processors without VNNI.
                reduce_range=True,
                # The layers of deep models are a loop, whose body is a graph of its own.
                extra_options={"EnableSubgraph": True},
            )
            with open(path, "rb") as file:
                return file.read()
    finally:
        logging.disable(before)


def _drift(served: ServedModel, runner: runtimes.Runner) -> Drift:
    random = np.random.default_rng(0)
    config, longest = served.config, served.max_seq_length
    largest, values = 0.0, []
    for share in _PROBE_LENGTHS:
        shape = [_PROBE_ROWS] * (served.feature_rank - 1) + [max(8, int(longest * share))]
        mask = np.ones(shape, np.int32)
        mask[-1, ..., max(8, shape[-1] * 3 // 4) :] = 0  # The last row has padding.
        features = {
            "input_ids": random.integers(0, config.vocab_size, shape, np.int32),
            "input_mask": mask,
            "segment_ids": np.broadcast_to(np.arange(shape[-1]) >= shape[-1] // 2, shape).astype(
                np.int32
            ),
        }
        expected = served.numbers({name: tf.constant(value) for name, value in features.items()})
        for name, value in runner.run(features).items():
            right = expected[name].numpy()
            if right.dtype.kind == "f":
                # Scores where no answer can be mean nothing: they are about -1e30.
                is_score = ~(right <= _NO_SCORE)  # NaN is one, too.
                _check_finite(name, right[is_score], value[is_score])
                largest = max(largest, float(np.abs(value - right).max(where=is_score, initial=0)))
                values.append(right[is_score])
    return Drift(largest, float(np.concatenate(values).std()))


def _check_finite(name: str, right: np.ndarray, converted: np.ndarray) -> None:
    for what, scores in (("the model's", right), ("the converted model's", converted)):
        if not np.isfinite(scores).all():
            raise ValueError(
                f"{what} outputs are NaN or infinite ({name}): its weights are damaged, or too "
                "large; use another checkpoint or `format`"
            )
