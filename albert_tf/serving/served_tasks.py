"""What serves each task: a stored model, or one in memory, as one that takes raw text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from albert_tf.conversion import kinds, labels, layouts
from albert_tf.conversion.names import SPAN_HEAD
from albert_tf.conversion.stored import Stored
from albert_tf.model.finetuning import (
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from albert_tf.model.heads import AlbertForPreTraining
from albert_tf.serving import exported_files
from albert_tf.serving.answering import QuestionAnswerer
from albert_tf.serving.classifying import Chooser, Classifier
from albert_tf.serving.served_models import MaskFiller, ServedModel
from albert_tf.serving.settings import TASKS_OF
from albert_tf.serving.tagging import Tagger
from albert_tf.storage import hub
from albert_tf.storage.run_record import RUN_FILE, TaskRecord
from albert_tf.tasks.preprocessor import Preprocessor

# A task -> the class of its model, and the class that serves it.
SERVED: Mapping[str, tuple[type[keras.Model], type[ServedModel]]] = {
    "fill_mask": (AlbertForPreTraining, MaskFiller),
    "classify": (AlbertForSequenceClassification, Classifier),
    "tag": (AlbertForTokenClassification, Tagger),
    "choose": (AlbertForMultipleChoice, Chooser),
    "answer_v1": (AlbertForQuestionAnswering, QuestionAnswerer),
    "answer_v2": (AlbertForQuestionAnsweringV2, QuestionAnswerer),
}
# Options of the model, not of the class that serves it.
BEAM = ("start_n_top", "end_n_top")


def serve(
    task: str, stored: Stored, options: Mapping[str, Any], classes: Sequence[str] = ()
) -> ServedModel:
    """Loads a trained model.

    Args:
      task: A key of SERVED.
      stored: Where it is.
      options: Arguments of the class that serves the task; for answer_v2 also the model's beam,
        start_n_top and end_n_top. Those left out are as in the run that trained the model, if
        its record is beside the weights, and labels are those there.
      classes: What the stored classes must be, in the order to serve; see load_weights.
    """
    stored = dataclasses.replace(stored, path=hub.local(stored.path))
    path, trained = stored.path, kinds.find(stored.path)
    _check_task(task, path, trained)
    model_class, served_class = SERVED[task]
    if task == "answer_v2" and _is_linear(path, trained):
        model_class = AlbertForQuestionAnswering
        options = {"null_threshold": 0.0, **options}
    config, words = stored.config(), stored.vocabulary()
    options = {**_as_trained(task, path, trained), **options}
    # The model, with as many outputs as are stored.
    sizes = {name: options.pop(name) for name in BEAM if name in options}
    if served_class.takes_labels:
        # The model's own count: the serving class says how many labels that needs.
        count = labels.count(path) or 1
        _check_outputs(path, trained, count)
        sizes = {"num_labels": count}
        if "labels" not in options:
            options["labels"] = labels.find(path, count)
        elif not classes:  # With them the rows are put into their order.
            labels.check_order(options["labels"], path)
    model = model_class(config, **sizes)
    lacking = stored.fill(model, classes)
    # What it lacks it does without, if it can.
    parts = [p for p in served_class.dispensable if any(name.startswith(p) for name in lacking)]
    if parts:
        options["without"] = set().union(*(served_class.dispensable[part] for part in parts))
        lacking = [name for name in lacking if not name.startswith(tuple(parts))]
    if lacking:
        raise ValueError(f"{path} is not trained for {task}: it lacks {', '.join(lacking)}")
    return served_class(model, words, **options)


def serve_fitted(
    model: keras.Model, preprocess: Preprocessor, options: Mapping[str, Any]
) -> ServedModel:
    """Returns a model in memory as one that takes raw text; see export_saved_model."""
    found = [task for task, (kind, _) in SERVED.items() if isinstance(model, kind)]
    if not found:
        known = ", ".join(kind.__name__ for kind, _ in SERVED.values())
        raise ValueError(f"{type(model).__name__} can't be exported to take raw text, only {known}")
    (task,) = found
    reading = preprocess.reading.items()
    own: dict[str, Any] = {name: value for name, value in reading if task in TASKS_OF[name]}
    _, served_class = SERVED[task]
    if served_class.takes_labels:
        own |= _labels(model, preprocess)
    if task in TASKS_OF["multilabel"]:
        own["multilabel"] = _is_multilabel(model)
    return served_class(model, preprocess.vocabulary, **{**own, **options})


def _is_linear(path: str, trained: TaskRecord | None) -> bool:
    """Whether a model for questions has BERT's head, where no answer is the span of [CLS]."""
    if trained and trained.architecture:
        return trained.architecture == AlbertForQuestionAnswering.__name__
    return any(name.startswith(SPAN_HEAD) for name in layouts.find(path).head_shapes(path))


def _as_trained(task: str, path: str, trained: TaskRecord | None) -> dict[str, Any]:
    """Returns the options of a task that the run's record knows."""
    found = dict(trained.reading) if trained else {}
    if trained and trained.problem_type == kinds.MULTI_LABEL:
        found["multilabel"] = True
    found = {
        name: found[name] for name, tasks in TASKS_OF.items() if name in found and task in tasks
    }
    exported_files.check_types(found, f"{RUN_FILE} beside {path}")
    return found


def _check_task(task: str, path: str, trained: TaskRecord | None) -> None:
    """Checks what the weights of classifiers, taggers and choosers don't show: they are alike."""
    of_class = {model_class.__name__: name for name, (model_class, _) in SERVED.items()}
    right = trained and (trained.served_as or of_class.get(trained.architecture))
    if right and right != task:
        raise ValueError(f"{path} is trained for {right}, not for {task}: set `task` to {right}")


def _check_outputs(path: str, trained: TaskRecord | None, outputs: int) -> None:
    """Checks that a head has the outputs that its problem_type is served with."""
    kind = trained.problem_type if trained else ""
    needed = {kinds.REGRESSION: "one output", kinds.MULTI_LABEL: "several outputs"}
    if kind in needed and (outputs > 1) != (kind == kinds.MULTI_LABEL):
        raise ValueError(
            f"the problem_type of {path} is {kind}, for which its head must have {needed[kind]}, "
            f"not {outputs}: correct the problem_type in its config.json or {RUN_FILE}"
        )


def _labels(model: keras.Model, preprocess: Preprocessor) -> dict[str, tuple[str, ...]]:
    if model.num_labels > 1:
        return {"labels": preprocess.labels or tuple(map(str, range(model.num_labels)))}
    if preprocess.labels:
        raise ValueError(
            f"`preprocess` has labels ({', '.join(preprocess.labels)}), but the model has one "
            "output, which is a regression: give it an output for each label, or export with a "
            "Preprocessor without labels"
        )
    return {}


def _is_multilabel(model: keras.Model) -> bool:
    """Whether a model was compiled with a loss for any number of labels."""
    binary = (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)
    return model.num_labels > 1 and isinstance(getattr(model, "loss", None), binary)
