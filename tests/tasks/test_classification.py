"""Tasks of classes and numbers: metrics of the release, files, weights, windows, several labels.

Not tested here: whether the leaderboard takes the files.
"""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.tasks import classification, feature_table
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample
from albert_tf.training import length_buckets
from tests.kit import goldens, tiny, tolerances

GLUE_NAME = {"classifier": "mnli", "cola": "cola", "stsb": "sts-b"}


def examples_of(labels) -> list[TextExample]:
    return [TextExample(str(i + 3), "a b", None, label) for i, label in enumerate(labels)]


@pytest.mark.parametrize("variant", GLUE_NAME)
def test_scores_are_the_releases(golden, variant):
    """The release's evaluation leaves out the rows that only fill up a batch."""
    folder = golden / "heads" / variant
    inputs = goldens.arrays(folder / "inputs.npz")
    real = inputs["is_real_example"] == 1
    assert not real.all()
    logits = goldens.arrays(folder / "outputs.npz")["logits"][real].reshape(sum(real), -1)
    task = tiny.task(GLUE_NAME[variant])
    scores = task.scores(examples_of(inputs["label_ids"][real]), task.kind.shares(logits, ()))
    expected = json.loads((folder / "info.json").read_text())["eval_metrics_of_the_original"]
    shared = scores.keys() & expected.keys()
    assert shared >= {task.key_metric, "eval_loss"}
    for name in shared:
        limit = tolerances.LOSS if name == "eval_loss" else tolerances.METRIC
        assert scores[name] == pytest.approx(expected[name], abs=limit), name


def test_a_batch_whose_size_is_not_static_weighs_as_many_as_it_has():
    """With several workers, the size of a batch is not static."""
    weigh = tf.function(lambda ids: tiny.task("rte").loss_weights({"input_ids": ids}))
    weigh = weigh.get_concrete_function(tf.TensorSpec([None, 23], tf.int32))
    assert float(weigh(tf.zeros([4, 23], tf.int32))["classification_loss"]) == 4


def test_scores_need_labels_and_macro_f1_is_of_the_classes_that_occur():
    assert tiny.task("rte").scores(examples_of([None, None]), np.eye(2)) == {}
    assert tiny.task("mnli").scores(examples_of([0, 1]), np.eye(3)[:2])["macro_f1"] == 1


def test_scores_of_levels():
    labels = [("high", 0), ("middle", 1), ("high", 2), ("high", 0)]
    examples = [ChoiceExample("1", "a", ("b", "c", "d"), label, level) for level, label in labels]
    task = tiny.task("choice", classes="ABC")
    scores = task.scores(examples, np.eye(3)[[0, 2, 1, 0]])
    assert scores["eval_accuracy"] == 0.5
    assert scores["high_accuracy"] == pytest.approx(2 / 3)
    assert scores["middle_accuracy"] == 0
    assert "middle_accuracy" not in task.scores(examples[:1], np.eye(3)[:1])


@pytest.mark.parametrize(
    ("name", "predictions", "results", "submission"),
    [
        ("rte", [[0.75, 0.25], [0.125, 0.875]], "0.75\t0.25\n0.125\t0.875\n",
         "RTE.tsv: 3\tentailment\n4\tnot_entailment\n"),
        # Clipped to the range that the leaderboard takes.
        ("sts-b", [[-0.5], [2.25], [5.5]], "-0.5\n2.25\n5.5\n",
         "STS-B.tsv: 3\t0.000000\n4\t2.250000\n5\t5.000000\n"),
    ],
)  # fmt: skip
def test_files(tmp_path, name, predictions, results, submission):
    task, examples = tiny.task(name), examples_of([None] * len(predictions))
    task.write(str(tmp_path), "dev", examples, np.array(predictions))
    assert [path.name for path in tmp_path.iterdir()] == ["dev_probabilities.json"]
    task.write(str(tmp_path), "test", examples, np.array(predictions))
    assert (tmp_path / "test_results.tsv").read_text() == results
    file, _, rows = submission.partition(": ")
    assert (tmp_path / file).read_text() == "index\tprediction\n" + rows


def test_averages(tmp_path):
    task, examples = tiny.task("rte"), examples_of([None, None])
    folders = [str(tmp_path / name) for name in "ab"]
    each = [np.array([[0.75, 0.25], [0.5, 0.5]]), np.array([[0.25, 0.75], [1.0, 0.0]])]
    for folder, probabilities in zip(folders, each, strict=True):
        pathlib.Path(folder).mkdir()
        task.write(folder, "test", examples, probabilities)
    np.testing.assert_array_equal(task.average(folders, "test", examples), sum(each) / 2)
    with pytest.raises(ValueError, match="a/test_probabilities.json has other examples"):
        task.average(folders, "test", examples[:1])
    with pytest.raises(FileNotFoundError, match="a/dev_probabilities.json"):
        task.average(folders, "dev", examples)
    task.write(folders[1], "test", examples, np.eye(3)[:2])
    with pytest.raises(ValueError, match="number of classes"):
        task.average(folders, "test", examples)


CLASSES = ("a", "b=c", "d")


@pytest.mark.parametrize(
    ("text", "classes", "labels", "expected"),
    [
        ("balanced", CLASSES, [0, 0, 0, 1, 2, 2], [6 / 9, 6 / 3, 6 / 6]),
        # A class without examples changes nothing for the others.
        ("balanced", CLASSES, [0, 0, 0, 2], [4 / 6, 2.0, 4 / 2]),
        ("d=2, b=c=.5", CLASSES, [0], [1.0, 0.5, 2.0]),
        ("J.=3, Smith, J.=2,b,=1=.5", ("Smith, J.", "b,=1", "J."), [0], [2.0, 0.5, 3.0]),
    ],
)
def test_weights(text, classes, labels, expected):
    found = classification.parse_class_weights(text, classes, labels)
    np.testing.assert_allclose(found, expected)


def test_the_loss_is_that_of_keras_class_weight():
    """Class weights multiply the losses, but not the number of examples that divides their sum."""
    task = tiny.task("classification", classes=CLASSES)
    task.class_weights = np.array([0.25, 3.0, 1.5], np.float32)
    logits = np.random.default_rng(0).normal(0, 2, (6, 3)).astype(np.float32)
    labels = np.array([0, 1, 2, 2, 0, 0], np.int32)
    features = {"input_ids": np.zeros((6, 9), np.int32), "label_ids": labels}
    (total,) = task.loss_sums(logits, features).values()
    (weight,) = task.loss_weights(features).values()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    expected = loss(labels, logits, sample_weight=task.class_weights[labels])
    np.testing.assert_allclose(total / weight, expected, rtol=1e-6)
    assert abs(loss(labels, logits) - expected) > 1e-3


LENGTH, STRIDE = 12, 4
LONG = "the cat sat on the mat. " * 6


def task_of_windows(tokenizer, windows, name="classification", classes=("a", "b"), stride=STRIDE):
    given = {"windows": windows, "doc_stride": stride, "max_seq_length": LENGTH}
    return tiny.task(name, tokenizer, classes, **given)


@pytest.mark.parametrize("text", ["", "a cat", "the cat sat on the"])
def test_a_text_that_fits_is_the_same_as_without_windows(tokenizer, text):
    example = TextExample("2", text, None, 1)
    (plain,) = task_of_windows(tokenizer, None).rows([example], True)
    (row,) = task_of_windows(tokenizer, "max").rows([example], True)
    assert row.pop("example_index") == 0
    np.testing.assert_equal(row, plain)


def test_predictions_are_a_texts_own(tokenizer):
    """The second of three texts has several windows; the others have one."""
    examples = [TextExample(str(i), text, None, 1) for i, text in enumerate(("a", LONG, "b"))]
    rows = task_of_windows(tokenizer, "max").rows(examples, True)
    features = FeatureTable.from_rows(rows)
    index = features.scalars["example_index"]
    assert index[0] == 0 and index[-1] == 2 and np.sum(index == 1) > 3
    assert features.scalars["label_ids"].tolist() == [1] * len(index)
    logits = np.random.default_rng(0).normal(0, 2, (len(index), 2))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for name, classes, outputs, values in (
        ("classification", "ab", logits, shares),
        ("regression", (), logits[:, :1], logits[:, :1]),
        ("multilabel", "ab", logits, 1 / (1 + np.exp(-logits))),
    ):
        for windows in ("mean", "max"):
            task = task_of_windows(tokenizer, windows, name, classes)
            expected = [getattr(np, windows)(values[index == i], axis=0) for i in range(3)]
            found = task.predictions(examples, features, outputs)
            np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_features_are_stored_for_each_stride_and_not_for_each_combination(tokenizer):
    plain, mean, most = (task_of_windows(tokenizer, x).settings for x in (None, "mean", "max"))
    assert mean == most == {**plain, "window_doc_stride": STRIDE}
    assert task_of_windows(tokenizer, "mean", stride=STRIDE + 1).settings != mean


# The labels of four examples, and the probabilities given to them.
TARGETS = [(0, 2), (), (0,), (1, 2)]
PROBABILITIES = np.array([[0.9, 0.1, 0.6], [0.2, 0.5, 0.1], [0.9, 0.4, 0.3], [0.3, 0.2, 0.8]])


@pytest.fixture
def task(tokenizer):
    return tiny.task("multilabel", tokenizer, ("art", "law", "war"), max_seq_length=23)


def test_rows_hold_all_labels_and_survive_the_cache(task, tmp_path):
    examples = [*examples_of(TARGETS), TextExample("9", "a longer text", None, None)]
    stem = str(tmp_path / "features")
    for _ in range(2):
        parts = examples, lambda each: task.rows(each, True), task.settings, stem
        features = feature_table.load_or_make_features(*parts)
        expected = [[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0]]
        np.testing.assert_array_equal(features.scalars["label_targets"], expected)
    plan = length_buckets.evaluation_batches(features.lengths, 5, (23,))
    (input_fn,) = features.evaluation_inputs(plan)
    (batch,) = input_fn(tf.distribute.InputContext())
    assert batch["label_targets"].shape == (5, 3)
    assert task.settings["num_labels"] == 3


def test_the_loss_is_keras_binary_cross_entropy(task):
    logits = np.random.default_rng(0).normal(0, 3, (4, 3)).astype(np.float32)
    targets = np.stack([task.label(example) for example in examples_of(TARGETS)])
    losses = task.example_losses(logits, {"label_targets": targets})["classification_loss"]
    expected = keras.losses.BinaryCrossentropy(from_logits=True)(targets, logits)
    np.testing.assert_allclose(np.mean(losses), expected, rtol=tolerances.LOSS)
    probabilities = task.kind.shares(logits, ())
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits.astype(np.float64))))
    stored = task.scores(examples_of(TARGETS), probabilities)["eval_loss"]
    np.testing.assert_allclose(stored, expected, rtol=tolerances.LOSS)


def test_scores_and_files_of_several_labels(task, tmp_path):
    """Predicted: art and war, law, art, war. Of five true and five predicted labels, four agree."""
    examples = examples_of(TARGETS)
    scores = task.scores(examples, PROBABILITIES)
    assert scores["micro_f1"] == pytest.approx(2 * 4 / (5 + 5))
    assert scores["macro_f1"] == pytest.approx((1 + 0 + 1) / 3)
    assert scores["subset_accuracy"] == 0.5
    # The true text ranks third of four for law; for art and war, the true texts rank first.
    assert scores["mean_average_precision"] == pytest.approx((1 + 1 / 3 + 1) / 3)
    assert task.scores(examples_of([None]), PROBABILITIES[:1]) == {}
    task.write(str(tmp_path), "test", examples, PROBABILITIES)
    text = (tmp_path / "predictions.tsv").read_text()
    assert text == "index\tprediction\n3\tart|war\n4\tlaw\n5\tart\n6\twar\n"
    assert (tmp_path / "test_results.tsv").read_text().splitlines()[0] == "0.9\t0.1\t0.6"
