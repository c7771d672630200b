"""Two workers, one of which is lost: the other must exit, and say which."""

from __future__ import annotations

import json
import pathlib
import signal

from tests import two_workers
from tools.campaign import outcomes, processes, programs
from tools.campaign.outcomes import Outcome, Tally
from tools.campaign.processes import Program, Running

_SECONDS = 180.0


def run(tally: Tally, folder: pathlib.Path) -> None:
    """Kills the first of two workers, then the second.

    Args:
      tally: Receives the outcomes.
      folder: An empty folder.
    """
    inputs = folder / "inputs"
    inputs.mkdir(parents=True)
    programs.PRETRAINING.make(inputs)
    for lost in range(2):
        out = folder / f"out{lost}"
        tally.add("a lost worker", _lose(programs.PRETRAINING, inputs, out, lost), f"({lost})")


def _lose(program: Program, inputs: pathlib.Path, out: pathlib.Path, lost: int) -> Outcome:
    # Would run far too long: only the loss ends it.
    flags = [*program.arguments(inputs, out), "--num_train_steps=1000000"]
    environments = two_workers.environments()
    running = [
        Running(program, flags, out.parent / f"lost{lost}-{i}.log", env)
        for i, env in enumerate(environments)
    ]
    trains = running[0].wait_until(lambda: any(out.glob("model.ckpt-*.index")), _SECONDS)
    running[lost].signal(signal.SIGKILL)
    running[lost].end()
    outcome = processes.judge(running[1 - lost], running[1 - lost].end(_SECONDS))
    if not trains:
        return Outcome(outcomes.HANG, "two workers wrote no checkpoint")
    if outcome.what == outcomes.FINISHED:
        return Outcome(outcomes.WRONG, "the other worker ended without an error")
    address = json.loads(environments[0]["TF_CONFIG"])["cluster"]["worker"][lost]
    if outcome.what == outcomes.REFUSED and address not in outcome.detail:
        return Outcome(outcomes.NAMELESS, outcome.detail)
    return outcome
