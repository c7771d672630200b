"""Texts with any number of labels: their cells, features, loss, scores and files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from albert_tf.tasks import feature_table, metrics, table
from albert_tf.tasks.classification import MultiLabelTask
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.table import TableColumns
from albert_tf.text.tokenization import Tokenizer
from albert_tf.training import length_buckets
from tests import tolerances

COLUMNS = TableColumns()
LABELS = ("art", "law", "war")
# The labels of four examples, and the probabilities given to them.
TARGETS = [(0, 2), (), (0,), (1, 2)]
PROBABILITIES = np.array([[0.9, 0.1, 0.6], [0.2, 0.5, 0.1], [0.9, 0.4, 0.3], [0.3, 0.2, 0.8]])


def examples_of(targets) -> list[TextExample]:
    return [TextExample(str(i + 2), "a b", None, ids) for i, ids in enumerate(targets)]


@pytest.fixture
def task(golden) -> MultiLabelTask:
    tokenizer = Tokenizer(golden / "spm/en_small.model")
    return MultiLabelTask(None, tokenizer, 23, LABELS, "micro_f1")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "text,label\na b,war|art\na b,\na b,art| art |\na b, law|war\n"),
        ("t.tsv", "label\ttext\nwar|art\ta b\n\ta b\nart\ta b\nwar|law\ta b\n"),
    ],
)
def test_a_cell_holds_any_number_of_labels(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    assert table.find_labels(str(path), COLUMNS, several=True) == LABELS
    assert table.read_texts(str(path), COLUMNS, LABELS, several=True) == examples_of(TARGETS)


def test_a_list_of_labels_is_as_good_as_their_text(tmp_path):
    path = tmp_path / "t.jsonl"
    labels = (["war", "art"], None, "art", ["law", "war"])
    path.write_text("\n".join(json.dumps({"text": "a b", "label": label}) for label in labels))
    examples = table.read_texts(str(path), COLUMNS, LABELS, several=True)
    assert [each.label for each in examples] == TARGETS
    path.write_text('{"text": "a"}')
    with pytest.raises(ValueError, match="t.jsonl:1: expected a value for 'label'"):
        table.read_texts(str(path), COLUMNS, LABELS, several=True)


def test_labels_in_lists_may_be_numbers(tmp_path):
    path = tmp_path / "t.jsonl"
    rows = ({"text": "a", "label": [0, 3]}, {"text": "b", "label": [3]}, {"text": 5, "label": []})
    path.write_text("\n".join(map(json.dumps, rows)))
    assert table.find_labels(str(path), COLUMNS, several=True) == ("0", "3")
    examples = table.read_texts(str(path), COLUMNS, ("0", "3"), several=True)
    assert [each.label for each in examples] == [(0, 1), (1,), ()]
    assert examples[2].text_a == "5"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": ["a", "b"], "label": "x"}, "column 'text': expected text or a number, got .\"a"),
        ({"text": {"a": 1}, "label": "x"}, "column 'text': expected text or a number, got {.a"),
        ({"text": "a", "label": [["x"]]}, "column 'label': expected text or a number, got .\"x"),
        ({"text": "a", "label": ["x|y"]}, r"a label in a list must not contain \|, got 'x\|y'"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, row, message):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"text": "a", "label": ["x", "z"]}) + "\n" + json.dumps(row))
    with pytest.raises(ValueError, match=f"t.jsonl:2: .*{message}"):
        table.find_labels(str(path), COLUMNS, several=True)


def test_labels_that_do_not_do(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,label\na,art|what\n")
    with pytest.raises(ValueError, match="t.csv:2: label 'what' is not one of those trained on: "):
        table.read_texts(str(path), COLUMNS, LABELS, several=True)
    for cell, message in (("|", "no label"), ("art|", "only one label: 'art'")):
        path.write_text(f"text,label\na,{cell}\n")
        with pytest.raises(
            ValueError, match=f"t.csv: expected .* in column 'label', got {message}"
        ):
            table.find_labels(str(path), COLUMNS, several=True)


def test_rows_hold_all_labels_and_survive_the_cache(task, tmp_path):
    examples = [*examples_of(TARGETS), TextExample("9", "a longer text", None, None)]
    stem = str(tmp_path / "features")
    for _ in range(2):
        features = feature_table.load_or_make_features(
            examples, lambda each: task.rows(each, True), task.settings, stem
        )
        expected = [[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0]]
        np.testing.assert_array_equal(features.scalars["label_targets"], expected)
    plan = length_buckets.evaluation_batches(features.lengths, 5, (23,))
    (input_fn,) = features.evaluation_inputs(plan)
    (batch,) = input_fn(_one_host())
    assert batch["label_targets"].shape == (5, 3)
    assert task.settings["num_labels"] == 3


def _one_host():
    import tensorflow as tf

    return tf.distribute.InputContext()


def test_the_loss_is_keras_binary_cross_entropy(task):
    import keras

    logits = np.random.default_rng(0).normal(0, 3, (4, 3)).astype(np.float32)
    targets = np.stack([task.label(example) for example in examples_of(TARGETS)])
    losses = task.example_losses(logits, {"label_targets": targets})["classification_loss"]
    expected = keras.losses.BinaryCrossentropy(from_logits=True)(targets, logits)
    np.testing.assert_allclose(np.mean(losses), expected, rtol=tolerances.LOSS)
    probabilities = task.predictions([], None, logits)
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits.astype(np.float64))))
    stored = task.scores(examples_of(TARGETS), probabilities)["eval_loss"]
    np.testing.assert_allclose(stored, expected, rtol=tolerances.LOSS)


def test_scores(task):
    """Chosen: art and war, law, art, war. Of six labels and decisions each, four agree."""
    scores = task.scores(examples_of(TARGETS), PROBABILITIES)
    assert scores["micro_f1"] == pytest.approx(2 * 4 / (5 + 5))
    assert scores["macro_f1"] == pytest.approx((1 + 0 + 1) / 3)
    assert scores["subset_accuracy"] == 0.5
    # law is third of four, the others' are first.
    assert scores["mean_average_precision"] == pytest.approx((1 + 1 / 3 + 1) / 3)
    assert task.scores(examples_of([None]), PROBABILITIES[:1]) == {}


def test_equal_scores_are_ranked_together():
    labels = np.array([[1], [0], [1], [0]], bool)
    scores = np.array([[0.5], [0.5], [0.25], [0.125]])
    found = metrics.mean_average_precision(labels, scores)
    assert found == pytest.approx(0.5 * 1 / 2 + 0.5 * 2 / 3)
    assert metrics.mean_average_precision(labels[1::2], scores[1::2]) == 0.0
    absent = np.hstack([labels, np.zeros_like(labels)])
    assert metrics.mean_average_precision(absent, np.hstack([scores] * 2)) == found


def test_files(task, tmp_path):
    features = FeatureTable.from_rows(task.rows(examples_of(TARGETS), False))
    assert len(features.lengths) == 4
    task.write(str(tmp_path), "test", examples_of(TARGETS), PROBABILITIES)
    assert (tmp_path / "predictions.tsv").read_text() == (
        "index\tprediction\n2\tart|war\n3\tlaw\n4\tart\n5\twar\n"
    )
    assert (tmp_path / "test_results.tsv").read_text().splitlines()[0] == "0.9\t0.1\t0.6"
