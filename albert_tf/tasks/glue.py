"""GLUE: a table of its tasks, and the reader of their files."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping

from absl import logging

from albert_tf.storage import files
from albert_tf.storage.text_files import finite_number, named_cells, tab_rows

_ID_COLUMNS = ("index", "id")
_SPLITS = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """The files and columns of a task."""

    folder: str  # The task's folder within GLUE's.
    text_a: str  # Column of the text.
    text_b: str | None = None  # Column of the second text, or None.
    label: str = "label"  # Column of the label.
    # The classes in the order of their ids; empty for a regression.
    labels: tuple[str, ...] = ("0", "1")
    # Split ("train", "dev", "test") -> name of its file. Test files have no labels.
    files: Mapping[str, str] = dataclasses.field(default_factory=lambda: _SPLITS)
    # Split whose file has no header -> the names of its columns.
    headless: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # Whether rows with missing cells are skipped; if not, they are errors.
    skips_short_rows: bool = False
    # The metric that checkpoints are compared by, under the release's name.
    key_metric: str = "eval_accuracy"
    # The leaderboard's name for the task; None if it is the folder's.
    submission: str | None = None
    # The range of numbers that the leaderboard takes for a regression.
    number_range: tuple[float, float] = (-math.inf, math.inf)


_NLI = ("contradiction", "entailment", "neutral")
_ENTAILS = ("entailment", "not_entailment")
_COLA = ("source", "label", "mark", "sentence")


def _mnli(genre: str) -> dict[str, str]:
    return {"train": "train.tsv", "dev": f"dev_{genre}.tsv", "test": f"test_{genre}.tsv"}


_SENTENCES = ("sentence1", "sentence2")

# Source: classifier_utils.py, the eleven subclasses of DataProcessor.
# Differs: the release finds columns by number; here they are found by the header's names.
GLUE_TASKS: Mapping[str, GlueTask] = {
    "cola": GlueTask(
        "CoLA", "sentence", headless={"train": _COLA, "dev": _COLA}, key_metric="matthew_corr"
    ),
    "mnli": GlueTask(
        "MNLI", *_SENTENCES, "gold_label", _NLI, _mnli("matched"), submission="MNLI-m"
    ),
    "mismnli": GlueTask(
        "MNLI", *_SENTENCES, "gold_label", _NLI, _mnli("mismatched"), submission="MNLI-mm"
    ),
    "mrpc": GlueTask("MRPC", "#1 String", "#2 String", "Quality"),
    "qnli": GlueTask("QNLI", "question", "sentence", labels=_ENTAILS),
    "qqp": GlueTask("QQP", "question1", "question2", "is_duplicate", skips_short_rows=True),
    "rte": GlueTask("RTE", *_SENTENCES, labels=_ENTAILS),
    "sst-2": GlueTask("SST-2", "sentence"),
    "sts-b": GlueTask(
        "STS-B", *_SENTENCES, "score", labels=(), key_metric="pearson", number_range=(0.0, 5.0)
    ),
    "wnli": GlueTask("WNLI", *_SENTENCES),
    "ax": GlueTask(
        "diagnostic", *_SENTENCES, labels=_NLI, files={"test": "diagnostic.tsv"}, submission="AX"
    ),
}

# Tasks without training data, to evaluate and predict with a model trained on MNLI.
OF_MNLI = ("mismnli", "ax")


@dataclasses.dataclass(frozen=True)
class TextExample:
    """A text, or a pair of texts, to classify."""

    guid: str  # Its id: the index in its file, or the number of its line.
    text_a: str  # Raw text; may be empty.
    text_b: str | None  # The second text, or None.
    # Id of the class, ids of several classes, or a regression's number; None if unknown.
    label: int | float | tuple[int, ...] | None


def are_two(first: str, second: str) -> bool:
    """Whether two names belong to different GLUE tasks; mismnli and ax count as mnli."""
    runs = ["mnli" if name in OF_MNLI else name for name in (first, second) if name in GLUE_TASKS]
    return len(set(runs)) == 2


def read_glue(task_name: str, data_dir: str | os.PathLike[str], split: str) -> list[TextExample]:
    """Reads a split, "train", "dev" or "test", of a task in GLUE_TASKS.

    `data_dir` is the folder of GLUE, which holds a folder for each task.

    Source: classifier_utils.py, DataProcessor.
    """
    task = GLUE_TASKS[task_name]
    if split not in task.files:
        raise ValueError(f"task {task_name} has no {split} split, only {', '.join(task.files)}")
    path = os.path.join(data_dir, task.folder, task.files[split])
    # The columns that the split's file must have.
    wanted = [task.text_a, *([task.text_b] if task.text_b else [])]
    if split != "test":
        wanted.append(task.label)
    examples: list[TextExample] = []
    lines: dict[str, int] = {}
    files.check_file(path)
    columns = task.headless.get(split)
    for number, row in named_cells(tab_rows(path), path, wanted, columns, task.skips_short_rows):
        named = [row[name] for name in _ID_COLUMNS if name in row]
        # The release counts lines from 0, including the header.
        guid = named[0] if named else f"{split}-{number - 1}"
        # Predictions are written by id: a second one would hide the first.
        if guid in lines:
            raise ValueError(f"{path}:{number}: id {guid!r} is already used in line {lines[guid]}")
        lines[guid] = number
        examples.append(
            TextExample(
                guid=guid,
                text_a=row[task.text_a],
                text_b=row[task.text_b] if task.text_b else None,
                label=None if split == "test" else _label(task, row[task.label], path, number),
            )
        )
    if not examples:
        raise ValueError(f"{path} has no examples")
    # Keep them: scores can only be compared on the same examples.
    empty = sum(not example.text_a.strip() for example in examples)
    if empty:
        logging.warning("%s: %d examples have an empty text; they are kept", path, empty)
    return examples


def _label(task: GlueTask, text: str, path: str, line: int) -> int | float:
    if not task.labels:
        return finite_number(text, f"{path}:{line}")
    label = text.strip().lower()
    if label not in task.labels:
        raise ValueError(f"{path}:{line}: label {text!r} is not one of {', '.join(task.labels)}")
    return task.labels.index(label)
