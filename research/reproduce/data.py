"""The tasks, and their data: on disk, or from the Hugging Face Hub."""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from albert_tf.storage import hub
from albert_tf.storage.parquet_files import ParquetFile
from albert_tf.tasks.glue import GLUE_TASKS
from albert_tf.tasks.race import LEVELS

_GLUE = "hf://datasets/nyu-mll/glue"


@dataclasses.dataclass(frozen=True)
class Task:
    """The data of a task's runs, and the scores that were published."""

    recipe: str  # {} stands for the weights' version.
    scores: Mapping[str, str]  # A column of release.csv -> the metric.
    data_set: str  # On the Hub.
    folder: str  # Holds its .parquet files there.
    version: str = ""  # SQuAD's, in the names of its files.
    of_test: bool = False  # Whether the scores are of the test set, else of the dev set.

    @property
    def patterns(self) -> dict[str, str]:
        """The files on the Hub, by split."""
        splits = {"train": "train", "dev": "validation"}
        splits |= {"test": "test"} if self.of_test else {}
        return {split: f"{self.folder}/{name}-*.parquet" for split, name in splits.items()}


def _glue(recipe: str, name: str) -> Task:
    return Task(recipe, {name: GLUE_TASKS[recipe].key_metric}, _GLUE, name)


def _squad(version: str, metrics: tuple[str, str], data_set: str, folder: str) -> Task:
    columns = (f"squad{version[1]}_f1", f"squad{version[1]}_em")
    scores = dict(zip(columns, metrics, strict=True))
    return Task(f"squad_{version[:2]}", scores, data_set, folder, version)


TASKS: Mapping[str, Task] = {
    "cola": _glue("cola", "cola"),
    "mrpc": _glue("mrpc", "mrpc"),
    "rte": _glue("rte", "rte"),
    "sst2": _glue("sst-2", "sst2"),
    "stsb": _glue("sts-b", "stsb"),
    "squad_v1": _squad(
        "v1.1", ("f1", "exact_match"), "hf://datasets/rajpurkar/squad", "plain_text"
    ),
    "squad_v2": _squad(
        "v2.0", ("best_f1", "best_exact"), "hf://datasets/rajpurkar/squad_v2", "squad_v2"
    ),
    "race": Task(
        "race_{}", {"race": "eval_accuracy"}, "hf://datasets/ehovy/race", "all", of_test=True
    ),
}


def on_disk(task: Task, folder: str) -> list[str]:
    """Returns the flags of albert-finetune that name a task's data in a folder."""
    if not task.version:
        return [f"--data_dir={folder}"]
    return _flags_of(*(os.path.join(folder, f"{n}-{task.version}.json") for n in ("train", "dev")))


def _flags_of(train: str, dev: str) -> list[str]:
    return [f"--train_file={train}", f"--predict_file={dev}"]


def fetch(task: Task, folder: pathlib.Path) -> list[str]:
    """Downloads a task's data, and returns the flags that name them.

    SQuAD's files are read as they are; others are written to `folder` in the benchmark's format.
    """
    there = hub.fetch(task.data_set, list(task.patterns.values()))
    found = {split: sorted(glob.glob(f"{there}/{each}")) for split, each in task.patterns.items()}
    if missing := [task.patterns[split] for split, paths in found.items() if not paths]:
        raise FileNotFoundError(f"{task.data_set} has no {missing[0]}: set DATA to other copies")
    if task.version:
        return _flags_of(found["train"][0], found["dev"][0])
    for split, paths in found.items():
        if task.data_set == _GLUE:
            _write_glue(task.recipe, split, _rows(paths), folder)
        else:
            _write_race(_rows(paths), folder / "RACE" / split)
    return on_disk(task, str(folder))


def _rows(paths: Sequence[str]) -> Iterable[dict[str, Any]]:
    for path in paths:
        with ParquetFile(path) as table:
            yield from (row for _, row in table.rows(table.columns))


def _write_glue(recipe: str, split: str, rows: Iterable[dict], folder: pathlib.Path) -> None:
    """Writes a split's file with the columns that are read."""
    task = GLUE_TASKS[recipe]
    path = folder / task.folder / task.files[split]
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [name for name in (task.text_a, task.text_b, task.label) if name]
    written = task.headless.get(split, columns)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        if split not in task.headless:
            print(*written, sep="\t", file=file)
        for row in rows:
            texts = [row[n] for n in ("sentence", "sentence1", "sentence2") if n in row]
            label = task.labels[row["label"]] if task.labels else f"{row['label']:.7g}"
            cells = dict(zip(columns, [*texts, label], strict=True))
            print(*(cells.get(name, "") for name in written), sep="\t", file=file)


def _write_race(rows: Iterable[dict], folder: pathlib.Path) -> None:
    """Writes a split's questions to an all.txt for each level, one passage per line."""
    passages: dict[str, dict[str, Any]] = {}
    for row in rows:
        new = {"id": row["example_id"], "article": row["article"]}
        new |= {"questions": [], "options": [], "answers": []}
        passage = passages.setdefault(row["example_id"], new)
        passage["questions"].append(row["question"])
        passage["options"].append(row["options"])
        passage["answers"].append(row["answer"])
    lines: dict[str, list[str]] = {level: [] for level in LEVELS}
    for name, passage in passages.items():  # Named after its original file: high1.txt.
        level = name.rstrip(".tx0123456789")
        if level not in lines:
            raise ValueError(f"passage {name!r} is of none of the levels {', '.join(LEVELS)}")
        lines[level].append(json.dumps(passage) + "\n")
    for level in LEVELS:
        (folder / level).mkdir(parents=True, exist_ok=True)
        (folder / level / "all.txt").write_text("".join(lines[level]), encoding="utf-8")
