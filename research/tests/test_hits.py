"""What a fine-tuned model gets right, by group, is what its evaluation counted."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest

from albert_tf.conversion import labels
from albert_tf.tasks import supervised
from albert_tf.tasks.glue import TextExample
from research.experiments import hits, outcomes, run, study
from research.experiments.plan import Plan
from research.experiments.steps import Step
from research.tests.study_runs import keep, kept_in, plan_of, read, report_of, run_all
from tests.kit import finetune_runs as runs
from tests.kit.tiny import parse

STUDY = """
question = "?"
paper = "-"
seeds = 2
[base.finetune]
task_name = "mrpc"
data_dir = "glue"
from_scratch = true
[arms]
low = { finetune = { learning_rate = 1 } }
high = { finetune = { learning_rate = 2 } }
[[claims]]
text = "High is better"
metric = "eval_accuracy"
better = "high"
worse = "low"
effect = 0.1
"""


def measured(command, folder):
    values = parse(hits.HitsSettings, *command, "--do_eval", measures_file=folder / "measures.json")
    hits.main(values)
    return json.loads((folder / "measures.json").read_text())


def test_examples_add_up_to_the_best_checkpoints_accuracy(tmp_path, monkeypatch, eager):
    monkeypatch.setattr("research.experiments.measure._MOST_GROUPS", 3)
    command = runs.command("mrpc", tmp_path)
    runs.main([*command, "--do_train", "--do_eval"])
    found = measured(command, tmp_path)
    (tmp_path / "run").symlink_to(tmp_path / "out")
    step = Step("finetune", {}, {})
    metrics = run._read_results(step, tmp_path)["metrics"]
    best = (tmp_path / "out" / "best_trial.txt").read_text().split(":")
    assert metrics["eval_accuracy"] == float(best[2])
    sums, weights = np.transpose(found["documents"]["eval_accuracy"])
    assert len(sums) == 3 and sums.sum() / weights.sum() == pytest.approx(float(best[2]))
    assert np.ptp(weights) <= 1 and len(set(sums)) > 1


def test_examples_are_counted_by_document(tmp_path):
    rows = [("a", "y", 7), ("b", "n", 7), ("c", "y", 3), ("d", "y", 7)]
    table = "".join(f"{text},{label},{where}\n" for text, label, where in rows)
    (tmp_path / "dev.csv").write_text("text,label,speech\n" + table)
    out = tmp_path / "out"
    out.mkdir()
    labels.write(str(out), ("n", "y"))
    ids = [str(i + 2) for i in range(len(rows))]
    examples = [TextExample(ids[i], text, None, None) for i, (text, *_) in enumerate(rows)]
    sure = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    supervised.write_probabilities(str(out), "dev", ids, examples, sure)
    command = ["--task_name=classification", f"--eval_file={tmp_path}/dev.csv"]
    command += [f"--output_dir={out}", "--document_column=speech"]
    found = measured(command, tmp_path)
    assert found["documents"] == {"eval_accuracy": [[1, 3], [1, 1]]}


def test_a_fine_tuning_without_metrics_is_not_finished(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(RuntimeError, match="run has no metrics of its best checkpoint"):
        run._read_results(Step("finetune", {}, {}), tmp_path)


def test_a_regression_has_no_accuracy(tmp_path):
    assert measured(runs.command("sts-b", tmp_path), tmp_path)["documents"] == {}


def test_a_claim_has_an_interval_over_examples(tmp_path):
    asked, kept = read(tmp_path, STUDY), kept_in(tmp_path)
    plan = Plan(asked, study.read_scale("smoke"))
    rng = np.random.default_rng(3)
    for cell in plan.cells:
        right = rng.integers(3, 8, 20) + 3 * (cell.arm == "high")
        assert not cell.is_finished(kept)
        keep(kept, cell.finetune, metrics={"eval_accuracy": right.sum() / 200})
        documents = {"eval_accuracy": [[int(count), 10] for count in right]}
        keep(kept, cell.measures[""], documents=documents)
        assert cell.is_finished(kept)
    assert plan.missing(kept, tmp_path / "work") == []
    verdict = outcomes.verdict(asked.claims[0], outcomes.read(plan, kept))
    low, high = verdict.over_documents
    assert low < verdict.gain < high and verdict.gain == pytest.approx(0.3, abs=0.1)


def test_a_start_that_has_not_learned_gives_no_verdict(tmp_path):
    """The report also counts runs at the majority's accuracy."""
    asked, scale = study.read_study("era"), study.read_scale("smoke")
    asked = dataclasses.replace(asked, seeds=2)
    scale = dataclasses.replace(scale, most_seeds=2, most_arms=6)
    plan, kept = Plan(asked, scale), kept_in(tmp_path)
    for cell in plan.cells:
        accuracy = 0.4 + 0.01 * cell.seed + 0.3 * cell.arm.startswith("pre-trained")
        keep(kept, cell.finetune, metrics={"eval_accuracy": accuracy})
        documents = {"eval_accuracy": [[accuracy * 10, 10]] * 3}
        keep(kept, cell.measures[""], metrics={"eval_majority": 0.45}, documents=documents)
        for key in cell.unigram.values():
            keep(kept, key, metrics={"unigram_loss": 6.0})
        for key in cell.results.values():
            # The start of seed 2 has not learned.
            keep(kept, key, metrics={"masked_lm_loss": 5.5 + 0.3 * (cell.seed == 2)})
        for key in cell.step_keys():
            keep(kept, key)
    rows = outcomes.read(plan, kept)
    assert {row.seed for row in rows if row.arm == "pre-trained, 3e-4" and row.learned} == {1}
    assert {row.seed for row in rows if row.arm == "from scratch, 3e-4" and row.learned} == {1, 2}
    assert outcomes.verdict(asked.claims[0], rows).pairs == 1
    text = report_of(asked, scale, kept, tmp_path)
    assert "| pre-trained, 3e-4 | 2 of 2 | 0 | 1 | 0 | 0.7150 |" in text
    assert "| from scratch, 3e-4 | 2 of 2 | 0 | 2 | 2 | 0.4150 |" in text


def test_a_fine_tuning_is_run_again_alone(tmp_path):
    """The others of its start are not, nor is the start judged again."""
    plan = plan_of("era")
    work, kept = tmp_path / "work", kept_in(tmp_path)
    run_all(plan, work, kept)
    shutil.rmtree(work)
    first = plan.cells[0]
    kept.discard(first.finetune)
    assert plan.missing(kept, work) == [first.finetune, first.measures[""]]


def test_what_was_tuned_elsewhere_is_tuned_again_to_be_measured(tmp_path):
    plan = Plan(read(tmp_path, STUDY), study.read_scale("smoke"))
    kept, first = kept_in(tmp_path), plan.cells[0]
    keep(kept, first.finetune)
    missing = plan.missing(kept, tmp_path / "work")
    assert {first.finetune, first.measures[""]} <= set(missing) and len(missing) == 8
    needed = plan.steps[first.measures[""]].needs
    assert needed == {"tuned": first.finetune}, "nothing is trained again to count"
