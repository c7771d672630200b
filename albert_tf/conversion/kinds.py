"""What a stored model is for: run.json tells, or else Hugging Face's config or a .keras file."""

from __future__ import annotations

import dataclasses

from albert_tf.conversion import huggingface, keras_files
from albert_tf.storage import files, run_record
from albert_tf.storage.run_record import RunRecord, TaskRecord

# The problem_type of texts with one label, with any number of them, and with a number.
SINGLE_LABEL, MULTI_LABEL = "single_label_classification", "multi_label_classification"
REGRESSION = "regression"
CLASSIFIER = "AlbertForSequenceClassification"
# Hugging Face's classes whose heads have weights of the same names, and what they are for.
_TASKS = {
    CLASSIFIER: "classification",
    "AlbertForMultipleChoice": "choice",
    "AlbertForTokenClassification": "token_classification",
}
CLASSIFIERS = frozenset(_TASKS)


def find_run(path: str) -> RunRecord | None:
    """Returns the record of the run that fine-tuned stored weights, if there is one.

    Without one, Hugging Face's config and a .keras file tell what a model is for, but not how it
    was trained; the record of a Preprocessor that was saved tells how texts are read.
    """
    run = run_record.find_run(path)
    if run and not run.task:  # Pre-training's.
        return None
    if run and run.task.name:
        return run
    architecture, is_multi_label, _ = keras_files.read_kind(path)
    task = _of_class(architecture, MULTI_LABEL if is_multi_label else "")
    task = task or _of_hugging_face(files.directory_of(path))
    if run:
        known = dataclasses.replace(task or run.task, reading=run.task.reading)
        return dataclasses.replace(run, task=known)
    return RunRecord(settings={}, config={}, task=task, versions={}) if task else None


def find(path: str) -> TaskRecord | None:
    """Returns what stored weights were fine-tuned for, as far as it is known; see `find_run`."""
    run = find_run(path)
    return run.task if run else None


def classifier_dropout(path: str) -> float:
    """Returns the dropout of a stored classifier's head; the release's if nothing tells it."""
    directory = files.directory_of(path)
    *_, rate = keras_files.read_kind(path)
    if rate is None and huggingface.matches(directory):
        *_, rate = huggingface.read_kind(directory)
    return huggingface.CLASSIFIER_DROPOUT if rate is None else rate


def _of_hugging_face(directory: str) -> TaskRecord | None:
    if not huggingface.matches(directory):
        return None
    architecture, problem_type, _ = huggingface.read_kind(directory)
    known = (REGRESSION, SINGLE_LABEL, MULTI_LABEL)
    if problem_type not in ("", *known):
        raise ValueError(
            f"the config of {directory}: problem_type must be one of {', '.join(known)}, not "
            f"{problem_type!r}"
        )
    return _of_class(architecture or (CLASSIFIER if problem_type else ""), problem_type)


def _of_class(architecture: str, problem_type: str) -> TaskRecord | None:
    if architecture not in _TASKS:
        return None
    if architecture != CLASSIFIER:  # The others don't read problem_type.
        return TaskRecord(_TASKS[architecture], architecture)
    named = {MULTI_LABEL: "multilabel", REGRESSION: "regression"}
    name = named.get(problem_type, _TASKS[architecture])
    return TaskRecord(name, architecture, problem_type)


def is_another(task: TaskRecord, other: TaskRecord) -> bool:
    """Whether a model's head, whose weights may fit, means something else than another's."""
    if not {task.architecture, other.architecture} <= CLASSIFIERS:
        return False  # The names of their heads tell.
    types = {task.problem_type, other.problem_type} - {""}
    return task.architecture != other.architecture or len(types) > 1


def problem_type(task: TaskRecord | None, num_labels: int) -> str:
    """Returns a classifier's problem_type: the record's, or what its number of outputs suggests."""
    default = REGRESSION if num_labels == 1 else SINGLE_LABEL
    return (task.problem_type if task else "") or default


def kind(task: TaskRecord | None, num_labels: int) -> str:
    """Names what a model with a classifier's head is for: its class, or its problem_type."""
    if task and task.architecture in CLASSIFIERS - {CLASSIFIER}:
        return task.architecture
    return problem_type(task, num_labels)
