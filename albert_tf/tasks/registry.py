"""The tasks of fine-tuning by name.

A new task of GLUE is a row of glue.GLUE_TASKS; any other one is a row of TASKS, whose class tells
the rest. No TensorFlow is imported here: --help has the names.
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
from albert_tf.answers.kind import Kind
from albert_tf.answers.span import BeamSpan, Span, SpanOrNone
from albert_tf.answers.tag import Tag
from albert_tf.tasks import conll, glue, race, squad_text, table
from albert_tf.tasks.settings import TaskSettings

if TYPE_CHECKING:
    from albert_tf.text.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True)
class TaskRow:
    """What a task's name stands for."""

    heading: str  # The group in which --help lists the name.
    task_class: str  # Name of its module and class in albert_tf.tasks.
    kind: type[Kind]  # Of its answers.
    # Reads the examples of a split: of these settings, this split, for this task.
    read: Callable[[TaskSettings, str, Any], list[Any]]
    # The kind's options that are no settings, from the settings and the names of classes.
    options: Callable[[TaskSettings, tuple[str, ...]], Mapping[str, Any]] = lambda *_: {}
    # Finds the names of the classes by id in the training file; later they are the trained model's.
    find_classes: Callable[[TaskSettings], tuple[str, ...]] | None = None
    # The names where they are always the same; a function of the settings where these have them.
    classes: tuple[str, ...] | Callable[[TaskSettings], tuple[str, ...]] = ()
    key_metric: str = ""  # The metric by which checkpoints are compared; "" for the class's own.
    results_file: str = "predictions.tsv"  # Name of the file of ids and predicted labels.
    # The smallest and the largest number that a regression writes there.
    number_range: tuple[float, float] = (-math.inf, math.inf)
    # Before the names of files of predictions, of a task that shares its directory.
    prefix: str = ""
    note: str = ""  # Behind its name in --help.
    # The settings in which the release's script for it differs from run_classifier.py; a function
    # of the settings where the value depends on others.
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Maps the settings to another row, where these choose the model.
    variant: Callable[[TaskSettings], TaskRow] | None = None

    def make(
        self,
        settings: TaskSettings,
        options: Any,
        tokenizer: Tokenizer | None,
        classes: Sequence[str] | None = None,
    ) -> Any:
        """Makes the task, a SupervisedTask.

        Args:
          settings: Its settings.
          options: The ModelOptions; None if no model is built.
          tokenizer: The model's; None if no features are made.
          classes: The names of the classes of a trained model; by default those of the row, or
            else of the training file.
        """
        if classes is None:
            found = self.find_classes or self.classes
            classes = found(settings) if callable(found) else found
        names = self.kind.option_fields().keys() & {
            f.name for f in dataclasses.fields(TaskSettings)
        }
        values = {name: getattr(settings, name) for name in names}
        kind = self.kind(**{**values, **self.options(settings, tuple(classes))})
        return self.task(kind, options, tokenizer, classes=classes)

    def task(self, kind: Kind, *args: Any, classes: Sequence[str]) -> Any:
        """Returns the row's task for a kind; other arguments are the SupervisedTask's."""
        module, _, name = self.task_class.partition(".")
        task_class = getattr(importlib.import_module(f"albert_tf.tasks.{module}"), name)
        return task_class(kind, *args, classes=tuple(classes), row=self)

    def defaults_for(self, settings: Any) -> dict[str, Any]:
        """Returns the values of `defaults`, given the settings of the script."""
        return {
            name: value(settings) if callable(value) else value
            for name, value in self.defaults.items()
        }


# --- reading the examples of a split --------------------------------------------------------


def _read_glue(name: str, settings: TaskSettings, split: str, task: Any) -> list[Any]:
    return glue.read_glue(name, settings.folder, split)


def _read_race(settings: TaskSettings, split: str, task: Any) -> list[Any]:
    levels = [
        level
        for level, other_only in (("middle", settings.high_only), ("high", settings.middle_only))
        if not other_only
    ]
    # Without a model the texts aren't used.
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
    examples = conll.read_sentences(settings.file(split), task.classes, split != "test")
    if split != "train":
        task.check_scorable(examples)
    return examples


def _read_questions(settings: TaskSettings, split: str, task: Any) -> list[Any]:
    # The release evaluates on the file that it predicts.
    path = settings.file("test" if split == "dev" and not settings.eval_file else split)
    examples = squad_text.read_squad(path)
    task.check_answers(examples, path, split)
    return examples


# --- the table ------------------------------------------------------------------------------

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
        # As the release reads them.
        lambda _, labels: {"labels": labels, "pairs": row.text_b is not None, "windows": None},
        classes=row.labels,
        key_metric=row.key_metric,
        results_file=f"{row.submission or row.folder}.tsv",
        number_range=row.number_range,
        prefix=f"{name}_" if name in glue.OF_MNLI else "",  # In MNLI's directory.
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
    # Prediction first finds the best checkpoint, as in the release on the file to predict.
    "do_eval": lambda settings: settings.do_predict,
}
# Its softmax over positions includes padding: with less padding the loss changes.
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
    # A file to predict is none to choose the best checkpoint by.
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
    "choice": _CHOICE,
    "question_answering": dataclasses.replace(_SQUAD_V1, heading=_TABLES, variant=_of_your_own),
    "token_classification": TaskRow(
        _WORDS,
        "token_classification.TokenClassificationTask",
        Tag,
        _read_tags,
        lambda _, labels: {"labels": labels},
        lambda settings: conll.find_tags(settings.file("train")),
    ),
}


def of_kind(kind: Kind, settings: Any) -> Any:
    """Returns the task of a kind on data of one's own, without a model; settings are a table's."""
    row = TASKS[kind.task_name]
    classes = row.classes(settings) if callable(row.classes) else getattr(kind, "labels", ())
    return row.task(kind, classes=classes)


def row_of(settings: TaskSettings) -> TaskRow:
    """Returns the row of the task that the settings name."""
    row = TASKS[settings.task_name]
    return row.variant(settings) if row.variant else row


def names_in_help() -> str:
    """Returns a line for --help: the names of all tasks, by heading."""
    groups: dict[str, list[str]] = {}
    for name, row in TASKS.items():
        groups.setdefault(row.heading, []).append(f"{name} ({row.note})" if row.note else name)
    return " ".join(f"{heading}: {', '.join(names)}." for heading, names in groups.items())
