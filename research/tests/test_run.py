"""A step leaves its metrics once; curves don't depend on where a run was killed."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.storage import eval_results
from research.experiments import claims, outcomes, run, study, unigram
from research.experiments.plan import Plan
from research.experiments.steps import ROOT, Step
from research.tests.study_runs import (
    FAKE,
    keep,
    kept_in,
    plan_of,
    read,
    report_of,
    results,
    run_all,
)
from tests.kit import pretraining_runs as runs


@pytest.fixture(scope="module")
def plan():
    return plan_of("dropout")


@pytest.fixture(scope="module")
def done(plan, tmp_path_factory):
    work, kept = tmp_path_factory.mktemp("work"), kept_in(tmp_path_factory.mktemp("kept"))
    run_all(plan, work, kept)
    return work, kept


def test_metrics_tell_how_they_were_made(plan, done):
    record = json.loads((done[0] / plan.cells[0].results[""] / "metrics.json").read_text())
    assert record["metrics"]["masked_lm_loss"] < 6
    assert record["command"].startswith("python run_pretraining.py --")
    assert f"--output_dir={done[0] / record['key']}/run" in record["command"]
    assert record["machine"]["threads"] == 1 and record["machine"]["processor"]
    assert {"python", "tensorflow", "keras"} <= set(record["versions"])
    assert record["seconds"] >= 0


def test_a_finished_step_is_left_alone(plan, done):
    paths = sorted(done[0].glob("*/metrics.json"))
    before = [(path.stat().st_mtime_ns, path.read_bytes()) for path in paths]
    run_all(plan, done[0])
    assert before == [(path.stat().st_mtime_ns, path.read_bytes()) for path in paths]


def test_the_report_of_known_losses(plan, done, tmp_path):
    """The fake arm with dropout 0.1 loses 0.015 / (step + seed) each step, the other 0.02."""
    steps = plan.settings("with dropout")["pretrain"]["num_train_steps"]
    asked, scale = study.read_study("dropout"), study.read_scale("smoke")
    text = report_of(asked, scale, done[1], tmp_path)
    found = json.loads((tmp_path / "claims.json").read_text())[0]
    gains = [sum(0.005 / (i + seed) for i in range(1, steps + 1)) for seed in (1, 2)]
    assert found["gain"] == pytest.approx(sum(gains) / 2, rel=1e-4)
    assert found["pairs"] == 2 and found["paper"]["numbers"] == [90.7, 90.4]
    assert "Least within the effect | **agrees**, smaller than the effect |" in text
    # The fake arms differ equally in all documents: only the seeds' spread is left.
    np.testing.assert_allclose(found["over_documents"], [found["low"], found["high"]], rtol=5e-3)
    assert "no figure here is a result" in text
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "cells.csv").read_text().splitlines()) == 5


def test_a_claim_can_be_about_guessing(plan, done):
    rows = [
        dataclasses.replace(
            row,
            metrics={"a.probe_accuracy": 0.6 + 0.01 * row.seed, "a.sentence_order_majority": 0.5},
        )
        for row in outcomes.read(plan, done[1])
    ]
    claim = claims.Claim("", "a.probe_accuracy", "with dropout", claims.MAJORITY, 0.05)
    found = outcomes.verdict(claim, rows)
    assert found.pairs == 2 and found.gain == pytest.approx(0.115)
    assert found.over_documents is None


def test_the_unigram_loss_by_hand(tmp_path):
    """Fitted on one text, with one added to each count, and judged on the other."""
    loss = unigram.cross_entropy(np.array([3, 1, 0]), np.array([0, 2, 2]))
    assert loss == pytest.approx(-(2 * np.log(2 / 7) + 2 * np.log(1 / 7)) / 4)
    longer = unigram.cross_entropy(np.array([1]), np.array([0, 1]))
    assert longer == pytest.approx(-np.log(1 / 3))
    rows = runs.examples(7)
    runs.write_records(tmp_path / "a.tfrecord", rows)
    pieces = [row["masked_lm_ids"][row["masked_lm_weights"] > 0] for row in rows]
    found = unigram.count_pieces(str(tmp_path / "a.tfrecord"), runs.LENGTH, runs.PREDICTIONS)
    assert found.tolist() == np.bincount(np.concatenate(pieces)).tolist()
    # Without masks all pieces count.
    rows = runs.compact_examples(7)
    runs.write_records(tmp_path / "b.tfrecord", rows)
    found = unigram.count_pieces(str(tmp_path / "b.tfrecord"), runs.LENGTH, 0)
    pieces = [row["token_ids"] for row in rows]
    assert found.tolist() == np.bincount(np.concatenate(pieces)).tolist()


def test_one_process_runs_a_step_and_another_waits_for_it(plan, done, tmp_path):
    key, step = next(iter(plan.steps.items()))
    (tmp_path / key).mkdir()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(); input()"
    command = [sys.executable, "-c", hold, str(tmp_path / key / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as held:
        held.stdout.readline()
        waiting = threading.Thread(target=run.Runner(tmp_path, FAKE, 1).run, args=(step, key))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive() and not (tmp_path / key / "metrics.json").exists()
        held.communicate(b"\n")
        waiting.join(60)
    assert (tmp_path / key / "metrics.json").exists()


def test_a_claim_of_what_no_finetuning_measured_is_named(plan, done):
    rows = [dataclasses.replace(row, finetuned=True) for row in outcomes.read(plan, done[1])]
    claim = study.read_study("dropout").claims[0]
    assert outcomes.verdict(claim, rows).pairs == 2
    with pytest.raises(ValueError, match="metric: expected one of .*'masked_lm_loss'.*, not"):
        outcomes.verdict(dataclasses.replace(claim, metric="eval_los"), rows)


TUNING = """
question = "?"
paper = "-"
seeds = 5
[base.finetune]
from_scratch = true
train_file = "a"
[arms]
high = { finetune = { learning_rate = 1e-3 } }
low = { finetune = { learning_rate = 1e-5 } }
"""


@pytest.mark.parametrize("metric, best", [("eval_loss", "high"), ("eval_accuracy", "low")])
def test_a_report_on_fine_tuning_names_the_best(tmp_path, metric, best):
    """Without claims the measured metrics count; for losses the lowest is best."""
    asked, scale = read(tmp_path, TUNING), study.read_scale("smoke")
    kept = kept_in(tmp_path)
    for cell in Plan(asked, scale).cells:
        value = {"high": 0.2, "low": 0.8}[cell.arm]
        keep(kept, cell.finetune, metrics={metric: value, "global_step": 3}, seconds=1)
    text = report_of(asked, scale, kept, tmp_path)
    assert f"## Runs: `{metric}`" in text and "global_step" not in text
    assert f"Best median, selected on the same runs: {best}." in text


@pytest.mark.parametrize("metric", ["eval_loss", "eval_accuracy"])
def test_a_rate_at_which_most_runs_diverge_is_not_the_best(tmp_path, metric):
    """Three of five diverge: the median is a run that diverged."""
    claim = f'[[claims]]\ntext = ""\nmetric = "{metric}"\n'
    claim += 'better = "high"\nworse = "low"\neffect = 1\n'
    asked, scale = read(tmp_path, TUNING + claim), study.read_scale("cpu")
    kept = kept_in(tmp_path)
    for cell in Plan(asked, scale).cells:
        diverged = cell.arm == "high" and cell.seed > 2
        value = {"high": 0.9, "low": 0.7}[cell.arm] * (-1 if metric.endswith("loss") else 1)
        failed = "step 1 is not finite" if diverged else None
        for key in cell.step_keys():
            keep(kept, key, failed=failed)
        metrics = {} if diverged else {metric: value + 0.01 * cell.seed}
        keep(kept, cell.finetune, metrics=metrics, seconds=1)
    text = report_of(asked, scale, kept, tmp_path)
    assert "Best median, selected on the same runs: low." in text
    (row,) = [line for line in text.splitlines() if line.startswith("| high | 5 of 5 | 3 |")]
    assert row.split(" | ")[5] == "diverged"
    assert f"| `{metric}` | 2, 3 diverged |" in text


def test_the_report_tells_how_many_learned_and_when_and_with_which_code(plan, done, tmp_path):
    """The unigram loss is 7: a curve below 6.7 has learned."""
    run_all(plan, done[0], kept := kept_in(tmp_path))
    curves = iter([[[2048, 6.8], [4096, 6.6]], [[2048, 6.8], [4096, 6.71]]])
    for cell in plan.cells[:2]:
        keep(kept, cell.pretrain, curve=next(curves), commit=f"seed{cell.seed}")
    keep(kept, plan.cells[1].results[""], metrics={"masked_lm_loss": 6.71})
    asked, scale = study.read_study("dropout"), study.read_scale("smoke")
    text = report_of(asked, scale, kept, tmp_path / "report")
    assert "| without dropout | 2 of 2 | 0 | 1 | 40,960 | 4,096 | 7.000 |" in text
    (line,) = [line for line in text.splitlines() if line.startswith("Commit: ")]
    assert line.endswith("seed1; seed2.")


def test_a_diverged_run_is_a_result(tmp_path):
    text = 'question = "?"\npaper = "-"\nseeds = 1\n[arms]\n'
    asked = read(tmp_path, text + "hot = { pretrain = { learning_rate = 2 } }\n")
    plan = Plan(asked, study.read_scale("smoke"))
    run_all(plan, tmp_path / "work", kept := kept_in(tmp_path))
    (row,) = outcomes.read(plan, kept)
    assert "not finite" in row.failed and not row.learned and not row.metrics
    judged = results(tmp_path / "work")[plan.cells[0].results[""]]
    assert judged["failed"] == "its trained failed"


@pytest.mark.parametrize(
    "line",
    [
        "I1 trainer.py:1] stopped at step 3: the same command resumes from there",
        "I1 stop_signals.py:1] stopped by SIGTERM, with nothing new to save: the same command "
        "continues",
    ],
)
def test_a_run_that_a_signal_stopped_is_not_finished(plan, tmp_path, line):
    """It ends with exit code 0, before its last step; started again, it goes on."""
    step = plan.steps[plan.cells[0].pretrain]
    (tmp_path / "run_pretraining.py").write_text(f"print({line!r})\n")
    with pytest.raises(run.StepError, match="stopped: .*stopped "):
        run.Runner(tmp_path, tmp_path, 1).run(dataclasses.replace(step, needs={}), "key")
    assert not (tmp_path / "key/metrics.json").exists()


def test_a_model_of_masked_lm_alone_is_judged_on_orders_too(tmp_path, eager):
    """Its run.json gives orders the weight 0, which an evaluation in its directory would use."""
    runs.write_config(tmp_path / "albert_config.json", num_hidden_layers=1)
    runs.write_records(tmp_path / "a.tfrecord", runs.examples(12))
    short = {"num_train_steps": 1, "num_warmup_steps": 0}
    train = {"output_dir": tmp_path / "trained/run", "sentence_order_weight": 0, **short}
    runs.main(runs.command(tmp_path, **train))
    judged = tmp_path / "judged"
    run._prepare(Step("evaluate", {}, {}), judged, {"trained": tmp_path / "trained"})
    evaluate = {"output_dir": judged / "run", "do_train": "false", "do_eval": "true", **short}
    runs.main(runs.command(tmp_path, **evaluate))
    assert "sentence_order_accuracy" in eval_results.read_last(judged / "run")


def write_events(directory, points):
    with tf.summary.create_file_writer(str(directory)).as_default() as writer:
        for step, loss in points:
            tf.summary.scalar("masked_lm_loss", loss, step=step)
        writer.flush()


def test_a_curve_does_not_depend_on_where_a_run_was_killed(tmp_path):
    """Steps 1 to 10, saved every 4, have losses 12, 11, ...; points are means since the last."""
    flags = {"save_checkpoints_steps": 4, "train_batch_size": 3, "max_seq_length": 5}
    loss = {step: 13.0 - step for step in range(1, 13)}

    def mean(first, last):
        return sum(loss[step] for step in range(first, last + 1)) / (last + 1 - first)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    write_events(whole, [(1, loss[1]), (4, mean(2, 4)), (8, mean(5, 8)), (10, mean(9, 10))])
    # Killed after step 7, and again after step 5.
    write_events(killed, [(1, loss[1]), (3, mean(2, 3)), (4, loss[4]), (7, mean(5, 7))])
    write_events(killed, [(5, loss[5])])
    write_events(killed, [(5, loss[5]), (8, mean(6, 8)), (10, mean(9, 10))])
    expected = [[60, mean(1, 4)], [120, mean(5, 8)], [150, mean(9, 10)]]
    assert run.read_curve(whole, flags) == expected
    assert run.read_curve(killed, flags) == expected


def test_the_curve_of_a_branch_has_its_own_tokens(tmp_path):
    """A branch off step 4885 takes steps 4886 to 4905, saved every 10 steps."""
    flags = {"save_checkpoints_steps": 10, "train_batch_size": 3, "max_seq_length": 5}
    write_events(tmp_path, [(4886, 7.0), (4900, 6.5), (4905, 6.0)])
    expected = [[5 * 15, (7 + 4 * 6.5) / 5], [15 * 15, 6.5], [20 * 15, 6.0]]
    assert run.read_curve(tmp_path, flags) == expected


def test_paths_of_a_command_are_relative_to_the_clone(plan):
    step = plan.steps[plan.cells[0].pretrain]
    directories = {
        "out": ROOT / "research/experiments/work/a",
        "records": pathlib.Path("/elsewhere/b"),
    }
    command = run._command(step, directories)
    assert "--output_dir=research/experiments/work/a/run" in command
    assert "--input_file=/elsewhere/b/records.tfrecord" in command
