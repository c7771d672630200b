"""An export in ONNX's or TFLite's format: its file, and what lies beside it. Without TensorFlow."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import threading
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from albert_tf.config import AlbertConfig
from albert_tf.console import errors, quiet
from albert_tf.conversion import labels
from albert_tf.serving.settings import FEATURES, TASKS, TASKS_OF, ServingSettings
from albert_tf.storage import files
from albert_tf.storage.text_files import json_member, read_json_object
from albert_tf.text import vocabulary
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.types import Features

_ONNX = ".onnx"
_ENDINGS = (_ONNX, ".tflite")
# serving.json lies beside an exported model: its task, its options and its config.
DESCRIPTION_FILE = "serving.json"
# A task -> the outputs that its files have, one of several sets; of logits also the rank, and
# whether the last axis has a fixed size: classes are fixed, choices are not.
_OUTPUTS = {
    "fill_mask": [{"masked_lm_logits", "sequence_output"}],
    "answer_v1": [{"start_logits", "end_logits"}],
    # With the release's head, and with BERT's.
    "answer_v2": [{"cls_logits", "start_top_log_probs"}, {"start_logits", "end_logits"}],
}
_LOGITS = {"classify": (2, True), "tag": (3, True), "choose": (2, False)}
# A shape; None is an axis of any size.
_Shape = list[int | None]


class Runner(NamedTuple):
    """A model that another runtime runs, on NumPy arrays by name, in any thread.

    An example's numbers may depend on its batch, beyond rounding: an ONNX file of 8 bits rounds all
    of a batch by the largest number in it.
    """

    inputs: tuple[str, ...]
    outputs: dict[str, _Shape]
    run: Callable[[Features], Features]
    depends_on_batch: bool = False


class ExportedFile(NamedTuple):
    """A file that other_formats.save wrote, and what lies beside it."""

    task: str
    options: dict[str, Any]
    vocabulary: Vocabulary
    labels: tuple[str, ...]
    runner: Runner


def option_names(task: str) -> list[str]:
    """Returns the names of a task's options in DESCRIPTION_FILE."""
    # Labels have their own file, as beside weights.
    return [name for name, tasks in TASKS_OF.items() if task in tasks and name != "labels"]


def check_types(options: Mapping[str, Any], path: str) -> None:
    """Checks the types of options that were read from a file."""
    types = typing.get_type_hints(ServingSettings)
    for name in options:
        kind, _ = typing.get_args(types[name])  # The other one is None's.
        json_member(options, name, path, *((float, int) if kind is float else (kind,)))


def read_description(path: str) -> tuple[str, AlbertConfig, dict[str, Any]]:
    """Returns the task, the config and the options that ServedModel.describe wrote to a file."""
    values = read_json_object(path)
    task = json_member(values, "task", path, str)
    if task not in TASKS:
        raise ValueError(f"{path}: task must be one of {', '.join(TASKS)}, not {task!r}")
    options = json_member(values, "options", path, dict)
    known = option_names(task)
    if unknown := sorted(options.keys() - set(known)):
        raise ValueError(f"{path}: unknown option {unknown[0]!r}: {task} has {', '.join(known)}")
    check_types(options, path)
    config = AlbertConfig.from_dict(json_member(values, "config", path, dict), path)
    return task, config, options


def sequence_length(config: AlbertConfig, given: int | None) -> int:
    """Returns the maximum pieces of a sequence, by default the model's own."""
    limit = config.max_position_embeddings
    found = limit if given is None else given
    if not 4 <= found <= limit:
        raise ValueError(
            f"`max_seq_length` must be from 4 to {limit} (the config's max_position_embeddings), "
            f"got {found}"
        )
    return found


def runtime_loader(is_onnx: bool) -> Callable[[bytes], Runner]:
    """Returns what loads a file's content; of a damaged one it raises what the runtime does."""
    if is_onnx:
        with errors.of_extra("serve", "an ONNX file"):
            importlib.import_module("onnxruntime")
        return _load_onnx
    return functools.partial(_load_tflite, _interpreter())


def _load_onnx(content: bytes) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Threads that wait for work leave the cores to others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    outputs = {
        each.name: [size if isinstance(size, int) else None for size in each.shape]
        for each in session.get_outputs()
    }

    def run(features: Features) -> Features:
        return dict(zip(outputs, session.run(list(outputs), dict(features)), strict=True))

    inputs = tuple(each.name for each in session.get_inputs())
    return Runner(inputs, outputs, run, b"DynamicQuantizeLinear" in content)


def _load_tflite(interpreter: Any, content: bytes) -> Runner:
    with warnings.catch_warnings(), quiet.filtered_stderr():
        # tf.lite.Interpreter warns that it will move to its own package.
        warnings.simplefilter("ignore")
        runner = interpreter(model_content=content).get_signature_runner()
    outputs = {
        name: [None if size < 0 else int(size) for size in details["shape_signature"]]
        for name, details in runner.get_output_details().items()
    }
    lock = threading.Lock()  # An interpreter has one set of tensors.

    def run(features: Features) -> Features:
        with lock:
            return runner(**features)

    return Runner(tuple(runner.get_input_details()), outputs, run)


def _interpreter() -> Any:
    """Returns the class that interprets TFLite files: TensorFlow's, if it runs, or LiteRT's."""
    if not sys.modules.get("tensorflow") and importlib.util.find_spec("ai_edge_litert"):
        return importlib.import_module("ai_edge_litert.interpreter").Interpreter
    try:
        with quiet.filtered_stderr():
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
    """Loads a file; its description, vocabulary and labels lie beside it."""
    directory = os.path.dirname(path)
    where = os.path.join(directory, DESCRIPTION_FILE)
    if not files.is_file(where):
        raise FileNotFoundError(
            f"{where}, which describes {path}, does not exist: copy the whole directory of the "
            "export, or export again"
        )
    task, config, options = read_description(where)
    options["max_seq_length"] = sequence_length(config, options.get("max_seq_length"))
    words = vocabulary.find(path)
    if words is None:
        raise FileNotFoundError(f"no vocabulary is beside {path}: copy the whole directory")
    words.check(config)
    runner = _runner(path)
    _check_outputs(path, task, runner.outputs)
    classes: tuple[str, ...] = ()
    if task in TASKS_OF["labels"] and (count := runner.outputs["logits"][-1]) > 1:
        labels.read(directory)  # Says so if it is missing.
        classes = labels.find(path, count)
    return ExportedFile(task, options, words, classes, runner)


def _runner(path: str) -> Runner:
    load, content = runtime_loader(path.endswith(_ONNX)), files.read_bytes(path)
    try:
        runner = load(content)
    # Of a damaged file the runtimes raise many kinds of errors.
    except Exception as error:
        met = str(error).splitlines() or [type(error).__name__]
        raise ValueError(
            f"{path} can't be loaded; it may be damaged or incomplete ({met[0]}): copy it again, "
            "or export again"
        ) from error
    if sorted(runner.inputs) != sorted(FEATURES):
        raise ValueError(
            f"{path} was not written by albert-export, because its inputs are "
            f"{', '.join(runner.inputs)}: export the trained model"
        )
    return runner


def _check_outputs(path: str, task: str, outputs: Mapping[str, _Shape]) -> None:
    """Checks that a file is of the task that its description names."""
    fits = any(names <= outputs.keys() for names in _OUTPUTS.get(task, [{"logits"}]))
    if fits and task in _LOGITS:
        shape = outputs["logits"]
        fits = (len(shape), shape[-1] is not None) == _LOGITS[task]
    if not fits:
        found = ", ".join(f"{name} {shape}" for name, shape in outputs.items())
        raise ValueError(
            f"{path} is of another task than {task}, which {DESCRIPTION_FILE} beside it names: "
            f"its outputs are {found}; copy the whole directory of the export, or export again"
        )
