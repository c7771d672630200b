"""The task that a stored model was trained for: run.json's, Hugging Face's or a .keras file's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from albert_tf.answers import kinds
from albert_tf.answers.classify import (
    MULTI_LABEL,
    REGRESSION,
    SINGLE_LABEL,
    TASK_NAMES,
    Classify,
)
from albert_tf.answers.embed import Embed
from albert_tf.answers.kind import CLASSIFIER_HEAD, Kind
from albert_tf.answers.span import BeamSpan, Span
from albert_tf.conversion import huggingface, keras_files, sentence_transformers
from albert_tf.storage import files, run_record
from albert_tf.storage.run_record import RUN_FILE, RunRecord, TaskRecord

# Kinds with a classifier's head: the names of their weights don't tell them apart.
ALIKE = {kind.model: kind for kind in kinds.KINDS if kind.heads == (CLASSIFIER_HEAD,)}
# The release's dropout rate of each class's head, used if none is stored.
HEAD_DROPOUT = {
    **dict.fromkeys(ALIKE, huggingface.CLASSIFIER_DROPOUT),
    Span.model: 0.0,
    BeamSpan.model: 0.1,
}


def find_run(path: str) -> RunRecord | None:
    """Returns the record of the run that fine-tuned stored weights, or as much of it as is known.

    Without a run.json, Hugging Face's config or a .keras file may name the task. The record of a
    saved Preprocessor tells only how texts are read.
    """
    run = run_record.find_run(path)
    if run and not run.task:  # The run was a pre-training.
        return None
    if run and run.task.name:
        return run
    architecture, is_multi_label, arguments = keras_files.read_task(path)
    task = _of_class(architecture, MULTI_LABEL if is_multi_label else "")
    if architecture == Embed.model:
        task = _embeds({n: arguments[n] for n in Embed.option_fields() if n in arguments})
    task = task or _of_hugging_face(files.directory_of(path))
    if run:
        known = task or run.task
        known = dataclasses.replace(known, kind={**run.task.kind, **known.kind})
        return dataclasses.replace(run, task=known)
    return RunRecord(settings={}, config={}, task=task, versions={}) if task else None


def find(path: str) -> TaskRecord | None:
    """Returns the task that weights were fine-tuned for, if it is known; see `find_run`."""
    run = find_run(path)
    return run.task if run else None


def kind_of(task: TaskRecord | None) -> type[Kind] | None:
    """Returns the kind of a record, if it is known."""
    name = task.kind.get("task") if task else None
    if name is None:
        return None
    if name not in kinds.TASKS:
        raise ValueError(
            f"{RUN_FILE}: the task of a kind must be one of {', '.join(kinds.TASKS)}, not {name!r}"
        )
    return kinds.named(name, task.kind)


def head_dropout(path: str, model: str) -> float:
    """Returns the stored dropout rate of the head of `model`, a class in HEAD_DROPOUT.

    All classes with a classifier's head share one; a rate stored for another head is ignored.
    """
    same = ALIKE.keys() if model in ALIKE else {model}
    architecture, _, arguments = keras_files.read_task(path)
    if architecture in same and "classifier_dropout_prob" in arguments:
        return arguments["classifier_dropout_prob"]
    directory = files.directory_of(path)
    if model in ALIKE and huggingface.matches(directory):
        return huggingface.read_task(directory)[2]
    run = find_run(path)
    kind = kind_of(run.task) if run else None
    settings = run.settings if run and kind and kind.model in same else {}
    return settings.get("dropout_prob", HEAD_DROPOUT[model])


def _of_hugging_face(directory: str) -> TaskRecord | None:
    if not huggingface.matches(directory):
        return None
    if sentence_transformers.matches(directory):
        return _embeds(sentence_transformers.read_options(directory))
    architecture, problem_type, _ = huggingface.read_task(directory)
    if problem_type not in ("", *TASK_NAMES):
        raise ValueError(
            f"the config of {directory}: problem_type must be one of {', '.join(TASK_NAMES)}, not "
            f"{problem_type!r}"
        )
    return _of_class(architecture or (Classify.model if problem_type else ""), problem_type)


def _embeds(options: Mapping[str, Any]) -> TaskRecord:
    # An option that is None is left out, as in to_json.
    known = {name: value for name, value in options.items() if value is not None}
    return TaskRecord(Embed.task_name, {"task": Embed.task, **known})


def _of_class(architecture: str, problem_type: str) -> TaskRecord | None:
    kind = ALIKE.get(architecture)
    if kind is None:
        return None
    known: dict[str, Any] = {"task": kind.task}
    if kind is not Classify:  # The others don't read problem_type.
        return TaskRecord(str(kind.task_name), known)
    if problem_type == REGRESSION:
        known["labels"] = []
    elif problem_type == MULTI_LABEL:
        known["multilabel"] = True
    return TaskRecord(TASK_NAMES[problem_type or SINGLE_LABEL], known)


def is_another(task: TaskRecord, other: TaskRecord) -> bool:
    """Whether the heads of two models mean different things, though their weights may fit."""
    both = kind_of(task), kind_of(other)
    if not {*both} <= {*ALIKE.values()}:
        return False  # Their weights have different names.
    types = {problem_type(task), problem_type(other)} - {""}
    return both[0] is not both[1] or len(types) > 1


def has_problem_type(architecture: str) -> bool:
    """Whether Hugging Face's config names the problem_type of such a model."""
    return architecture == Classify.model


def problem_type(task: TaskRecord | None, num_labels: int = 0) -> str:
    """Returns a classifier's problem_type: the record's, or the usual one for `num_labels` outputs.

    It is "" if neither is known. Callers leave out other kinds.
    """
    known: Mapping[str, Any] = task.kind if task else {}
    if known.get("task") == Classify.task:
        if known.get("multilabel"):
            return MULTI_LABEL
        if "labels" in known:
            return SINGLE_LABEL if known["labels"] else REGRESSION
    return {0: "", 1: REGRESSION}.get(num_labels, SINGLE_LABEL)


def meaning(task: TaskRecord | None, num_labels: int) -> str:
    """Names the purpose of a classifier's head: the model's class, or its problem_type."""
    kind = kind_of(task)
    if kind in ALIKE.values() and kind is not Classify:
        return kind.model
    return problem_type(task, num_labels)


def check_outputs(path: str, task: TaskRecord | None, outputs: int) -> None:
    """Checks that a head has as many outputs as its problem_type needs."""
    found = problem_type(task)
    needed = {REGRESSION: "one output", MULTI_LABEL: "several outputs"}
    if found in needed and (outputs > 1) != (found == MULTI_LABEL):
        raise ValueError(
            f"the problem_type of {path} is {found}, for which its head must have "
            f"{needed[found]}, not {outputs}: correct the problem_type in its config.json or the "
            f"labels in {RUN_FILE}"
        )
