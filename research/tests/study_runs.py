"""Helpers for studies whose steps are cheap stand-ins for the scripts: plans, records, reports."""

import json
import pathlib
from typing import Any

from research.experiments import report, run, steps, study
from research.experiments.kept import Kept
from research.experiments.plan import Plan
from research.tests import fake_scripts

_FOLDER = fake_scripts.folder(sorted(set(steps.SCRIPTS.values())))
FAKE = pathlib.Path(_FOLDER.name)


def read(folder: pathlib.Path, text: str) -> study.Study:
    """Writes a user's study, and reads it."""
    path = folder / "own.toml"
    path.write_text(text)
    return study.read_study(str(path))


def plan_of(name: object, scale: str = "smoke") -> Plan:
    """Returns the plan of a study, by its name or its file."""
    return Plan(study.read_study(str(name)), study.read_scale(scale))


def kept_keys(plan: Plan) -> set[str]:
    """Returns the steps whose metrics are kept."""
    return {key for cell in plan.cells for key in cell.step_keys()}


def kept_in(folder: pathlib.Path) -> Kept:
    """Returns the records kept in a folder."""
    return Kept(folder / "cells.jsonl")


def run_all(plan: Plan, work: pathlib.Path, kept: Kept | None = None) -> None:
    """Runs all steps of a plan in order, needed or not; keeps metrics as a study does."""
    for key, step in plan.steps.items():
        run.Runner(work, FAKE, 1).run(step, key)
    if kept is not None:
        kept.put(*(run.read_record(work / key) for key in kept_keys(plan)))


def results(work: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Returns, by step, the parts of its record that don't depend on time and machine."""
    found = {}
    kept = ("metrics", "curve", "documents", "failed", "step")
    for path in sorted(work.glob("*/metrics.json")):
        record = json.loads(path.read_text())
        found[record["key"]] = {key: record[key] for key in kept if key in record}
    return found


def keep(kept: Kept, key: str, **changes: Any) -> None:
    """Writes a step's kept record, or changes it."""
    kept.put({**(kept.get(key) or {"key": key, "metrics": {}, "failed": None}), **changes})


def report_of(asked: study.Study, scale: study.Scale, kept: Kept, folder: Any) -> str:
    """Writes a study's report to a folder; returns report.md."""
    report.write(asked, scale, Plan(asked, scale), kept, folder)
    return (folder / "report.md").read_text()
