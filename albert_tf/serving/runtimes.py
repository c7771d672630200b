"""Runs models in TFLite's and ONNX's formats: features in, numbers out."""

from __future__ import annotations

import dataclasses
import importlib.util
import warnings
from collections.abc import Callable

import tensorflow as tf

from albert_tf import quiet
from albert_tf.types import Features

_ONNX_TYPES = {"tensor(float)": tf.float32, "tensor(int32)": tf.int32}


@dataclasses.dataclass(frozen=True)
class Runner:
    """A model that another runtime runs.

    Attributes:
      inputs: Names of its inputs.
      outputs: Specs of its outputs, by name.
      run: Maps inputs by name, as NumPy arrays, to outputs by name.
    """

    inputs: tuple[str, ...]
    outputs: dict[str, tf.TensorSpec]
    run: Callable[[Features], Features]


def check_installed(package: str) -> None:
    """Checks up front that a package of the onnx extra is installed.

    Raises:
      ValueError: If it is not.
    """
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"the package {package!r} is not installed: pip install 'albert_tf[onnx]'")


def loader(is_onnx: bool) -> Callable[[bytes], Runner]:
    """Returns what loads a file's content; of a damaged one, it raises whatever the runtime does.

    Raises:
      ValueError: If the runtime is not installed.
    """
    if is_onnx:
        check_installed("onnxruntime")
    return _load_onnx if is_onnx else _load_tflite


def _load_onnx(content: bytes) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    outputs = {
        each.name: tf.TensorSpec(
            [size if isinstance(size, int) else None for size in each.shape],
            _ONNX_TYPES[each.type],
        )
        for each in session.get_outputs()
    }

    def run(features: Features) -> Features:
        return dict(zip(outputs, session.run(list(outputs), dict(features)), strict=True))

    return Runner(tuple(each.name for each in session.get_inputs()), outputs, run)


def _load_tflite(content: bytes) -> Runner:
    with warnings.catch_warnings(), quiet.filtered_stderr():
        # tf.lite.Interpreter warns that it will move to its own package.
        warnings.simplefilter("ignore")
        runner = tf.lite.Interpreter(model_content=content).get_signature_runner()
    outputs = {
        name: tf.TensorSpec(
            [None if size < 0 else size for size in details["shape_signature"]], details["dtype"]
        )
        for name, details in runner.get_output_details().items()
    }
    inputs = tuple(runner.get_input_details())
    return Runner(inputs, outputs, lambda features: runner(**features))
