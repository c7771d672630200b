"""Tasks of classes and numbers: metrics of the release, files, weights, windows, several labels.

Can't see: whether the leaderboard takes the files.
"""

import dataclasses
import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.tasks import classification, feature_table, metrics, table
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample
from albert_tf.tasks.table import TableSettings
from albert_tf.text.tokenization import Tokenizer
from albert_tf.training import length_buckets
from tests import goldens, tiny, tolerances

GLUE_NAME = {"classifier": "mnli", "cola": "cola", "stsb": "sts-b"}


def examples_of(labels) -> list[TextExample]:
    return [TextExample(str(i + 3), "a", None, label) for i, label in enumerate(labels)]


@pytest.mark.parametrize("variant", GLUE_NAME)
def test_scores_are_the_releases(golden, variant):
    """Those of its evaluation, which leaves out the rows that only fill up a batch."""
    folder = golden / "heads" / variant
    inputs = goldens.arrays(folder / "inputs.npz")
    real = inputs["is_real_example"] == 1
    logits = goldens.arrays(folder / "outputs.npz")["logits"][real].reshape(sum(real), -1)
    task = tiny.task(GLUE_NAME[variant])
    scores = task.scores(examples_of(inputs["label_ids"][real]), task.kind.shares(logits, ()))
    expected = json.loads((folder / "info.json").read_text())["eval_metrics_of_the_original"]
    for name in ("eval_accuracy", "eval_loss", "matthew_corr", "pearson"):
        if name in expected:
            assert scores[name] == pytest.approx(expected[name], abs=tolerances.LOSS), name
    assert task.key_metric in scores and task.key_metric in expected


def test_a_batch_whose_size_is_not_static_weighs_as_many_as_it_has():
    """As it is among several workers."""
    task = tiny.task("rte")
    weigh = tf.function(
        lambda ids: task.loss_weights({"input_ids": ids}),
        input_signature=[tf.TensorSpec([None, 23], tf.int32)],
    )
    assert float(weigh(tf.zeros([4, 23], tf.int32))["classification_loss"]) == 4


def test_what_has_no_labels_has_no_scores():
    assert tiny.task("rte").scores(examples_of([None, None]), np.eye(2)) == {}


def test_macro_f1_is_of_the_classes_that_occur():
    assert tiny.task("mnli").scores(examples_of([0, 1]), np.eye(3)[:2])["macro_f1"] == 1


def test_scores_of_levels():
    labels = [("high", 0), ("middle", 1), ("high", 2), ("high", 0)]
    examples = [
        ChoiceExample(str(i), "a", ("b", "c", "d"), label, level)
        for i, (level, label) in enumerate(labels)
    ]
    task = tiny.task("choice", classes="ABC")
    scores = task.scores(examples, np.eye(3)[[0, 2, 1, 0]])
    assert scores["eval_accuracy"] == 0.5
    assert scores["high_accuracy"] == pytest.approx(2 / 3)
    assert scores["middle_accuracy"] == 0
    assert "middle_accuracy" not in task.scores(examples[:1], np.eye(3)[:1])


def test_files_of_classes(tmp_path):
    task = tiny.task("rte")
    probabilities = np.array([[0.75, 0.25], [0.125, 0.875]])
    task.write(str(tmp_path), "dev", examples_of([0, 1]), probabilities)
    assert [path.name for path in tmp_path.iterdir()] == ["dev_probabilities.json"]
    task.write(str(tmp_path), "test", examples_of([None, None]), probabilities)
    assert (tmp_path / "test_results.tsv").read_text() == "0.75\t0.25\n0.125\t0.875\n"
    assert (tmp_path / "RTE.tsv").read_text() == (
        "index\tprediction\n3\tentailment\n4\tnot_entailment\n"
    )


def test_files_of_numbers_keep_to_the_range(tmp_path):
    task = tiny.task("sts-b")
    task.write(str(tmp_path), "test", examples_of([None] * 3), np.array([[-0.5], [2.25], [5.5]]))
    assert (tmp_path / "test_results.tsv").read_text() == "-0.5\n2.25\n5.5\n"
    assert (tmp_path / "STS-B.tsv").read_text() == (
        "index\tprediction\n3\t0.000000\n4\t2.250000\n5\t5.000000\n"
    )


def test_averages(tmp_path):
    task, examples = tiny.task("rte"), examples_of([None, None])
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


@pytest.mark.parametrize(("name", "dtype"), [("rte", np.int32), ("sts-b", np.float32)])
def test_rows_hold_labels_of_the_right_kind(golden, tokenizer, name, dtype):
    task = tiny.task(name, tokenizer)
    first, second = task.rows([*examples_of([1]), *examples_of([None])], is_training=True)
    assert first["label_ids"].dtype == dtype
    assert (first["label_ids"], second["label_ids"]) == (1, 0)
    assert task.settings["tokenizer"] == tokenizer.digest
    cased = Tokenizer(golden / "spm/en_small.model", do_lower_case=False)
    assert cased.digest != tokenizer.digest


CLASSES = ("a", "b=c", "d")
WEIGHTS = {0: 0.25, 1: 3.0, 2: 1.5}


def test_balanced_weights_are_inverse_to_the_counts():
    found = classification.parse_class_weights("balanced", CLASSES, [0, 0, 0, 1, 2, 2])
    np.testing.assert_allclose(found, [6 / 9, 6 / 3, 6 / 6])
    # A class without examples changes nothing for the others.
    found = classification.parse_class_weights("balanced", CLASSES, [0, 0, 0, 2])
    np.testing.assert_allclose(found[[0, 2]], [4 / 6, 4 / 2])


def test_named_weights():
    found = classification.parse_class_weights("d=2, b=c=.5", CLASSES, [0])
    assert found.tolist() == [1.0, 0.5, 2.0]
    with_commas = ("Smith, J.", "b,=1", "J.")
    found = classification.parse_class_weights("J.=3, Smith, J.=2,b,=1=.5", with_commas, [0])
    assert found.tolist() == [2.0, 0.5, 3.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("e=1", "`class_weights` must be balanced, or list each of a, b=c, d at most once, as"),
        ("a=1,a=2", "got 'a=2'"),
        ("a=1,e,f=2,d=2", "got 'e,f=2,d=2'"),
        ("2.5", "got '2.5'"),
        ("a=1,", "got ''"),
        ("a=none", "`class_weights`: the weight of a must be positive, got 'none'"),
        ("a=0", "must be positive, got '0'"),
        ("d=inf", "must be positive, got 'inf'"),
    ],
)
def test_what_is_no_weight_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        classification.parse_class_weights(text, CLASSES, [0, 1, 2])


def test_the_loss_and_its_gradient_are_those_of_keras_class_weight():
    config = goldens.config("base", num_hidden_layers=1)
    model = albert_tf.AlbertForSequenceClassification(config, 3, classifier_dropout_prob=0.0)
    tiny.randomise(model)
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 1000, (6, 9)).astype(np.int32)
    inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": 0 * ids}
    labels = np.array([0, 1, 2, 2, 0, 0], np.int32)

    task = tiny.task("classification", classes=CLASSES)
    task.class_weights = np.array(list(WEIGHTS.values()), np.float32)
    features = {**inputs, "label_ids": labels}
    with tf.GradientTape() as tape:
        logits = model(inputs, training=False)
        (total,) = task.loss_sums(logits, features).values()
        (weight,) = task.loss_weights(features).values()
        loss = total / weight
    gradient = tape.gradient(loss, model.classifier.trainable_variables[0].value)
    before = np.array(model.classifier.trainable_variables[0])

    model.compile(
        optimizer=keras.optimizers.SGD(1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    theirs = model.train_on_batch(inputs, labels, class_weight=WEIGHTS)
    np.testing.assert_allclose(loss, theirs, rtol=1e-6)
    after = np.array(model.classifier.trainable_variables[0])
    np.testing.assert_allclose(gradient, before - after, atol=1e-6)
    unweighted = model.test_on_batch(inputs, labels)
    assert abs(float(unweighted) - float(theirs)) > 1e-3


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
    assert {name: value.tolist() for name, value in row.items()} == {
        name: value.tolist() for name, value in plain.items()
    }


def test_predictions_are_a_texts_own(tokenizer):
    """Of three texts, the second has several windows; the others have one."""
    examples = [TextExample(str(i), text, None, 1) for i, text in enumerate(("a", LONG, "b"))]
    tasks = {name: task_of_windows(tokenizer, name) for name in ("mean", "max")}
    features = FeatureTable.from_rows(tasks["mean"].rows(examples, True))
    index = features.scalars["example_index"]
    assert index[0] == 0 and index[-1] == 2 and np.sum(index == 1) > 3
    assert features.scalars["label_ids"].tolist() == [1] * len(index)
    logits = np.random.default_rng(0).normal(0, 2, (len(index), 2))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for name, task in tasks.items():
        combine = getattr(np, name)
        expected = [combine(shares[index == i], axis=0) for i in range(3)]
        found = task.predictions(examples, features, logits)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        regression = task_of_windows(tokenizer, name, "regression", ())
        found = regression.predictions(examples, features, logits[:, :1])
        expected = [combine(logits[index == i, :1], axis=0) for i in range(3)]
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    several = task_of_windows(tokenizer, "max", "multilabel")
    found = several.predictions(examples, features, logits)
    sigmoid = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(found[1], sigmoid[index == 1].max(axis=0), rtol=1e-12)


def test_features_are_stored_for_each_stride_and_not_for_each_combination(tokenizer):
    plain, mean, most = (task_of_windows(tokenizer, x).settings for x in (None, "mean", "max"))
    assert mean == most == {**plain, "window_doc_stride": STRIDE}
    assert task_of_windows(tokenizer, "mean", stride=STRIDE + 1).settings != mean


COLUMNS = TableSettings()
LABELS = ("art", "law", "war")
# The labels of four examples, and the probabilities given to them.
TARGETS = [(0, 2), (), (0,), (1, 2)]
PROBABILITIES = np.array([[0.9, 0.1, 0.6], [0.2, 0.5, 0.1], [0.9, 0.4, 0.3], [0.3, 0.2, 0.8]])


def examples_of_several(targets) -> list[TextExample]:
    return [TextExample(str(i + 2), "a b", None, ids) for i, ids in enumerate(targets)]


def write_labels(path: pathlib.Path, values) -> str:
    """Writes a table of labels, as JSON does, or in quotes."""
    lines = [json.dumps({"text": "a b", "label": value}) for value in values]
    if path.suffix != ".jsonl":
        cut, quote = (",", '"') if path.suffix == ".csv" else ("\t", "")
        lines = [f"text{cut}label", *(f"a b{cut}{quote}{value}{quote}" for value in values)]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture
def task(tokenizer):
    return tiny.task("multilabel", tokenizer, LABELS, max_seq_length=23)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "text,label\na b,war|art\na b,\na b,art| art |\na b, law|war\n"),
        ("t.tsv", "label\ttext\nwar|art\ta b\n\ta b\nart\ta b\nwar|law\ta b\n"),
        # As pandas writes lists.
        (
            "p.csv",
            "text,label\na b,\"['war', 'art']\"\na b,[]\na b,['art']\na b,\"['law', 'war']\"\n",
        ),
    ],
)
def test_a_cell_holds_any_number_of_labels(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    assert table.find_labels(str(path), COLUMNS, several=True) == LABELS
    examples = table.read_texts(str(path), COLUMNS, LABELS, several=True)
    assert examples == examples_of_several(TARGETS)


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


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.tsv"])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 1]], TARGETS),
        ([[1.0, 0.0, 1.0], "0|0|0", [True, False, False], "0.0|1.0|1.0"], TARGETS),
        ([[1, 0], [1, 1], [0, 1]], [(0,), (0, 1), (1,)]),
        ([[1.0, 0.0], [0.0, 1.0]], [(0,), (1,)]),
        ([[False, True]], [(1,)]),
    ],
)
def test_numbers_for_each_label_say_which_a_text_has(tmp_path, name, values, expected):
    path = write_labels(tmp_path / name, values)
    count = 3 if expected is TARGETS else 2
    found = table.find_labels(path, COLUMNS, several=True)
    assert found == ("0", "1", "2")[:count]
    for columns in (COLUMNS, dataclasses.replace(COLUMNS, label_names=LABELS[:count])):
        assert table.find_labels(path, columns, several=True) == (columns.label_names or found)
        # By position, whatever the model's order is.
        examples = table.read_texts(path, columns, LABELS[:count], several=True)
        assert [each.label for each in examples] == expected
    examples = table.read_texts(path, columns, LABELS[:count][::-1], several=True)
    assert [{count - 1 - i for i in each.label} for each in examples] == [*map(set, expected)]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([[0], [1], [0, 1], []], ("0", "1")),
        ([[0, 1], [0, 1]], ("0", "1", "2")),  # Of three labels, no vector has two numbers.
        ([[1.0, 0.0], [1.0]], ("0", "1")),
        ([["a", "b"], ["b", "a"]], ("a", "b")),
    ],
)
def test_lists_of_ids_and_names_are_no_numbers_for_each_label(tmp_path, values, labels):
    path = write_labels(tmp_path / "t.jsonl", values)
    if len(labels) == 2:
        assert table.find_labels(path, COLUMNS, several=True) == labels
    examples = table.read_texts(path, COLUMNS, labels, several=True)
    ids = [tuple(sorted(labels.index(str(part).removesuffix(".0")) for part in x)) for x in values]
    assert [each.label for each in examples] == ids


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[0, 1, 0], [0, 1]], "2: expected 0 or 1 .* 3 l.* a number twice as in t.jsonl:1, got '0"),
        ([[2], [0, 1, 1]], "1: expected 0 or 1 .* as in t.jsonl:2, got '2'$"),
        ([[0, 1, 0], []], "2: expected 0 or 1 .* as in t.jsonl:1, got ''$"),
        ([[0, 1, 0, 1]], "1: expected 0 or 1 for each of 3 labels .* got '0.1.0.1'$"),
        ([[2, -1, 2]], "1: expected 0 or 1 .* got '2.-1.2'$"),
    ],
)
def test_numbers_for_each_label_are_as_many_in_all_rows(tmp_path, monkeypatch, values, message):
    monkeypatch.chdir(tmp_path)
    path = write_labels(pathlib.Path("t.jsonl"), values)
    with pytest.raises(ValueError, match=f"^t.jsonl:{message}"):
        table.read_texts(path, COLUMNS, LABELS, several=True)
    path = write_labels(tmp_path / "t.jsonl", [[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="t.jsonl:1: 0 and 1, as in all rows, could be two ids"):
        table.find_labels(path, COLUMNS, several=True)


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
    for cell in ("['art' 'war']", "['art', b'war']", "[1, " + "[" * 100_000 + "]", "[1, [2]]"):
        path.write_text(f'text,label\na,"{cell}"\n')
        with pytest.raises(
            ValueError, match="'label': expected labels separated by .*list in JSON"
        ):
            table.find_labels(str(path), COLUMNS, several=True)
    for cell, message in (("|", "no label"), ("art|", "only one label: 'art'")):
        path.write_text(f"text,label\na,{cell}\n")
        with pytest.raises(ValueError, match=f"t.csv: .* in column 'label', got {message}"):
            table.find_labels(str(path), COLUMNS, several=True)


def test_rows_hold_all_labels_and_survive_the_cache(task, tmp_path):
    examples = [*examples_of_several(TARGETS), TextExample("9", "a longer text", None, None)]
    stem = str(tmp_path / "features")
    for _ in range(2):
        features = feature_table.load_or_make_features(
            examples, lambda each: task.rows(each, True), task.settings, stem
        )
        expected = [[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0]]
        np.testing.assert_array_equal(features.scalars["label_targets"], expected)
    plan = length_buckets.evaluation_batches(features.lengths, 5, (23,))
    (input_fn,) = features.evaluation_inputs(plan)
    (batch,) = input_fn(tf.distribute.InputContext())
    assert batch["label_targets"].shape == (5, 3)
    assert task.settings["num_labels"] == 3


def test_the_loss_is_keras_binary_cross_entropy(task):
    logits = np.random.default_rng(0).normal(0, 3, (4, 3)).astype(np.float32)
    targets = np.stack([task.label(example) for example in examples_of_several(TARGETS)])
    losses = task.example_losses(logits, {"label_targets": targets})["classification_loss"]
    expected = keras.losses.BinaryCrossentropy(from_logits=True)(targets, logits)
    np.testing.assert_allclose(np.mean(losses), expected, rtol=tolerances.LOSS)
    probabilities = task.kind.shares(logits, ())
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits.astype(np.float64))))
    stored = task.scores(examples_of_several(TARGETS), probabilities)["eval_loss"]
    np.testing.assert_allclose(stored, expected, rtol=tolerances.LOSS)


def test_scores(task):
    """Chosen: art and war, law, art, war. Of six labels and decisions each, four agree."""
    scores = task.scores(examples_of_several(TARGETS), PROBABILITIES)
    assert scores["micro_f1"] == pytest.approx(2 * 4 / (5 + 5))
    assert scores["macro_f1"] == pytest.approx((1 + 0 + 1) / 3)
    assert scores["subset_accuracy"] == 0.5
    # law is third of four, the others' are first.
    assert scores["mean_average_precision"] == pytest.approx((1 + 1 / 3 + 1) / 3)
    assert task.scores(examples_of_several([None]), PROBABILITIES[:1]) == {}


def test_equal_scores_are_ranked_together():
    labels = np.array([[1], [0], [1], [0]], bool)
    scores = np.array([[0.5], [0.5], [0.25], [0.125]])
    found = metrics.mean_average_precision(labels, scores)
    assert found == pytest.approx(0.5 * 1 / 2 + 0.5 * 2 / 3)
    assert metrics.mean_average_precision(labels[1::2], scores[1::2]) == 0.0
    absent = np.hstack([labels, np.zeros_like(labels)])
    assert metrics.mean_average_precision(absent, np.hstack([scores] * 2)) == found


def test_files(task, tmp_path):
    features = FeatureTable.from_rows(task.rows(examples_of_several(TARGETS), False))
    assert len(features.lengths) == 4
    task.write(str(tmp_path), "test", examples_of_several(TARGETS), PROBABILITIES)
    assert (tmp_path / "predictions.tsv").read_text() == (
        "index\tprediction\n2\tart|war\n3\tlaw\n4\tart\n5\twar\n"
    )
    assert (tmp_path / "test_results.tsv").read_text().splitlines()[0] == "0.9\t0.1\t0.6"
