"""What evaluation leaves in a directory: the metrics of each checkpoint, and which is the best.

eval_results.txt has a block of lines for each checkpoint, best_trial.txt a line for the best.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

from albert_tf.storage import checkpoint, files

RESULTS_FILE = "eval_results.txt"
TRIAL_FILE = "best_trial.txt"
_RULE = "=" * 50 + "\n"
_STEP = "global_step"
# The line with the key metric of the best checkpoint so far.
BEST = "best"


@dataclasses.dataclass(frozen=True)
class Trial:
    """What is known about a directory's checkpoints: the release's best_trial.txt.

    Attributes:
      last_step: Step of the last checkpoint evaluated.
      best_step: Step of the best checkpoint.
      best_value: Key metric of the best checkpoint.
    """

    last_step: int = -1
    best_step: int = -1
    best_value: float = -1.0

    @classmethod
    def read(cls, directory: str) -> Trial:
        """Reads best_trial.txt; without one, nothing is known.

        Raises:
          ValueError: If the file is not a valid best_trial.txt.
        """
        path = os.path.join(directory, TRIAL_FILE)
        if not files.exists(path):
            return cls()
        content = files.read_bytes(path)
        try:
            last_step, best_step, best_value = content.decode().split(":")
            return cls(int(last_step), int(best_step), _finite(best_value))
        except ValueError:
            raise ValueError(
                f"{path} must be <step>:<best step>:<best value>, not {content!r}: correct it, or "
                "remove the file to let the next best checkpoint replace "
                f"{checkpoint.BASENAME}-best"
            ) from None

    def is_beaten(self, value: float, key_metric: str) -> bool:
        """Whether a value of the key metric is better than the best: larger, or a smaller loss."""
        if self.best_step < 0:
            return math.isfinite(value)
        is_loss = key_metric.endswith("loss")
        return value < self.best_value if is_loss else value > self.best_value

    def write(self, directory: str) -> None:
        """Writes best_trial.txt."""
        text = f"{self.last_step}:{self.best_step}:{self.best_value}"
        files.replace(os.path.join(directory, TRIAL_FILE), text)


def append(path: str, lines: Sequence[str]) -> None:
    """Appends the metrics of a checkpoint to a file.

    If the file ends with metrics of the same step, they are replaced: a killed run left them.
    """
    blocks = [block for block in _blocks(path) if block]
    step = [line for line in lines if line.startswith(f"{_STEP} = ")]
    last = blocks[-1].splitlines() if blocks else []
    # Earlier versions wrote those of pre-training as one block.
    if step and [line for line in last if line.startswith(f"{_STEP} = ")] == step:
        del blocks[-1]
    text = "\n".join(lines) + "\n"
    files.replace(path, "".join(block + _RULE for block in [*blocks, text]))


def read(directory: str, step: int) -> dict[str, float]:
    """Returns the metrics of a step that eval_results.txt in a directory has; {} if there are none.

    Raises:
      ValueError: If the file is damaged.
    """
    return _by_step(directory).get(step, {})


def of_checkpoint(path: str) -> dict[str, float]:
    """Returns the metrics of a stored checkpoint; {} if it was not evaluated where it lies.

    Args:
      path: What `load_weights` takes.

    Raises:
      ValueError: If the files that have them are damaged.
    """
    try:
        prefix = checkpoint.resolve(path)
    except (FileNotFoundError, ValueError):  # Another layout.
        return {}
    directory, step = os.path.dirname(prefix), prefix.rpartition("-")[2]
    if step == checkpoint.BEST:
        step = str(Trial.read(directory).best_step)
    found = read(directory, int(step)) if step.isdigit() else {}
    # That of the best checkpoint so far is no metric of this one.
    return {name: value for name, value in found.items() if name != BEST}


def read_last(directory: str | os.PathLike[str]) -> dict[str, float]:
    """Returns the last value of each metric that eval_results.txt in a directory has."""
    return _metrics(files.read_bytes(os.path.join(directory, RESULTS_FILE)).decode())


def is_over(directory: str, patience: int | None, save_steps: int) -> bool:
    """Whether the last `patience` evaluations were no better than the best; None: never.

    Only scheduled ones count: a run that was stopped in between and goes on ends where it would
    have ended.
    """
    if patience is None:
        return False
    best_step = Trial.read(directory).best_step
    steps = [step for step in _by_step(directory) if is_scheduled(step, save_steps)]
    return sum(step > best_step for step in steps) >= patience


def is_scheduled(step: int, save_steps: int) -> bool:
    """Whether an undisturbed run saves a checkpoint there; a stopped run saves others, too."""
    return step % save_steps == 0


def check_key_metric(directory: str, key_metric: str) -> None:
    """Checks that the best checkpoint so far, if any, was chosen by this metric.

    Raises:
      ValueError: If by eval_results.txt this metric would have chosen another.
    """
    trial, best = Trial.read(directory), Trial()
    for step, metrics in _by_step(directory).items():
        # A killed run may have evaluated a checkpoint without comparing it.
        value = metrics.get(key_metric, math.nan)
        if step <= trial.last_step and best.is_beaten(value, key_metric):
            best = Trial(trial.last_step, step, value)
    if best.best_step >= 0 and best != trial:
        raise ValueError(
            f"the best checkpoint in {directory} was not chosen by `key_metric` {key_metric}: "
            "continue with the metric that the run began with, or use another `output_dir`"
        )


def _by_step(directory: str) -> dict[int, dict[str, float]]:
    """Returns the metrics of each evaluated checkpoint that eval_results.txt has, in its order."""
    path = os.path.join(directory, RESULTS_FILE)
    found: dict[int, dict[str, float]] = {}
    for block in _blocks(path):
        try:
            metrics = _metrics(block)
            # Other blocks are of evaluations of the best alone.
            if _STEP in metrics:
                found.setdefault(int(metrics.pop(_STEP)), metrics)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{path} is damaged ({error}): remove it, or copy it again") from error
    return found


def _metrics(text: str) -> dict[str, float]:
    pairs = [line.split(" = ") for line in text.splitlines() if line.count(" = ") == 1]
    return {name: float(value) for name, value in pairs}


def _blocks(path: str) -> list[str]:
    if not files.is_file(path):
        return []
    return files.read_bytes(path).decode(errors="replace").split(_RULE)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite value")
    return number
