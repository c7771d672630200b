"""Resumes an unfinished pre-training with other flags: each is followed, or named by a refusal."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import re
import shutil
from collections.abc import Callable

from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.storage.run_record import find_run
from tests.kit import pretraining_runs as runs
from tools.campaign import outcomes, processes, programs
from tools.campaign.outcomes import Outcome, Tally
from tools.campaign.processes import Running

SUBJECT = "other flags"
_STEPS, _MORE_STEPS = 3, 5
_MOST_RESUMES = 200
# A refusal of a run that diverged: it did follow the flags.
_DIVERGED = "is not finite"
# The settings that a run records and that need no other files or machines.
_LEFT_OUT = {
    *("albert_config_file", "input_file", "init_checkpoint", "albert_hub_module_handle"),
    *("decay_from", "num_train_steps", "backend", "recipe"),
}
_VALUES = {"int": ("3", "7", "0"), "float": ("0.25", "0.5", "0"), "bool": ("true", "false")}
_VALUES["tuple"] = ("1", "1,0", "x")  # Depths.


def run(tally: Tally, seed: int, folder: pathlib.Path, is_over: Callable[[], bool]) -> None:
    """Resumes copies of one run, until the time is over or _MOST_RESUMES are done."""
    folder.mkdir(parents=True)
    programs.PRETRAINING.make(folder)
    command = {"num_train_steps": _STEPS, "save_checkpoints_steps": 2}
    program = dataclasses.replace(programs.PRETRAINING, main=runs.main)
    first = Running(
        program, runs.command(folder, output_dir=folder / "first", **command), folder / "first.log"
    )
    outcome = processes.judge(first, first.end()).of_intact()
    tally.add(SUBJECT, outcome, "of the first run")
    first_ended = outcome.what == outcomes.FINISHED
    rng = random.Random(seed)
    for _ in range(_MOST_RESUMES * first_ended):
        if is_over():
            return
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folder / "first", out)
        changes = {field.name: _value(field, rng) for field in rng.sample(_fields(), 2)}
        arguments = runs.command(
            folder, **{**command, "output_dir": out, "num_train_steps": _MORE_STEPS, **changes}
        )
        resumed = Running(program, arguments, folder / "out.log")
        outcome = _judge(processes.judge(resumed, resumed.end()), arguments, changes, out)
        tally.add(SUBJECT, outcome, " ".join(f"--{name}={changes[name]}" for name in changes))


def _fields() -> list[dataclasses.Field]:
    return [
        field
        for field in PretrainingSettings.flags()
        if not field.metadata["per_command"] and field.name not in _LEFT_OUT
    ]


def _value(field: dataclasses.Field, rng: random.Random) -> str:
    known = [str(choice) for choice in field.metadata["choices"] or () if choice]
    return rng.choice(known or _VALUES[re.match(r"\w+", field.type)[0]])


def _judge(
    outcome: Outcome, arguments: list[str], changes: dict[str, str], out: pathlib.Path
) -> Outcome:
    if _DIVERGED in outcome.detail:
        outcome = Outcome(outcomes.FINISHED, outcome.detail)
    if outcome.what == outcomes.REFUSED:
        # Changes may contradict other settings: the refusal must name at least one change.
        named = any(re.search(rf"\b{name}\b", outcome.detail) for name in changes)
        return outcome if named else Outcome(outcomes.NAMELESS, outcome.detail)
    if outcome.what != outcomes.FINISHED:
        return outcome
    recorded, asked = find_run(str(out)).settings, runs.parse(arguments).record()
    ignored = [name for name in changes if recorded[name] != asked[name]]
    if ignored:
        return Outcome(outcomes.WRONG, f"without effect: {', '.join(ignored)}")
    return outcome
