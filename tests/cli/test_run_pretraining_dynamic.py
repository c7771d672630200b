"""run_pretraining.py on compact records: it learns, is killed, and shared, as on static ones.

Can't see: a TPU; several machines.
"""

from __future__ import annotations

import pathlib
import re
import signal

import numpy as np
import pytest

from albert_tf.cli import pretrain_flags
from albert_tf.records.masking import MaskingSettings
from albert_tf.records.specs import RowFormat
from tests import pretraining_runs as runs
from tests import tolerances

REPORT = "albert_tf.training.progress.ProgressLog.report"
STATS = ("loss", "masked_lm_loss", "sentence_order_loss", "grad_norm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Two files of records, fewer than six batches of 12, and a config."""
    folder = tmp_path_factory.mktemp("dynamic")
    runs.write_compact_records(folder / "a.tfrecord", runs.compact_examples(41, seed=1))
    runs.write_compact_records(folder / "b.tfrecord", runs.compact_examples(29, seed=2))
    runs.write_config(folder / "albert_config.json")
    return folder


def _results(output_dir: pathlib.Path) -> dict[str, float]:
    text = (output_dir / "eval_results.txt").read_text()
    return {name: float(value) for name, value in re.findall(r"(\w+) = (.*)", text)}


@pytest.mark.parametrize(
    ("changes", "dynamic", "share"),
    [
        ({}, False, None),
        ({"masking": "static"}, False, None),
        ({"masking": "dynamic"}, True, 0.15),
        ({"masked_lm_budget": 0.3}, True, 0.3),
        ({"masking": "dynamic", "masked_lm_budget": 0.3, "ngram": 2}, True, 0.3),
    ],
)
def test_the_budget_of_the_release_is_a_share_of_the_tokens(folder, changes, dynamic, share):
    values = runs.parse(runs.command(folder, **changes))
    pretrain_flags.check_flags(values, runs.config())
    assert pretrain_flags.is_dynamic(values) == dynamic
    settings = pretrain_flags.masking_settings(values, RowFormat(23, 53, 0, 2, 3, 4))
    if dynamic:
        assert settings == MaskingSettings(53, 4, share, 5, ngram=changes.get("ngram", 3))


@pytest.mark.parametrize(("share", "most"), [(None, 4), (0.3, 7)])
def test_no_limit_of_predictions_is_what_a_full_row_needs(folder, share, most):
    changes = {"masking": "dynamic", "max_predictions_per_seq": 0}
    values = runs.parse(runs.command(folder, **changes, masked_lm_budget=share or 0))
    pretrain_flags.check_flags(values, runs.config())
    settings = pretrain_flags.masking_settings(values, RowFormat(23, 53, 0, 2, 3, 4))
    # 0.15 and 0.3 of 23 tokens are 3.45 and 6.9.
    assert settings.max_predictions_per_seq == most


def test_few_predictions_are_warned_of(folder, tmp_path, caplog):
    runs.main(runs.command(folder, output_dir=tmp_path, num_train_steps=1, masked_lm_budget=0.3))
    # 0.3 of 23 tokens are 7, not 5.
    assert "max_predictions_per_seq=5 masks 21.7 % of a full example, not 30.0 %: 7" in caplog.text


def test_it_learns(folder, tmp_path):
    runs.main(
        runs.command(
            folder,
            output_dir=tmp_path,
            masking="dynamic",
            do_permutation=True,
            num_train_steps=40,
            learning_rate=0.03,
        )
    )
    losses = [values["loss"] for values in runs.scalars(tmp_path).values()]
    # Steps of one batch differ by about 0.1.
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.4


def test_killed_shared_and_evaluated_runs_see_the_same_masks(folder, tmp_path):
    """Ten updates over more than one epoch; killed after seven, with a checkpoint at four."""

    def flags(name: str) -> list[str]:
        return runs.command(
            folder,
            output_dir=tmp_path / name,
            masking="dynamic",
            save_checkpoints_steps=4,
            do_eval=True,
        )

    one = runs.start(flags("one"), tmp_path / "one.log")
    two = runs.start(flags("two"), tmp_path / "two.log", cpus=2)
    killed = runs.start(flags("killed"), tmp_path / "killed.log", hold=(REPORT, 7))
    killed.wait_until_held()
    killed.wait_until(lambda: "saved" in killed.log)
    killed.process.kill()
    assert killed.wait() == -signal.SIGKILL
    again = runs.start(flags("killed"), tmp_path / "again.log")
    for run in (one, two, again):
        assert run.wait() == 0, run.log
    assert "resume: step 4 of " in again.log
    assert "MirroredStrategy with 2 replica(s)" in two.log

    expected = runs.tensors(tmp_path / "one/model.ckpt-10")
    resumed = runs.tensors(tmp_path / "killed/model.ckpt-10")
    assert resumed.keys() == expected.keys()
    for name, value in expected.items():
        assert resumed[name].tobytes() == value.tobytes(), name
    assert _results(tmp_path / "killed") == _results(tmp_path / "one")

    stats, theirs = runs.scalars(tmp_path / "one"), runs.scalars(tmp_path / "two")
    assert list(theirs) == list(stats) == list(range(1, 11))
    for step, values in stats.items():
        for stat in STATS:
            difference = abs(theirs[step][stat] - values[stat])
            assert difference <= tolerances.TRAJECTORY_LOSS, (step, stat)
    assert _results(tmp_path / "two") == pytest.approx(
        _results(tmp_path / "one"), abs=tolerances.TRAJECTORY_LOSS
    )
