"""What evaluation leaves in a directory: the metrics of each checkpoint, and which is the best.

eval_results.txt has a block of lines for each checkpoint, best_trial.txt a line for the best.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

from albert_tf import checkpoint, files

RESULTS_FILE = "eval_results.txt"
TRIAL_FILE = "best_trial.txt"
_RULE = "=" * 50 + "\n"
_STEP = "global_step"


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
                f"{path} must be <step>:<best step>:<best value>, not {content!r}: write it so, or "
                f"remove the file if the next best may replace {checkpoint.BASENAME}-best"
            ) from None

    def write(self, directory: str) -> None:
        """Writes best_trial.txt."""
        text = f"{self.last_step}:{self.best_step}:{self.best_value}"
        files.replace(os.path.join(directory, TRIAL_FILE), text)


def append(path: str, lines: Sequence[str]) -> None:
    """Appends the metrics of a checkpoint to a file.

    If the file ends with metrics of the same step, they are replaced: a killed run left them.
    """
    blocks = []
    if files.exists(path):
        blocks = files.read_bytes(path).decode(errors="replace").split(_RULE)[:-1]
    step = [line for line in lines if line.startswith(f"{_STEP} = ")]
    if blocks and step and step[0] in blocks[-1].splitlines():
        del blocks[-1]
    text = "\n".join(lines) + "\n"
    files.replace(path, "".join(block + _RULE for block in [*blocks, text]))


def read(directory: str, step: int) -> dict[str, float]:
    """Returns the metrics of a step that eval_results.txt in a directory has; {} if there are none.

    Raises:
      ValueError: If the file is damaged.
    """
    path = os.path.join(directory, RESULTS_FILE)
    if not files.is_file(path):
        return {}
    for block in files.read_bytes(path).decode(errors="replace").split(_RULE):
        pairs = [line.split(" = ") for line in block.splitlines() if line.count(" = ") == 1]
        try:
            metrics = {name: float(value) for name, value in pairs}
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): remove it, or copy it again") from error
        if metrics.pop(_STEP, None) == step:
            return metrics
    return {}


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no value of a metric")
    return number
