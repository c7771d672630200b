"""run_finetune.py on one's own tables: several labels, choices, and the best checkpoint."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.answers.choose import Choose
from albert_tf.cli import run_directory
from albert_tf.conversion import labels as labels_file
from albert_tf.conversion.stored_model import ModelLocation
from albert_tf.serving import served_tasks
from albert_tf.storage import checkpoint
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.question_answering import Predictions
from albert_tf.tasks.squad_text import Answer, SquadExample
from albert_tf.training.evaluation import Trial
from albert_tf.training.tensorflow_devices import TensorFlowDevices
from albert_tf.training.trainer import Trainer
from tests.kit import finetune_runs as runs
from tests.kit import tiny, tolerances
from tests.kit.files import refused

TEXTS = ("the cat sat on the mat", "a dog", "no text is like another", "the end of it, at last")


def write_table(folder: pathlib.Path, labels: tuple[str, ...]) -> dict[str, pathlib.Path]:
    rows = [f'"{text}",{label}' for text, label in zip(TEXTS, labels, strict=True)]
    (folder / "train.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (folder / "test.csv").write_text("\n".join(["text", *(f'"{text}"' for text in TEXTS)]) + "\n")
    files = dict.fromkeys(("train_file", "eval_file"), folder / "train.csv")
    return {**files, "predict_file": folder / "test.csv", "data_dir": None, "train_batch_size": 4}


@pytest.mark.slow
def test_texts_with_several_labels_in_windows(saved, tmp_path, eager):
    files = write_table(tmp_path, ("b|a", "", "c", "a|c"))
    windows = {"windows": "max", "max_seq_length": 8, "doc_stride": 3}
    command = runs.command("multilabel", tmp_path, train_step=2, **files, **windows)
    exported = tmp_path / "exported"
    runs.main([*command, "--do_train", "--do_eval", "--do_predict", f"--export_dir={exported}"])
    out = tmp_path / "out"
    assert labels_file.read(str(out)) == ("a", "b", "c")
    results = (out / "eval_results.txt").read_text()
    for name in ("macro_f1", "mean_average_precision", "micro_f1", "subset_accuracy"):
        assert f"\n{name} = " in results
    shares = np.loadtxt(out / "test_results.tsv")
    assert ((shares > 0) & (shares < 1)).all() and not np.allclose(shares.sum(axis=1), 1)
    joined = ["|".join(np.array(["a", "b", "c"])[row >= 0.5]) for row in shares]
    lines = [f"{i + 2}\t{label}" for i, label in enumerate(joined)]
    assert (out / "predictions.tsv").read_text().splitlines()[1:] == lines
    saved[0].read_texts()
    answers = saved[0].answer_texts(text=tf.constant(TEXTS))
    np.testing.assert_allclose(answers["probabilities"], shares, rtol=0, atol=tolerances.SUBLAYER)
    assert [label.decode() for label in answers["label"].numpy()] == joined
    # A later command needs none of the run's flags: it reads the same files in the same way.
    before = (out / "predictions.tsv").read_bytes()
    again = ["--task_name=multilabel", f"--output_dir={out}", f"--export_dir={tmp_path / 'again'}"]
    runs.main([*again, "--do_predict"])
    assert (out / "predictions.tsv").read_bytes() == before
    assert saved[1].kind == saved[0].kind
    assert {name: getattr(saved[1].kind, name) for name in windows} == windows


@pytest.mark.usefixtures("counted")
def test_choices_are_as_many_as_their_columns_and_cut_anew(tmp_path):
    endings = f"{TEXTS[0]},{TEXTS[1]},{TEXTS[2]}"
    (tmp_path / "train.csv").write_text(f"text,c,b,a,label\nthe end,{endings},1\n")
    files = {"train_file": tmp_path / "train.csv", "predict_file": tmp_path / "train.csv"}
    changes = {"data_dir": None, "choice_columns": "c,b,a", "train_step": 1, "max_seq_length": 23}
    changes["albert_config_file"] = runs.write_config(tmp_path, initializer_range=1.0)
    command = runs.command("choice", tmp_path, **files, **changes, train_batch_size=1)
    runs.main([*command, "--do_train", "--do_predict", "--max_qa_length=9"])
    out = tmp_path / "out"
    served = served_tasks.load_served("choose", ModelLocation(str(out / "model.ckpt-1")), {})
    assert served.kind == Choose(max_seq_length=23, num_choices=3, max_qa_length=9)
    before = np.loadtxt(out / "test_results.tsv")
    # Features that were stored for another length are not reused.
    runs.main([*command, "--do_predict", "--max_qa_length=3"])
    assert np.abs(np.loadtxt(out / "test_results.tsv") - before).max() > 10 * tolerances.OUTPUT


@pytest.mark.slow
@pytest.mark.usefixtures("counted")
def test_a_run_without_progress_ends_early_and_goes_on_with_its_count(tmp_path, caplog):
    """At this rate nothing changes: the first evaluation is the best, and two more are enough."""
    files = write_table(tmp_path, ("a", "b", "a", "a"))
    files["eval_file"] = tmp_path / "dev.csv"  # Class weights ignore this file.
    files["eval_file"].write_text("text,label\nthe cat,b\na dog,b\nthe end,a\n")
    changes = {"learning_rate": 1e-12, "key_metric": "macro_f1", "class_weights": "balanced"}
    changes |= {"early_stopping_patience": 2, "export_dir": tmp_path / "exported"}
    command = runs.command("classification", tmp_path, **files, **changes)
    command += ["--do_train", "--do_eval", "--do_predict"]
    out = tmp_path / "out"
    with caplog.at_level("INFO", logger="absl"):
        # Ends at step 5, as if a signal had stopped it there: that evaluation doesn't count.
        runs.main([*command, "--train_step=5", "--export_dir="])
        assert "class weights: a 0.6667, b 2" in caplog.text
        assert Trial.read(str(out)).last_step == 5 and "stopped early" not in caplog.text
        runs.main([*command, "--train_step=100"])
    assert "stopped early: 2 evaluations without a better macro_f1" in caplog.text
    trial = Trial.read(str(out))
    assert (trial.last_step, trial.best_step) == (6, 2)
    assert f"macro_f1 = {trial.best_value}\n" in (out / "eval_results.txt").read_text()
    best = checkpoint.read(str(out / "model.ckpt-best"))
    assert best["global_step"] == 2
    before = (out / "predictions.tsv").read_text()
    runs.main([*command, "--train_step=100"])
    assert Trial.read(str(out)) == trial
    assert (out / "predictions.tsv").read_text() == before


def test_the_chief_says_whether_a_run_is_over(tmp_path, monkeypatch, caplog):
    """Another worker may see older files, which don't say so yet."""
    files = write_table(tmp_path, ("a", "b", "a", "a"))
    steps = {"do_train": True, "do_eval": True, "early_stopping_patience": 2}
    monkeypatch.setattr(TensorFlowDevices, "of_chief", lambda *_: 1)
    monkeypatch.setattr(Trainer, "train", lambda *_, **__: pytest.fail("it goes on"))
    # Only the chief logs the end, and names a checkpoint that doesn't exist here.
    monkeypatch.setattr(run_directory, "log_end", lambda *_: None)
    with caplog.at_level("INFO", logger="absl"):
        runs.main(runs.command("classification", tmp_path, **files, **steps))
    assert "stopped early: 2 evaluations" in caplog.text


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("classification", {"key_metric": "f2", "do_eval": True}, "--key_metric of class.* must"),
        ("classification", {"class_weights": "c=1"}, "--class_weights must be .* each of a, b"),
        ("regression", {"windows": "max", "text_pair_column": "b"}, "windows reads single texts"),
    ],
)
def test_bad_flags_of_training_are_named(tmp_path, task, changes, message):
    labels = ("1", "2", "1", "1") if task == "regression" else ("a", "b", "a", "a")
    files = {**write_table(tmp_path, labels), "do_train": True}
    with refused(message):
        runs.main(runs.command(task, tmp_path, **files, **changes))


def test_every_metric_that_may_be_named_is_reported():
    texts = [TextExample(str(i), "a", None, label) for i, label in enumerate((0, 1, 1))]
    several = [TextExample(str(i), "a", None, labels) for i, labels in enumerate(((0,), (), (1,)))]
    shares = np.array([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]])
    one, many = (tiny.task(name, classes="ab") for name in ("classification", "multilabel"))
    for task, examples in ((one, texts), (tiny.task("regression"), texts), (many, several)):
        assert set(task.scores(examples, shares)) == set(task.metric_names)
    answer = Answer("cat", 2)
    questions = [SquadExample("1", "who?", "a cat", (answer,), False)]
    found = Predictions({"1": "cat"}, {"1": []}, {"1": -1.0})
    for task in (tiny.task("squad_v1"), tiny.task("squad_v2")):
        assert set(task.metric_names) <= set(task.scores(questions, found))
        assert task.key_metric in task.metric_names
