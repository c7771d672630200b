"""run_finetune.py as two processes that train together. Can't see: several machines."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np

from tests import finetune_runs as runs
from tests import tolerances, two_workers

SCRIPT = pathlib.Path(__file__).parents[1] / "run_finetune.py"


def flags(folder: pathlib.Path) -> list[str]:
    """Trains, evaluates two checkpoints and predicts with the better one; without dropout."""
    folder.mkdir()
    return runs.command(
        "mrpc",
        folder,
        albert_config_file=runs.write_config(folder, hidden_dropout_prob=0.0),
        dropout_prob=0.0,
        train_batch_size=4,
        do_train=True,
        do_eval=True,
        do_predict=True,
    )


def test_two_workers_change_nothing(tmp_path):
    together = flags(tmp_path / "together")
    logs = [tmp_path / f"worker{i}.log" for i in range(2)]
    processes = []
    for log, environment in zip(logs, two_workers.environments(), strict=True):
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, SCRIPT, *together],
                env={**os.environ, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        processes.append(process)
    runs.main(flags(tmp_path / "alone"))
    for process, log in zip(processes, logs, strict=True):
        assert process.wait(timeout=300) == 0, log.read_text()
    assert "CollectiveAllReduceStrategy with 2 replica(s)" in logs[1].read_text()

    alone, together = (
        np.loadtxt(tmp_path / folder / "out/test_results.tsv") for folder in ("alone", "together")
    )
    np.testing.assert_allclose(together, alone, rtol=0, atol=tolerances.TRAJECTORY_LOSS)
