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
    """Returns each run's measurements, as read from JSON.

    Args:
      directories: The runs'.
      name: The file in a run's directory that keeps its measurements; they are not repeated.
      evaluator: Takes the first run that is to be measured; yields a function that measures one.
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
