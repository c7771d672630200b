"""Tasks of classes and numbers: the release's metrics; the files, to the letter.

Can't see: whether the leaderboard takes the files.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.tasks.classification import MultipleChoiceTask, SequenceClassificationTask
from albert_tf.tasks.glue import GLUE_TASKS, TextExample
from albert_tf.tasks.race import ChoiceExample
from albert_tf.text.tokenization import Tokenizer
from tests import goldens, tolerances

GLUE_NAME = {"classifier": "mnli", "cola": "cola", "stsb": "sts-b"}


def task_of(name: str, **kwargs) -> SequenceClassificationTask:
    row = GLUE_TASKS[name]
    return SequenceClassificationTask(None, None, 23, row.labels, row.key_metric, **kwargs)


def examples_of(labels) -> list[TextExample]:
    return [TextExample(str(i + 3), "a", None, label) for i, label in enumerate(labels)]


@pytest.mark.parametrize("variant", GLUE_NAME)
def test_scores_are_the_releases(golden, variant):
    """Those of its evaluation, which leaves out the rows that only fill up a batch."""
    folder = golden / "heads" / variant
    inputs = goldens.arrays(folder / "inputs.npz")
    real = inputs["is_real_example"] == 1
    logits = goldens.arrays(folder / "outputs.npz")["logits"][real].reshape(sum(real), -1)
    task = task_of(GLUE_NAME[variant])
    scores = task.scores(examples_of(inputs["label_ids"][real]), task.predictions([], None, logits))
    expected = json.loads((folder / "info.json").read_text())["eval_metrics_of_the_original"]
    for name in ("eval_accuracy", "eval_loss", "matthew_corr", "pearson"):
        if name in expected:
            assert scores[name] == pytest.approx(expected[name], abs=tolerances.LOSS), name
    assert task.key_metric in scores and task.key_metric in expected


def test_a_batch_whose_size_is_not_static_weighs_as_many_as_it_has():
    """As it is among several workers."""
    task = task_of("rte")
    weigh = tf.function(
        lambda ids: task.loss_weights({"input_ids": ids}),
        input_signature=[tf.TensorSpec([None, 23], tf.int32)],
    )
    assert float(weigh(tf.zeros([4, 23], tf.int32))["classification_loss"]) == 4


def test_what_has_no_labels_has_no_scores():
    assert task_of("rte").scores(examples_of([None, None]), np.eye(2)) == {}


def test_macro_f1_is_of_the_classes_that_occur():
    assert task_of("mnli").scores(examples_of([0, 1]), np.eye(3)[:2])["macro_f1"] == 1


def test_scores_of_levels():
    labels = [("high", 0), ("middle", 1), ("high", 2), ("high", 0)]
    examples = [
        ChoiceExample(str(i), "a", ("b", "c", "d"), label, level)
        for i, (level, label) in enumerate(labels)
    ]
    task = MultipleChoiceTask(None, None, 23, "ABC", max_qa_length=5)
    scores = task.scores(examples, np.eye(3)[[0, 2, 1, 0]])
    assert scores["eval_accuracy"] == 0.5
    assert scores["high_accuracy"] == pytest.approx(2 / 3)
    assert scores["middle_accuracy"] == 0
    assert "middle_accuracy" not in task.scores(examples[:1], np.eye(3)[:1])


def test_files_of_classes(tmp_path):
    task = task_of("rte", results_file="RTE.tsv")
    probabilities = np.array([[0.75, 0.25], [0.125, 0.875]])
    task.write(str(tmp_path), "dev", examples_of([0, 1]), probabilities)
    assert [path.name for path in tmp_path.iterdir()] == ["dev_probabilities.json"]
    task.write(str(tmp_path), "test", examples_of([None, None]), probabilities)
    assert (tmp_path / "test_results.tsv").read_text() == "0.75\t0.25\n0.125\t0.875\n"
    assert (tmp_path / "RTE.tsv").read_text() == (
        "index\tprediction\n3\tentailment\n4\tnot_entailment\n"
    )


def test_files_of_numbers_keep_to_the_range(tmp_path):
    task = task_of("sts-b", results_file="STS-B.tsv", number_range=(0.0, 5.0))
    task.write(str(tmp_path), "test", examples_of([None] * 3), np.array([[-0.5], [2.25], [5.5]]))
    assert (tmp_path / "test_results.tsv").read_text() == "-0.5\n2.25\n5.5\n"
    assert (tmp_path / "STS-B.tsv").read_text() == (
        "index\tprediction\n3\t0.000000\n4\t2.250000\n5\t5.000000\n"
    )


def test_averages(tmp_path):
    task, examples = task_of("rte"), examples_of([None, None])
    folders = [str(tmp_path / name) for name in "ab"]
    each = [np.array([[0.75, 0.25], [0.5, 0.5]]), np.array([[0.25, 0.75], [1.0, 0.0]])]
    for folder, probabilities in zip(folders, each, strict=True):
        (tmp_path / folder).mkdir()
        task.write(folder, "test", examples, probabilities)
    np.testing.assert_array_equal(task.average(folders, "test", examples), sum(each) / 2)
    with pytest.raises(ValueError, match="a/test_probabilities.json has other examples"):
        task.average(folders, "test", examples[:1])
    with pytest.raises(FileNotFoundError, match="a/dev_probabilities.json does not exist: run"):
        task.average(folders, "dev", examples)
    task.write(folders[1], "test", examples, np.eye(3)[:2])
    with pytest.raises(ValueError, match="same number of classes"):
        task.average(folders, "test", examples)
    for damaged, message in (
        ("[", " is not JSON"),
        ("[]", ": expected an object whose 'ids' is a list"),
    ):
        (tmp_path / "b" / "test_probabilities.json").write_text(damaged)
        with pytest.raises(ValueError, match=f"b/test_probabilities.json{message}"):
            task.average(folders, "test", examples)


@pytest.mark.parametrize(("name", "dtype"), [("rte", np.int32), ("sts-b", np.float32)])
def test_rows_hold_labels_of_the_right_kind(golden, name, dtype):
    row = GLUE_TASKS[name]
    tokenizer = Tokenizer(golden / "spm/en_small.model")
    task = SequenceClassificationTask(None, tokenizer, 23, row.labels)
    first, second = task.rows([*examples_of([1]), *examples_of([None])], is_training=True)
    assert first["label_ids"].dtype == dtype
    assert (first["label_ids"], second["label_ids"]) == (1, 0)
    assert task.settings["tokenizer"] == tokenizer.digest
    cased = Tokenizer(golden / "spm/en_small.model", do_lower_case=False)
    assert cased.digest != tokenizer.digest
