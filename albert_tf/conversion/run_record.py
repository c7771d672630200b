"""What a model was fine-tuned for, stored beside its weights: for conversions and exports."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from albert_tf.conversion import huggingface, keras_files
from albert_tf.storage import files
from albert_tf.storage.text_files import json_member, read_json_object

RECORD_FILE = "run.json"
# The problem_type of texts with one label, with any number of them, and with a number.
SINGLE_LABEL, MULTI_LABEL = "single_label_classification", "multi_label_classification"
REGRESSION = "regression"
_CLASSIFIER = "AlbertForSequenceClassification"
# Hugging Face's classes whose heads have weights of the same names, and the task of each of its
# own models.
_TASKS = {
    _CLASSIFIER: "classification",
    "AlbertForMultipleChoice": "choice",
    "AlbertForTokenClassification": "token_classification",
}
CLASSIFIERS = frozenset(_TASKS)


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """A fine-tuning run.

    Attributes:
      task_name: The task.
      problem_type: Hugging Face's name for the kind of classifier; "" for other models, or if it
        is not known.
      init_checkpoint: The weights that it started from, as named; "" for none.
      command: The command line; "" if it was not run here.
      note: What users of the model must know; "" for nothing.
      train_data: File or directory of the examples; "" if it is not known.
      learning_rate: The rate; "" if it is not known.
      serving: How it read its texts: options of the class that serves the task.
      data: Digests of the examples that it trains and evaluates on, by split.
      shaping: What else shapes its weights: numbers of steps, the optimizer, and so on.
      architecture: The class of its model, which is called as Hugging Face's; "" if its head tells.
      served_as: Which of serving's tasks answers with it; "" if that is not known.
    """

    task_name: str
    problem_type: str
    init_checkpoint: str
    command: str
    note: str = ""
    train_data: str = ""
    learning_rate: str = ""
    serving: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shaping: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    architecture: str = ""
    served_as: str = ""

    def is_for_another(self, architecture: str, problem_type: str) -> bool:
        """Whether this model's head, whose weights may fit, means something else than another's."""
        if not {self.architecture, architecture} <= CLASSIFIERS:
            return False  # The names of their heads tell.
        types = {self.problem_type, problem_type} - {""}
        return self.architecture != architecture or len(types) > 1

    def write(self, directory: str) -> None:
        """Writes the record."""
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
        files.replace(os.path.join(directory, RECORD_FILE), text + "\n")


def find(path: str) -> RunRecord | None:
    """Returns the record beside a model's weights, if there is one.

    Without one, Hugging Face's config and a .keras file tell what a model is for, but not how it
    was trained.

    Raises:
      ValueError: If it is damaged.
    """
    directory = files.directory_of(path)
    file = os.path.join(directory, RECORD_FILE)
    if not files.is_file(file):
        architecture, is_multi_label = keras_files.read_kind(path)
        if architecture:
            return _of_class(architecture, MULTI_LABEL if is_multi_label else "")
        return _of_hugging_face(directory) if huggingface.matches(directory) else None
    stored = read_json_object(file)
    if "settings" in stored and not stored.get("task"):  # A pre-training run's.
        return None
    fields = dataclasses.fields(RunRecord)
    kinds = {f.name: str if f.default_factory is dataclasses.MISSING else dict for f in fields}
    # Earlier versions wrote fewer.
    needed = {f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING}
    names = [name for name in kinds if name in stored or name in needed]
    return RunRecord(**{name: json_member(stored, name, file, kinds[name]) for name in names})


def _of_hugging_face(directory: str) -> RunRecord | None:
    architecture, problem_type = huggingface.read_kind(directory)
    known = (REGRESSION, SINGLE_LABEL, MULTI_LABEL)
    if problem_type not in ("", *known):
        raise ValueError(
            f"the config of {directory}: problem_type must be one of {', '.join(known)}, not "
            f"{problem_type!r}"
        )
    return _of_class(architecture or (_CLASSIFIER if problem_type else ""), problem_type)


def _of_class(architecture: str, problem_type: str) -> RunRecord | None:
    if architecture not in _TASKS:
        return None
    if architecture != _CLASSIFIER:  # The others don't read it.
        problem_type = ""
    named = {MULTI_LABEL: "multilabel", REGRESSION: "regression"}
    task_name = named.get(problem_type, _TASKS[architecture])
    return RunRecord(task_name, problem_type, "", "", architecture=architecture)


def problem_type(run: RunRecord | None, num_labels: int) -> str:
    """Returns a classifier's problem_type: the record's, or what its number of outputs suggests."""
    default = REGRESSION if num_labels == 1 else SINGLE_LABEL
    return (run.problem_type if run else "") or default


def kind(run: RunRecord | None, num_labels: int) -> str:
    """Names what a model with a classifier's head is for: its class, or its problem_type."""
    architecture = run.architecture if run else ""
    return problem_type(run, num_labels) if architecture in ("", _CLASSIFIER) else architecture
