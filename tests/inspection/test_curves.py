"""albert-inspect curve: what a run wrote, what a resume repeated, and what is no run.

Not tested here: whether the figure is drawn well.
"""

import csv
import functools
import io
import os

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.cli import inspect as commands
from albert_tf.inspection import curves
from albert_tf.storage import eval_results
from albert_tf.storage.run_record import find_run
from tests.kit import pretraining_runs as runs
from tests.kit.files import refused
from tests.kit.tiny import parse


def write(folder, number: int, values: dict[int, float], name: str = "loss") -> None:
    """Writes a file of events, the number-th of its run."""
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default():
        for step, value in values.items():
            tf.summary.scalar(name, value, step)
    writer.close()
    (made,) = (path for path in folder.iterdir() if "tfevents.1" in path.name)
    made.rename(folder / f"events.out.tfevents.0{number}")


def test_a_runs_losses_rates_and_held_out_losses(museum, tmp_path):
    out = museum("pretrained") / "out"
    given = {"runs": str(out), "output_dir": str(tmp_path / "curve")}
    commands.curve(parse(commands.CurveSettings, **given))
    assert (tmp_path / "curve/curve.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "curve/curve.csv").read_text())))
    settings = find_run(str(out)).settings
    tokens = settings["train_batch_size"] * runs.LENGTH
    assert all(int(row["tokens"]) == tokens * int(row["step"]) for row in rows)
    by_name = {
        name: [r for r in rows if r["series"] == name] for name in {r["series"] for r in rows}
    }
    assert {*runs.STATS, "tokens_per_second"} <= by_name.keys()
    assert [int(row["step"]) for row in by_name["loss"]] == [1, 2, 3]
    parts = [by_name[name][-1]["value"] for name in ("masked_lm_loss", "sentence_order_loss")]
    assert float(by_name["loss"][-1]["value"]) == pytest.approx(sum(map(float, parts)), rel=1e-6)
    for name, value in eval_results.read_last(str(out)).items():
        if name != "global_step":
            assert float(by_name[f"held-out {name}"][-1]["value"]) == pytest.approx(value, rel=1e-6)


def test_fine_tuning_is_drawn_over_steps(museum, tmp_path):
    given = {"runs": str(museum("mrpc") / "out"), "output_dir": str(tmp_path / "curve")}
    commands.curve(parse(commands.CurveSettings, **given))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "curve/curve.csv").read_text())))
    assert {row["tokens"] for row in rows} == {""}
    assert [row["step"] for row in rows if row["series"] == "held-out eval_loss"] == ["2", "4"]


def test_what_a_resume_has_repeated_counts_once(tmp_path, monkeypatch):
    backwards = functools.partial(sorted, reverse=True)  # Folders may be listed in any order.
    monkeypatch.setattr(tf.io.gfile, "listdir", lambda folder: backwards(os.listdir(folder)))
    write(tmp_path, 1, {1: 9.0, 2: 8.0, 3: 7.0, 4: 6.0})
    write(tmp_path, 2, {3: 7.5, 5: 5.0})  # Resumed from the checkpoint of step 2.
    os.truncate(
        tmp_path / "events.out.tfevents.02",
        os.path.getsize(tmp_path / "events.out.tfevents.02") - 3,
    )
    run = curves.read(str(tmp_path))
    assert run.tokens_per_step is None and run.losses == ("loss", "held-out eval_loss")
    np.testing.assert_array_equal(run.series["loss"], [[1, 9], [2, 8], [3, 7.5]])


def test_what_is_no_run(tmp_path):
    given = {"runs": str(tmp_path / "none"), "output_dir": str(tmp_path / "curve")}
    with refused("none has no events of a training", tmp_path):
        commands.curve(parse(commands.CurveSettings, **given))
