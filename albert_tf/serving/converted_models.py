"""TFLite and ONNX files as models that take raw text.

Text is split, and answers are made, by the class that serves the task. A file beside the model's
says which, and how.
"""

from __future__ import annotations

import json
import os
from typing import Any

import tensorflow as tf

from albert_tf import files
from albert_tf.config import AlbertConfig
from albert_tf.conversion import labels
from albert_tf.directories import write_text
from albert_tf.serving import arguments, runtimes, trained
from albert_tf.serving.sequences import FEATURES
from albert_tf.serving.served_models import ServedModel
from albert_tf.text import vocabulary
from albert_tf.text_files import json_member, read_json_object
from albert_tf.types import Features

DESCRIPTION_FILE = "serving.json"
_ONNX = ".onnx"
_ENDINGS = (_ONNX, ".tflite")
# Types of options, in JSON; the others are whole numbers.
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("pairs", "multilabel"), (bool,)),
    **dict.fromkeys(("threshold", "null_threshold"), (float, int)),
    "windows": (str,),
}
# Outputs that a file may lack -> what the served model is then without.
_DISPENSABLE = {"pooled_output": "pooled", "sentence_order_logits": "swapped"}


class ConvertedModel:
    """Stands for the model that a file was made of; calls the file instead.

    Args:
      config: The model's config.
      runner: The loaded file; its outputs are those of ServedModel.numbers.
      **sizes: Further attributes that the class that serves the model reads.
    """

    # They are in the file.
    weights = ()

    def __init__(self, config: AlbertConfig, runner: runtimes.Runner, **sizes: int) -> None:
        self.config = config
        self._runner = runner
        vars(self).update(sizes)

    def __call__(self, inputs: Features, training: bool = False) -> Any:
        """Returns what the model itself returns."""
        specs = self._runner.outputs

        def run(*arrays: Any) -> list[Any]:
            outputs = self._runner.run(dict(zip(FEATURES, arrays, strict=True)))
            return [outputs[name] for name in specs]

        types = [spec.dtype for spec in specs.values()]
        values = tf.numpy_function(run, [inputs[name] for name in FEATURES], types)
        outputs = {
            name: tf.ensure_shape(value, spec.shape)
            for (name, spec), value in zip(specs.items(), values, strict=True)
        }
        if "masked_lm_positions" in inputs:
            # The file has those of all positions.
            outputs["masked_lm_logits"] = tf.gather(
                outputs["masked_lm_logits"], inputs["masked_lm_positions"], batch_dims=1
            )
        return outputs["logits"] if set(outputs) == {"logits"} else outputs


def write_description(served: ServedModel, directory: str) -> None:
    """Writes what `load` needs beside the model's file: task, config, options, labels, words."""
    options = {name: getattr(served, name) for name in _option_names(served.task)}
    description = {
        "task": served.task,
        "options": {name: value for name, value in options.items() if value is not None},
        "config": served.config.to_dict(),
    }
    text = json.dumps(description, indent=2) + "\n"
    write_text(os.path.join(directory, DESCRIPTION_FILE), text)
    vocabulary.copy(served.vocabulary, directory)
    if served.labels:
        labels.write(directory, served.labels)


def _option_names(task: str) -> list[str]:
    names = [name for name, tasks in arguments.TASKS_OF.items() if task in tasks]
    # These have their own file, as beside weights.
    return [name for name in names if name != "labels"]


def find(path: str) -> str | None:
    """Returns the TFLite or ONNX file that a path names, or that is in it; None if there is none.

    Raises:
      ValueError: If there are several.
    """
    if files.is_file(path):
        return path if path.endswith(_ENDINGS) else None
    found = [name for ending in _ENDINGS for name in files.find(path, f"*{ending}")]
    if len(found) > 1:
        raise ValueError(f"{path} contains several models ({', '.join(found)}): give one of them")
    return found[0] if found else None


def load(path: str) -> ServedModel:
    """Loads a file that converted.save wrote.

    Args:
      path: The file; what `write_description` writes lies beside it.

    Raises:
      FileNotFoundError: If something is missing beside it.
      ValueError: If something is damaged, or the file's runtime is not installed.
    """
    directory = os.path.dirname(path)
    where = os.path.join(directory, DESCRIPTION_FILE)
    if not files.is_file(where):
        raise FileNotFoundError(
            f"{where}, which describes {path}, does not exist: copy the whole directory of the "
            "export, or export again"
        )
    task, config, options = _description(where)
    words = vocabulary.find(path)
    if words is None:
        raise FileNotFoundError(f"no vocabulary is beside {path}: copy the whole directory")
    runner = _runner(path)
    sizes = {name: options.pop(name) for name in trained.BEAM if name in options}
    if task in arguments.TASKS_OF["labels"]:
        sizes["num_labels"] = runner.outputs["logits"].shape[-1]
        if sizes["num_labels"] > 1:
            labels.read(directory)  # Says so if it is missing.
            options["labels"] = labels.find(path, sizes["num_labels"])
    if task == "fill_mask":
        lacking = _DISPENSABLE.keys() - runner.outputs.keys()
        options["without"] = {_DISPENSABLE[name] for name in lacking}
    _, served_class = trained.TASKS[task]
    return served_class(ConvertedModel(config, runner, **sizes), words, **options)


def _description(path: str) -> tuple[str, AlbertConfig, dict[str, Any]]:
    values = read_json_object(path)
    task = json_member(values, "task", path, str)
    if task not in trained.TASKS:
        raise ValueError(f"{path}: task must be one of {', '.join(trained.TASKS)}, not {task!r}")
    options = json_member(values, "options", path, dict)
    known = _option_names(task)
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise ValueError(f"{path}: unknown option {unknown[0]!r}: {task} has {', '.join(known)}")
    for name in options:
        json_member(options, name, path, *_KINDS.get(name, (int,)))
    try:
        return task, AlbertConfig.from_dict(json_member(values, "config", path, dict)), options
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _runner(path: str) -> runtimes.Runner:
    load, content = runtimes.loader(path.endswith(_ONNX)), files.read_bytes(path)
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
            f"{path} was not written by python -m albert_tf.export, because its inputs are "
            f"{', '.join(runner.inputs)}: export the trained model"
        )
    return runner
