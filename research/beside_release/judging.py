"""Has one evaluator judge all runs, each of them once."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Run = TypeVar("Run")


def judge(
    directories: Mapping[Run, pathlib.Path],
    name: str,
    evaluator: Callable[[Run], contextlib.AbstractContextManager[Callable[[Run], Any]]],
) -> dict[Run, Any]:
    """Returns what is measured of each run, as JSON has it.

    Args:
      directories: Of the runs.
      name: A file's name; what it tells in a run's directory is not measured again.
      evaluator: Made of the first run that is to be measured; yields what measures a run.
    """
    found = {}
    with contextlib.ExitStack() as held:
        measure = None
        for run, directory in directories.items():
            kept = directory / name
            if not kept.exists():
                measure = measure or held.enter_context(evaluator(run))
                kept.write_text(json.dumps(measure(run), indent=1) + "\n", encoding="utf-8")
            found[run] = json.loads(kept.read_text(encoding="utf-8"))
    return found
