"""pretraining.json: what a resumed run is warned of, and what an evaluation follows."""

from __future__ import annotations

import json

import pytest

from albert_tf.cli import pretrain_record
from tests import pretraining_runs as runs


def test_an_evaluation_goes_by_what_the_run_was_resumed_with(folder, tmp_path):
    for steps, resumes in ((10, False), (20, True), (10, True), (30, True), (30, True)):
        values = runs.parse(runs.command(folder, output_dir=tmp_path, num_train_steps=steps))
        pretrain_record.keep(values, {"a": 7}, resumes)
        beside = runs.parse(runs.command(folder, output_dir=tmp_path, num_train_steps=None))
        pretrain_record.follow(beside)
        assert beside.num_train_steps == steps
    assert json.loads((tmp_path / "pretraining.json").read_text())["num_train_steps"] == 10


@pytest.mark.parametrize("entry", ["kept", "missing, as of earlier versions"])
def test_a_resumed_run_is_warned_of_records_in_another_order(folder, tmp_path, caplog, entry):
    """In a bucket stretches of 64 MB, not of 32 records, are put in another order."""
    values = runs.parse(runs.command(folder, output_dir=tmp_path))
    pretrain_record.keep(values, {"there/a": 7, "there/b": 8}, resumes=False)
    path = tmp_path / "pretraining.json"
    if entry != "kept":
        begun = json.loads(path.read_text())
        del begun["remote_records"]
        path.write_text(json.dumps(begun))
    pretrain_record.keep(values, {"here/a": 7, "here/b": 8}, resumes=True)
    assert not caplog.messages
    pretrain_record.keep(values, {"here/b": 8, "here/a": 7}, resumes=True)
    assert "started with the records in another order: to start" in caplog.text
    pretrain_record.keep(values, {"gs://there/a": 7, "gs://there/b": 8}, resumes=True)
    assert ("started with remote_records 0, not 2:" in caplog.text) == (entry == "kept")


def test_a_resumed_run_is_warned_of_other_initial_weights(folder, tmp_path, caplog):
    """Unless they are left out, or an earlier version began the run."""
    path = tmp_path / "pretraining.json"
    begun, same, other = (
        runs.parse(runs.command(folder, output_dir=tmp_path, init_checkpoint=name))
        for name in ("hf://a/b", None, "c")
    )
    pretrain_record.keep(begun, {"a": 7}, resumes=False)
    for values in (begun, same):
        pretrain_record.keep(values, {"a": 7}, resumes=True)
    assert not caplog.messages
    pretrain_record.keep(other, {"a": 7}, resumes=True)
    assert "started with init_checkpoint hf://a/b, not c: to start" in caplog.text
    path.write_text(json.dumps({"random_seed": begun.random_seed}))
    caplog.clear()
    pretrain_record.keep(other, {"a": 7}, resumes=True)
    assert not caplog.messages
