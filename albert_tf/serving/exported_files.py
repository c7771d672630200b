"""Loads exports in ONNX or TFLite format, with the files beside them, without TensorFlow."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert_tf.answers import kinds
from albert_tf.answers.kind import Kind, Labelled
from albert_tf.answers.rows import FEATURES
from albert_tf.config import AlbertConfig
from albert_tf.console import errors, tensorflow_logs
from albert_tf.conversion import labels
from albert_tf.storage import files
from albert_tf.storage.text_files import json_member, read_json_object
from albert_tf.text import vocabulary
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.types import Features

_ONNX = ".onnx"
_ENDINGS = (_ONNX, ".tflite")
# The file beside an exported model that has its kind and config.
DESCRIPTION_FILE = "serving.json"
# Probabilities are clipped to this distance from 0 and 1, where logits are infinite.
_TINY = 1e-12
# A shape; None is an axis of any size.
_Shape = list[int | None]


class Runner(NamedTuple):
    """A model in another runtime; `run` maps NumPy arrays by name, and may be called in any thread.

    With `depends_on_batch`, an example's outputs depend on the rest of its batch, beyond rounding:
    int8 ONNX models scale activations by the largest value in the batch.
    """

    inputs: tuple[str, ...]
    outputs: dict[str, _Shape]
    run: Callable[[Features], Features]
    depends_on_batch: bool = False


class ExportedFile(NamedTuple):
    """A model that other_formats.save wrote, with its kind and vocabulary.

    If it can run with several numbers of layers, `by_depth` maps each to its `run` function.
    """

    kind: Kind
    vocabulary: Vocabulary
    runner: Runner
    by_depth: Mapping[int, Callable[[Features], Features]]
    about: About


class About(NamedTuple):
    """A model's description for people: a sentence, and rows of texts as example inputs."""

    description: str = ""
    examples: tuple[tuple[str, ...], ...] = ()


UNSAID = About()


class Description(NamedTuple):
    """The content of serving.json: also whether outputs depend on the batch, and smaller depths."""

    kind: Kind
    config: AlbertConfig
    is_quantized: bool
    depths: tuple[int, ...]
    about: About


def describe(
    directory: str,
    kind: Kind,
    config: AlbertConfig,
    is_quantized: bool,
    depths: Sequence[int] = (),
    about: About = UNSAID,
) -> None:
    """Writes what `read_description` reads, and a file of labels for other programs."""
    description = {
        "kind": kind.to_json(),
        "quantized": is_quantized,
        "depths": list(depths),
        "about": about._asdict(),
        "config": config.to_dict(),
    }
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    files.replace(os.path.join(directory, DESCRIPTION_FILE), text)
    if isinstance(kind, Labelled) and kind.labels:
        labels.write(directory, kind.labels)


def read_description(directory: str) -> Description:
    """Returns an export's description."""
    path = os.path.join(directory, DESCRIPTION_FILE)
    if not files.is_file(path):
        raise FileNotFoundError(
            f"{path}, which describes the model, does not exist: copy the whole directory of the "
            "export, or export again"
        )
    values = read_json_object(path)
    kind = kinds.read(json_member(values, "kind", path, dict), path)
    config = AlbertConfig.from_dict(json_member(values, "config", path, dict), path)
    try:
        kind.check(config)
        depths = config.smaller_depths("depths", json_member(values, "depths", path, list))
        about = _about(json_member(values, "about", path, dict))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Description(kind, config, json_member(values, "quantized", path, bool), depths, about)


def _about(values: dict[str, Any]) -> About:
    if values.keys() != {*About._fields}:
        raise ValueError(f"about must have {' and '.join(About._fields)}, got {[*values]}")
    rows = tuple(map(tuple, values["examples"]))
    if not all(isinstance(text, str) for row in (*rows, [values["description"]]) for text in row):
        raise ValueError("about must have a text as description, and rows of texts as examples")
    return About(values["description"], rows)


def runtime_loader(is_onnx: bool) -> Callable[[bytes], Runner]:
    """Returns a function that loads a file's content; it raises the runtime's errors.

    For ONNX, the function also takes a path; only then may weights lie in other files beside it.
    """
    if is_onnx:
        with errors.of_extra("serve", "an ONNX file"):
            importlib.import_module("onnxruntime")
        return _load_onnx
    return functools.partial(_load_tflite, _interpreter())


def _load_onnx(content: bytes | str) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Waiting threads must leave the cores to other work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The key "location" lets a file refer to data in other files. Given a path, onnxruntime 1.24
    # and later only reads those beside it.
    version = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
    if isinstance(content, bytes) or version < (1, 24):
        whole = content if isinstance(content, bytes) else files.read_bytes(content)
        if b"location" in whole:
            raise ValueError("its data lie in other files: use onnxruntime 1.24 and a local file")
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    # An axis of variable size has a name instead of a number.
    outputs = {
        each.name: [size if isinstance(size, int) else None for size in each.shape]
        for each in session.get_outputs()
    }

    def run(features: Features) -> Features:
        return dict(zip(outputs, session.run(list(outputs), dict(features)), strict=True))

    inputs = tuple(each.name for each in session.get_inputs())
    return Runner(inputs, outputs, run)


def _load_tflite(interpreter: Any, content: bytes) -> Runner:
    with warnings.catch_warnings(), tensorflow_logs.filtered_stderr():
        # tf.lite.Interpreter warns that it will move to its own package.
        warnings.simplefilter("ignore")
        runner = interpreter(model_content=content).get_signature_runner()
    # An axis of variable size is -1.
    outputs = {
        name: [None if size < 0 else int(size) for size in details["shape_signature"]]
        for name, details in runner.get_output_details().items()
    }
    # An interpreter has a single set of tensors, so only one thread at a time may run it.
    lock = threading.Lock()

    def run(features: Features) -> Features:
        with lock:
            return runner(**features)

    # A file for MediaPipe has a batch of 1 and a fixed length: feed it one padded text at a time.
    inputs = runner.get_input_details()
    fixed = [int(each["shape_signature"][-1]) for each in inputs.values() if each["shape"].size]
    if min(fixed, default=-1) < 0:
        return Runner(tuple(inputs), outputs, run)
    outputs = {name: [None, *shape[1:]] for name, shape in outputs.items()}
    return Runner(tuple(inputs), outputs, functools.partial(_one_by_one, run, fixed[0]))


def _one_by_one(run: Callable[[Features], Features], length: int, features: Features) -> Features:
    (rows, width), found = features["input_ids"].shape, []
    for i in range(rows):
        ends = ((0, 0), (0, length - width))
        row = {name: np.pad(value[i : i + 1], ends) for name, value in features.items()}
        found.append(run(row))
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}


def _interpreter() -> Any:
    """Returns the interpreter class: TensorFlow's if it is already imported, else LiteRT's."""
    if not sys.modules.get("tensorflow") and importlib.util.find_spec("ai_edge_litert"):
        return importlib.import_module("ai_edge_litert.interpreter").Interpreter
    try:
        with tensorflow_logs.filtered_stderr():
            return importlib.import_module("tensorflow").lite.Interpreter
    except ImportError as error:
        raise ImportError(
            "a TFLite file needs LiteRT or TensorFlow, and neither is installed: "
            "pip install ai-edge-litert"
        ) from error


def find(path: str) -> str | None:
    """Returns the TFLite or ONNX file that a path names or contains; None if there is none."""
    if files.is_file(path):
        return path if path.endswith(_ENDINGS) else None
    found = [name for ending in _ENDINGS for name in files.find(path, f"*{ending}")]
    if len(found) > 1:
        raise ValueError(f"{path} contains several models ({', '.join(found)}): give one of them")
    return found[0] if found else None


def load(path: str) -> ExportedFile:
    """Loads a file, with the description and the vocabulary beside it."""
    kind, config, is_quantized, depths, about = read_description(os.path.dirname(path))
    found = vocabulary.find(path)
    if found is None:
        raise FileNotFoundError(f"no vocabulary is beside {path}: copy the whole directory")
    found.check(config)
    runner = _runner(path)
    if "probabilities" in runner.outputs:
        runner = _with_logits(runner, getattr(kind, "multilabel", False))
    # A description copied from another export would give wrong names to the outputs.
    _check_tensors(path, kind, runner, ("depth",) if depths else ())
    every = (config.num_hidden_layers, *depths) if depths else ()
    by_depth = {depth: functools.partial(_run_at, runner.run, depth) for depth in every}
    run = by_depth.get(config.num_hidden_layers, runner.run)
    runner = runner._replace(run=run, depends_on_batch=is_quantized)
    return ExportedFile(kind, found, runner, by_depth, about)


def _with_logits(runner: Runner, is_multilabel: bool) -> Runner:
    """Turns a runner that outputs probabilities into one that outputs logits, as answers need."""

    def run(features: Features) -> Features:
        # float32 may round a probability to 0 or 1, which have no finite logit.
        shares = runner.run(features)["probabilities"].clip(_TINY, 1 - _TINY, dtype=np.float64)
        logits = np.log(shares) - is_multilabel * np.log1p(-shares)
        return {"logits": logits.astype(np.float32)}

    return runner._replace(outputs={"logits": runner.outputs["probabilities"]}, run=run)


def _run_at(run: Callable[[Features], Features], depth: int, features: Features) -> Features:
    return run({**features, "depth": np.array(depth, np.int32)})


def _runner(path: str) -> Runner:
    is_onnx = path.endswith(_ONNX)
    load: Callable[[Any], Runner] = runtime_loader(is_onnx)
    try:
        # Given a path, onnxruntime may also read weights in files beside it.
        return load(path if is_onnx and not files.is_remote(path) else files.read_bytes(path))
    # The runtimes raise many types of errors for a damaged file.
    except Exception as error:
        met = str(error).splitlines() or [type(error).__name__]
        raise ValueError(
            f"{path} can't be loaded; it may be damaged or incomplete ({met[0]}): copy it again, "
            "or export again"
        ) from error


def _check_tensors(path: str, kind: Kind, runner: Runner, further: Sequence[str]) -> None:
    outputs = runner.outputs
    are_there = (
        name in outputs and shape in (None, tuple(outputs[name]))
        for name, shape in kind.outputs.items()
    )
    if {*runner.inputs} != {*FEATURES, *further} or not all(are_there):
        found = ", ".join(f"{name} {shape}" for name, shape in outputs.items())
        raise ValueError(
            f"{path} is of another task, or has other classes, than {DESCRIPTION_FILE} beside it "
            f"says ({kind.task}): its inputs are {', '.join(runner.inputs)}, its outputs are "
            f"{found}; copy the whole directory of the export, or export again"
        )
