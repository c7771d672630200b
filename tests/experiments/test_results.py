"""The reports that are committed are those of the committed cells.

Can't see: whether the cells are those of today's code, which is no part of their keys; figures.
"""

from __future__ import annotations

import json

import pytest

from experiments import report, study, tuning
from experiments.plan import Plan

RESULTS = study.HERE / "results"
# Not those of the user's own studies, nor of `smoke`, which are not committed.
REPORTS = [
    path
    for path in (
        RESULTS / scale / name for scale in ("cpu", "gpu") for name in study.names("studies")
    )
    if path.is_dir()
]


@pytest.mark.parametrize("directory", REPORTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_committed_report_is_that_of_its_cells(directory, tmp_path):
    asked, scale = study.read_study(directory.name), study.read_scale(directory.parent.name)
    kept = directory.parent / "cells"
    shown = tuning.reported(asked, scale, kept)
    report.write(shown, scale, Plan(shown, scale), kept, tmp_path)
    for name in ("report.md", "cells.csv"):
        assert (tmp_path / name).read_text() == (directory / name).read_text(), name
    found, expected = (_claims(path) for path in (tmp_path, directory))
    assert found == expected


def _claims(directory):
    """Returns claims.json, of whose numbers the last digits depend on the processor."""
    text = (directory / "claims.json").read_text()
    return json.loads(text, parse_float=lambda number: round(float(number), 9))


@pytest.mark.parametrize(
    "path",
    sorted(RESULTS.glob("cpu/cells/pretrain-*/metrics.json")),
    ids=lambda path: path.parent.name,
)
def test_a_committed_training_went_on_to_its_end(path):
    record = json.loads(path.read_text())
    flags = record["step"]["flags"]
    tokens = flags["num_train_steps"] * flags["train_batch_size"] * flags["max_seq_length"]
    assert record["failed"] or record["curve"][-1][0] == tokens


def test_there_are_reports():
    assert {path.name for path in REPORTS} >= {"objective", "depth", "dropout", "sharing"}
