"""TFLite and ONNX files as models that take raw text.

Text is split, and answers are made, by the class that serves the task. A file beside the model's
says which, and how.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from albert_tf import files
from albert_tf.config import AlbertConfig
from albert_tf.conversion import labels
from albert_tf.serving import choices, description, runtimes, trained
from albert_tf.serving.sequences import FEATURES
from albert_tf.serving.served_models import ServedModel
from albert_tf.text import vocabulary
from albert_tf.types import Features

_ONNX = ".onnx"
_ENDINGS = (_ONNX, ".tflite")
# Outputs that a file may lack -> what the served model is then without.
_DISPENSABLE = {"pooled_output": "pooled", "sentence_order_logits": "swapped"}
# A task -> outputs that its files have; of logits also the rank, and whether the last axis has a
# fixed size: classes are fixed, choices are not.
_OUTPUTS = {
    "fill_mask": ("masked_lm_logits", "sequence_output"),
    "answer_v1": ("start_logits", "end_logits"),
    "answer_v2": ("cls_logits", "start_top_log_probs", "end_top_log_probs"),
}
_LOGITS = {"classify": (2, True), "tag": (3, True), "choose": (2, False)}


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
      path: The file; its description, its vocabulary and its labels lie beside it.

    Raises:
      FileNotFoundError: If something is missing beside it.
      ValueError: If something is damaged, or the file's runtime is not installed.
    """
    directory = os.path.dirname(path)
    where = os.path.join(directory, description.FILE)
    if not files.is_file(where):
        raise FileNotFoundError(
            f"{where}, which describes {path}, does not exist: copy the whole directory of the "
            "export, or export again"
        )
    task, config, options = description.read(where)
    words = vocabulary.find(path)
    if words is None:
        raise FileNotFoundError(f"no vocabulary is beside {path}: copy the whole directory")
    runner = _runner(path)
    _check_outputs(path, task, runner.outputs)
    sizes = {name: options.pop(name) for name in trained.BEAM if name in options}
    if task in choices.TASKS_OF["labels"]:
        sizes["num_labels"] = runner.outputs["logits"].shape[-1]
        if sizes["num_labels"] > 1:
            labels.read(directory)  # Says so if it is missing.
            options["labels"] = labels.find(path, sizes["num_labels"])
    if task == "fill_mask":
        lacking = _DISPENSABLE.keys() - runner.outputs.keys()
        options["without"] = {_DISPENSABLE[name] for name in lacking}
    _, served_class = trained.TASKS[task]
    return served_class(ConvertedModel(config, runner, **sizes), words, **options)


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
            f"{path} was not written by albert-export, because its inputs are "
            f"{', '.join(runner.inputs)}: export the trained model"
        )
    return runner


def _check_outputs(path: str, task: str, outputs: Mapping[str, tf.TensorSpec]) -> None:
    """Checks that a file is of the task that its description names.

    Raises:
      ValueError: If it has the outputs of another one.
    """
    fits = set(_OUTPUTS.get(task, ("logits",))) <= outputs.keys()
    if fits and task in _LOGITS:
        shape = outputs["logits"].shape
        fits = (len(shape), shape[-1] is not None) == _LOGITS[task]
    if not fits:
        found = ", ".join(f"{name} {list(spec.shape)}" for name, spec in outputs.items())
        raise ValueError(
            f"{path} is of another task than {task}, which {description.FILE} beside it names: "
            f"its outputs are {found}; copy the whole directory of the export, or export again"
        )
