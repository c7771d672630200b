"""The table of fine-tuning tasks.

A new task of GLUE is a row of glue.GLUE_TASKS; any other task is a row of TASKS and a class. --help
lists the names, so nothing here imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albert_tf.answers.choose import Choose
from albert_tf.answers.classify import Classify
from albert_tf.answers.embed import Embed
from albert_tf.answers.kind import Kind
from albert_tf.answers.span import BeamSpan, Span, SpanOrNone
from albert_tf.answers.tag import Tag
from albert_tf.tasks import conll, glue, race, squad_text, table
from albert_tf.tasks.settings import TaskSettings

if TYPE_CHECKING:
    from albert_tf.text.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True)
class TaskRow:
    """A fine-tuning task."""

    heading: str  # The group of --help that lists the task.
    task_class: str  # The class of the task, as module.Class in albert_tf.tasks.
    kind: type[Kind]  # The kind of its answers.
    # Reads examples, given the settings, the split and the task.
    read: Callable[[TaskSettings, str, Any], list[Any]]
    # Computes the kind's options that are not settings, from the settings and the class names.
    options: Callable[[TaskSettings, tuple[str, ...]], Mapping[str, Any]] = lambda *_: {}
    # Finds the names of the classes in the training file; a trained model has them stored.
    find_classes: Callable[[TaskSettings], tuple[str, ...]] | None = None
    # Class names that are fixed, or computed from the settings.
    classes: tuple[str, ...] | Callable[[TaskSettings], tuple[str, ...]] = ()
    key_metric: str = ""  # The metric that checkpoints are compared by; "": the class's default.
    results_file: str = "predictions.tsv"  # Name of the file of ids and predicted labels.
    # The range that a regression's numbers are clipped to in this file.
    number_range: tuple[float, float] = (-math.inf, math.inf)
    # Prefix of the names of prediction files, if the task shares a directory with others.
    prefix: str = ""
    note: str = ""  # Follows the name in --help.
    # Settings whose default differs from run_classifier.py's, as in the release's script for this
    # task; a function of the settings if the value depends on others.
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Returns another row if the settings choose another model.
    variant: Callable[[TaskSettings], TaskRow] | None = None

    def make(
        self,
        settings: TaskSettings,
        options: Any,
        tokenizer: Tokenizer | None,
        classes: Sequence[str] | None = None,
    ) -> Any:
        """Returns the task, a SupervisedTask.

        Args:
          settings: Its settings.
          options: The ModelOptions; None if no model is built.
          tokenizer: The model's tokenizer; None if no features are made.
          classes: Names of the classes of a trained model; by default those in the training file or
            in the row.
        """
        if classes is None:
            found = self.find_classes or self.classes
            classes = found(settings) if callable(found) else found
        # Options that are settings of the same name, then the row's own.
        fields = {field.name for field in dataclasses.fields(TaskSettings)}
        names = self.kind.option_fields().keys() & fields
        values = {name: getattr(settings, name) for name in names}
        kind = self.kind(**{**values, **self.options(settings, tuple(classes))})
        return self.task(kind, options, tokenizer, classes=classes)

    def task(self, kind: Kind, *args: Any, classes: Sequence[str]) -> Any:
        """Returns the row's task for a kind; `args` are further arguments of SupervisedTask."""
        module, _, name = self.task_class.partition(".")
        # A task is imported when it is chosen: the table itself needs no TensorFlow.
        task_class = getattr(importlib.import_module(f"albert_tf.tasks.{module}"), name)
        return task_class(kind, *args, classes=tuple(classes), row=self)

    def defaults_for(self, settings: Any) -> dict[str, Any]:
        """Returns `defaults` with its functions applied to the script's settings."""
        return {
            name: value(settings) if callable(value) else value
            for name, value in self.defaults.items()
        }


def _read_glue(name: str, settings: TaskSettings, split: str, task: Any) -> list[Any]:
    return glue.read_glue(name, settings.folder, split)


def _read_race(settings: TaskSettings, split: str, task: Any) -> list[Any]:
    levels = [
        level
        for level, other_only in (("middle", settings.high_only), ("high", settings.middle_only))
        if not other_only
    ]
    # Without a tokenizer nothing reads the texts.
    preprocess = task.tokenizer.preprocess if task.tokenizer else str
    return race.read_race(settings.folder, split, levels, preprocess=preprocess)


def _read_texts(settings: TaskSettings, split: str, task: Any, several: bool = False) -> list[Any]:
    path = settings.file(split)
    return table.read_texts(path, settings, task.classes, split != "test", several)


def _find_labels(settings: TaskSettings, several: bool = False) -> tuple[str, ...]:
    return table.find_labels(settings.file("train"), settings, several)


def _read_choices(settings: TaskSettings, split: str, task: Any) -> list[Any]:
    return table.read_choices(settings.file(split), settings, split != "test")


def _choices(settings: TaskSettings) -> tuple[str, ...]:
    if not settings.choice_columns:
        raise ValueError("`choice_columns` names the columns of the choices: set that too")
    return settings.choice_columns


def _read_tags(settings: TaskSettings, split: str, task: Any) -> list[Any]:
    examples = conll.read_sentences(settings.file(split), task.classes, split != "test", settings)
    if split != "train":
        task.check_scorable(examples)
    return examples


def _read_questions(settings: TaskSettings, split: str, task: Any) -> list[Any]:
    # The release evaluates on the file that it predicts.
    path = settings.file("test" if split == "dev" and not settings.eval_file else split)
    examples = squad_text.read_squad(path)
    task.check_answers(examples, path, split)
    return examples


_OTHERS, _TABLES, _WORDS = "Others", "For a table of your own", "For words with tags"
_TEXTS = "classification.SequenceClassificationTask"


def _of_texts(settings: TaskSettings, labels: tuple[str, ...]) -> Mapping[str, Any]:
    return {"labels": labels, "pairs": bool(settings.text_pair_column)}


_CLASSES = TaskRow(_TABLES, _TEXTS, Classify, _read_texts, _of_texts)
_CHOICE = TaskRow(
    _TABLES,
    "classification.MultipleChoiceTask",
    Choose,
    _read_choices,
    lambda _, choices: {"num_choices": len(choices)},
    classes=_choices,
)


def _glue_row(name: str, row: glue.GlueTask) -> TaskRow:
    return TaskRow(
        "GLUE",
        _TEXTS,
        Classify,
        functools.partial(_read_glue, name),
        # The release truncates texts.
        lambda _, labels: {"labels": labels, "pairs": row.text_b is not None, "windows": None},
        classes=row.labels,
        key_metric=row.key_metric,
        results_file=f"{row.submission or row.folder}.tsv",
        number_range=row.number_range,
        prefix=f"{name}_" if name in glue.OF_MNLI else "",  # They share MNLI's directory.
        note="" if "train" in row.files else "predicts only",
    )


_RACE_DEFAULTS = {
    "learning_rate": 1e-5,
    "train_step": 12000,
    "warmup_step": 1000,
    "save_checkpoints_steps": 100,
    "do_train": True,
    "do_eval": True,
}
_SQUAD_DEFAULTS = {
    "max_seq_length": 384,
    "num_train_epochs": 3.0,
    "warmup_proportion": 0.1,
    # As in the release, prediction first finds the best checkpoint on the file to predict.
    "do_eval": lambda settings: settings.do_predict,
}
# The softmax over positions includes padding, so the loss depends on the padded length.
_LINEAR_DEFAULTS = {**_SQUAD_DEFAULTS, "dropout_prob": 0.0, "static_lengths": 1}

_SQUAD_V1 = TaskRow(
    _OTHERS, "question_answering.SquadV1Task", Span, _read_questions, defaults=_LINEAR_DEFAULTS
)
_CONDITIONAL = TaskRow(
    _OTHERS, "question_answering.SquadV2Task", BeamSpan, _read_questions, defaults=_SQUAD_DEFAULTS
)
_LINEAR = dataclasses.replace(_CONDITIONAL, kind=SpanOrNone, defaults=_LINEAR_DEFAULTS)


def _squad_v2(settings: TaskSettings) -> TaskRow:
    return _LINEAR if settings.span_head == "linear" else _CONDITIONAL


def _of_your_own(settings: TaskSettings) -> TaskRow:
    row = _squad_v2(settings) if settings.allow_no_answer else _SQUAD_V1
    # Unlike the release's tasks, don't choose the best checkpoint by the file to predict.
    evaluates = bool(settings.eval_file)
    do_eval = {"do_eval": lambda s: evaluates and (s.do_train or s.do_predict)}
    return dataclasses.replace(row, heading=_TABLES, defaults={**row.defaults, **do_eval})


TASKS: Mapping[str, TaskRow] = {
    **{name: _glue_row(name, row) for name, row in glue.GLUE_TASKS.items()},
    "race": dataclasses.replace(
        _CHOICE, heading=_OTHERS, read=_read_race, classes=race.LETTERS, defaults=_RACE_DEFAULTS
    ),
    "squad_v1": _SQUAD_V1,
    "squad_v2": dataclasses.replace(_CONDITIONAL, variant=_squad_v2),
    "classification": dataclasses.replace(_CLASSES, find_classes=_find_labels),
    "multilabel": dataclasses.replace(
        _CLASSES,
        task_class="classification.MultiLabelTask",
        read=functools.partial(_read_texts, several=True),
        options=lambda *given: {**_of_texts(*given), "multilabel": True},
        find_classes=functools.partial(_find_labels, several=True),
        key_metric="micro_f1",
    ),
    "regression": dataclasses.replace(_CLASSES, key_metric="pearson"),
    "embedding": TaskRow(
        _TABLES,
        "embedding.EmbeddingTask",
        Embed,
        lambda given, split, task: task.read(given, split),
    ),
    "choice": _CHOICE,
    "question_answering": dataclasses.replace(_SQUAD_V1, heading=_TABLES, variant=_of_your_own),
    "token_classification": TaskRow(
        _WORDS,
        "token_classification.TokenClassificationTask",
        Tag,
        _read_tags,
        lambda _, labels: {"labels": labels},
        lambda settings: conll.find_tags(settings.file("train"), settings),
    ),
}


def of_kind(kind: Kind, settings: Any) -> Any:
    """Returns a kind's task on a user's own data (the generic one, not GLUE's), without a model.

    `settings` are TableSettings.
    """
    row = TASKS[kind.task_name]
    classes = row.classes(settings) if callable(row.classes) else getattr(kind, "labels", ())
    return row.task(kind, classes=classes)


def row_of(settings: TaskSettings) -> TaskRow:
    """Returns the row of the task that the settings name."""
    row = TASKS[settings.task_name]
    return row.variant(settings) if row.variant else row


def names_in_help() -> str:
    """Returns the names of all tasks by heading, in a line for --help."""
    groups: dict[str, list[str]] = {}
    for name, row in TASKS.items():
        groups.setdefault(row.heading, []).append(f"{name} ({row.note})" if row.note else name)
    return " ".join(f"{heading}: {', '.join(names)}." for heading, names in groups.items())
