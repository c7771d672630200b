"""Loads a trained model, however it is stored, as one that takes raw text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from albert_tf.conversion import kinds, labels, layouts
from albert_tf.conversion.names import POOLER, SENTENCE_ORDER_HEAD, SPAN_HEAD
from albert_tf.conversion.stored import Stored
from albert_tf.model.finetuning import (
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForQuestionAnsweringV2,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
)
from albert_tf.model.heads import AlbertForPreTraining
from albert_tf.serving import description
from albert_tf.serving.answering import QuestionAnswerer
from albert_tf.serving.classifying import Chooser, Classifier
from albert_tf.serving.served_models import MaskFiller, ServedModel
from albert_tf.serving.settings import TASKS_OF
from albert_tf.serving.tagging import Tagger
from albert_tf.storage import hub
from albert_tf.storage.run_record import RUN_FILE, TaskRecord

# What a model is for -> its class, and the class that serves it.
TASKS = {
    "fill_mask": (AlbertForPreTraining, MaskFiller),
    "classify": (AlbertForSequenceClassification, Classifier),
    "tag": (AlbertForTokenClassification, Tagger),
    "choose": (AlbertForMultipleChoice, Chooser),
    "answer_v1": (AlbertForQuestionAnswering, QuestionAnswerer),
    "answer_v2": (AlbertForQuestionAnsweringV2, QuestionAnswerer),
}
# Name prefixes of weights that fill_mask can do without, and the outputs that need them.
_DISPENSABLE = {POOLER: {"pooled", "swapped"}, SENTENCE_ORDER_HEAD: {"swapped"}}
# Options of the model, not of the class that serves it.
BEAM = ("start_n_top", "end_n_top")


def serve(
    task: str, stored: Stored, options: Mapping[str, Any], classes: Sequence[str] = ()
) -> ServedModel:
    """Loads a trained model.

    Args:
      task: One of settings.TASKS.
      stored: Where it is.
      options: Arguments of the class that serves the task; for answer_v2 also the model's beam,
        start_n_top and end_n_top. Those left out are as in the run that trained the model, if
        its record is beside the weights, and labels are those there.
      classes: What the stored classes must be, in the order to serve; see load_weights.

    Raises:
      FileNotFoundError: If there is no such model, config or vocabulary.
      ValueError: If it is damaged, lacks the task's head or was trained for another task, or an
        option doesn't fit.
    """
    stored = dataclasses.replace(stored, path=hub.local(stored.path))
    model_class, served_class = TASKS[task]
    trained = kinds.find(stored.path)
    if task == "answer_v2" and _is_linear(stored.path, trained):
        model_class = AlbertForQuestionAnswering
        options = {"null_threshold": 0.0, **options}
    _check_task(task, stored.path, trained)
    config, words = stored.config(), stored.vocabulary()
    given, options = options, {**_as_trained(task, stored.path, trained), **options}
    if task == "classify" and "doc_stride" in given and not options.get("windows"):
        raise ValueError(
            "`doc_stride` applies to classify only with `windows`: leave it out, or set that too"
        )
    sizes = {name: options[name] for name in BEAM if name in options}
    options = {name: value for name, value in options.items() if name not in BEAM}
    if task in ("classify", "tag"):
        # The model's own count: the serving class says how many labels that needs.
        count = labels.count(stored.path) or 1
        _check_outputs(stored.path, trained, count)
        sizes = {"num_labels": count}
        if "labels" not in options:
            options["labels"] = labels.find(stored.path, count)
        elif not classes:  # With them the rows are put into their order.
            labels.check_order(options["labels"], stored.path)
    model = model_class(config, **sizes)
    lacking = stored.fill(model, classes)
    if task == "fill_mask":
        found = {part for part in _DISPENSABLE for name in lacking if name.startswith(part)}
        options["without"] = {output for part in found for output in _DISPENSABLE[part]}
        lacking = [name for name in lacking if not name.startswith(tuple(found))]
    if lacking:
        raise ValueError(f"{stored.path} is not trained for {task}: it lacks {', '.join(lacking)}")
    return served_class(model, words, **options)


def _is_linear(path: str, trained: TaskRecord | None) -> bool:
    """Whether a model for questions has BERT's head, where no answer is the span of [CLS]."""
    if trained:
        return trained.architecture == AlbertForQuestionAnswering.__name__
    weights = layouts.find(path).read_weights(path)
    return any(name.startswith(SPAN_HEAD) for name in weights)


def _as_trained(task: str, path: str, trained: TaskRecord | None) -> dict[str, Any]:
    """Returns the options of a task that the run's record knows.

    Raises:
      ValueError: If one has another type than that option has.
    """
    found = dict(trained.reading) if trained else {}
    if trained and trained.problem_type == kinds.MULTI_LABEL:
        found["multilabel"] = True
    found = {
        name: found[name] for name, tasks in TASKS_OF.items() if name in found and task in tasks
    }
    description.check_types(found, f"{RUN_FILE} beside {path}")
    return found


def _check_task(task: str, path: str, trained: TaskRecord | None) -> None:
    """Checks what the weights of classifiers, taggers and choosers don't show: they are alike.

    Raises:
      ValueError: If the model was trained for another task.
    """
    of_class = {model_class.__name__: name for name, (model_class, _) in TASKS.items()}
    right = task
    if trained:
        right = trained.served_as or of_class.get(trained.architecture, task)
    if right != task:
        raise ValueError(f"{path} is trained for {right}, not for {task}: set `task` to {right}")
    outputs = labels.count(path) if task == "choose" else 1
    if outputs > 1:
        raise ValueError(
            f"{path} is not trained for choose, which needs a head of one output, not of "
            f"{outputs}: set `task` to classify or tag"
        )


def _check_outputs(path: str, trained: TaskRecord | None, outputs: int) -> None:
    """Checks that a head has the outputs that its problem_type is served with.

    Raises:
      ValueError: If it is a regression of several outputs, or has several labels and one output.
    """
    kind = trained.problem_type if trained else ""
    wrong = {kinds.REGRESSION: outputs > 1, kinds.MULTI_LABEL: outputs == 1}
    if wrong.get(kind):
        raise ValueError(
            f"the problem_type of {path} is {kind}, for which its head must have "
            f"{'one output' if outputs > 1 else 'several outputs'}, not {outputs}: correct the "
            f"problem_type in its config.json or {RUN_FILE}"
        )
