"""Evaluation results in a directory: the metrics of each checkpoint, and the best checkpoint.

eval_results.jsonl has a line for each evaluation of a checkpoint; decisions use this file alone.
eval_results.txt and best_trial.txt are the release's.

Example:
    >>> add(".", Evaluation(2, "f1", {"f1": 0.5}, is_best=True), ["f1 = 0.5"])
    >>> add(".", Evaluation(4, "f1", {"f1": 0.25}), ["f1 = 0.25"])
    >>> Trial.read(".")
    Trial(last_step=4, best_step=2, best_value=0.5)
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from albert_tf.storage import checkpoint, files
from albert_tf.storage.text_files import json_lines, json_member

RECORD_FILE = "eval_results.jsonl"
RESULTS_FILE, TRIAL_FILE = "eval_results.txt", "best_trial.txt"
FILES = (RECORD_FILE, RESULTS_FILE, TRIAL_FILE)
_RULE = "=" * 50 + "\n"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluation of a checkpoint."""

    step: int
    key_metric: str  # The metric by which checkpoints are compared.
    metrics: Mapping[str, float]
    is_best: bool = False  # Whether it was the best so far, and became model.ckpt-best.


@dataclasses.dataclass(frozen=True)
class Trial:
    """The last and the best checkpoint evaluated, as in the release's best_trial.txt."""

    last_step: int = -1  # The last checkpoint evaluated.
    best_step: int = -1
    best_value: float = -1.0  # The best checkpoint's key metric.

    @classmethod
    def read(cls, directory: str, key_metric: str | None = None) -> Trial:
        """Reads a directory's trial; `key_metric` is by default that of the last evaluation."""
        return cls._of(read_all(directory), key_metric)

    @classmethod
    def _of(cls, evaluations: Sequence[Evaluation], key_metric: str | None = None) -> Trial:
        if not evaluations:
            return cls()
        last = evaluations[-1]
        best = next((each for each in reversed(evaluations) if each.is_best), None)
        if best is None:
            return cls(last.step)
        value = best.metrics.get(key_metric or last.key_metric, math.nan)
        return cls(last.step, best.step, float(value))

    def is_beaten(self, value: float, key_metric: str) -> bool:
        """Whether a value of the key metric beats the best: larger or, for a loss, smaller."""
        if self.best_step < 0 or not math.isfinite(self.best_value):
            return math.isfinite(value)
        is_loss = key_metric.endswith("loss")
        return value < self.best_value if is_loss else value > self.best_value


def add(directory: str, evaluation: Evaluation, lines: Sequence[str]) -> None:
    """Adds an evaluation to a directory's files.

    The line in eval_results.jsonl is written last, in one rename, and it alone counts: a run that
    was killed before evaluates the checkpoint again; one that was killed after does not.

    Args:
      directory: The run's.
      evaluation: What to add.
      lines: The text for eval_results.txt.
    """
    metrics = {name: float(value) for name, value in evaluation.metrics.items()}
    evaluations = [*read_all(directory), dataclasses.replace(evaluation, metrics=metrics)]
    trial = Trial._of(evaluations)
    # Write the release's two files first, and the one that counts last.
    append_text(os.path.join(directory, RESULTS_FILE), lines)
    text = f"{trial.last_step}:{trial.best_step}:{trial.best_value}"
    files.replace(os.path.join(directory, TRIAL_FILE), text)
    records = [json.dumps(dataclasses.asdict(each)) + "\n" for each in evaluations]
    files.replace(os.path.join(directory, RECORD_FILE), "".join(records))


def append_text(path: str, lines: Sequence[str]) -> None:
    """Appends a block of lines with a rule below it.

    If the last block has the same `global_step`, a killed run left it: it is replaced.
    """
    before = files.read_bytes(path).decode(errors="replace") if files.is_file(path) else ""
    # The rule ends a block, so the text after the last one is empty.
    blocks = [block for block in before.split(_RULE) if block]
    steps = {line for line in lines if line.startswith("global_step = ")}
    if blocks and steps & set(blocks[-1].splitlines()):
        del blocks[-1]
    text = "\n".join(lines) + "\n"
    files.replace(path, "".join(block + _RULE for block in [*blocks, text]))


def read_all(directory: str | os.PathLike[str]) -> list[Evaluation]:
    """Returns the evaluations of a directory's checkpoints, in their order."""
    path = os.path.join(directory, RECORD_FILE)
    if not files.is_file(path):
        return []
    return [_evaluation(line, f"{path}:{number}") for number, line in json_lines(path)]


def _evaluation(line: Mapping[str, Any], where: str) -> Evaluation:
    types = {"step": int, "key_metric": str, "metrics": dict, "is_best": bool}
    members = {name: json_member(line, name, where, each) for name, each in types.items()}
    metrics = members["metrics"]
    members["metrics"] = {name: json_member(metrics, name, where, float) for name in metrics}
    return Evaluation(**members)


def read(directory: str, step: int) -> dict[str, float]:
    """Returns the metrics of a step; {} if its checkpoint was not evaluated."""
    found = [each for each in read_all(directory) if each.step == step]
    return dict(found[-1].metrics) if found else {}


def of_checkpoint(path: str) -> dict[str, float]:
    """Returns the metrics of stored weights; {} if their directory has none."""
    try:
        prefix = checkpoint.resolve(path)
    except (FileNotFoundError, ValueError):  # The weights are stored in another layout.
        return {}
    directory, step = os.path.dirname(prefix), prefix.rpartition("-")[2]
    if step == checkpoint.BEST:
        step = str(Trial.read(directory).best_step)
    return read(directory, int(step)) if step.isdigit() else {}


def read_last(directory: str | os.PathLike[str]) -> dict[str, float]:
    """Returns the last evaluation's metrics and `global_step`; {} if there is none."""
    evaluations = read_all(directory)
    if not evaluations:
        return {}
    return {"global_step": evaluations[-1].step, **evaluations[-1].metrics}


def is_over(directory: str, patience: int | None, save_steps: int) -> bool:
    """Whether `patience` evaluations have passed since the best one; with None, never.

    Only scheduled evaluations count, so that a run that was stopped and continued ends at the same
    step as one that was not.
    """
    if patience is None:
        return False
    evaluations = read_all(directory)
    best_step = Trial._of(evaluations).best_step
    steps = {each.step for each in evaluations if is_scheduled(each.step, save_steps)}
    return sum(step > best_step for step in steps) >= patience


def is_scheduled(step: int, save_steps: int) -> bool:
    """Whether a run saves a checkpoint at a step even if it is not stopped there."""
    return step % save_steps == 0
