"""Strings to `fit`: features are those of run_finetune.py, whatever holds the texts."""

import dataclasses
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.conversion import labels as labels_file
from albert_tf.conversion.convert import convert
from albert_tf.conversion.stored_model import ModelLocation
from albert_tf.serving import served_tasks
from albert_tf.storage import run_record
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample
from albert_tf.tasks.squad_text import SquadExample
from albert_tf.text.vocabulary import Vocabulary
from tests import tiny

TEXTS = ["In the beginning God created the heaven", "and the earth", "", "the earth was void " * 9]
PAIRS = ["And the earth was without form", "", "void", "and darkness was upon the face"]
LENGTH = 24


@pytest.fixture(scope="module")
def weights(tmp_path_factory, golden):
    """Returns the directory of a tiny encoder with its vocabulary, as one that was downloaded."""
    folder = tmp_path_factory.mktemp("weights")
    spm = golden / "spm" / "en_small.model"
    config = tiny.config(num_hidden_layers=1, vocab_size=6000, max_position_embeddings=64)
    albert_tf.AlbertModel(config).save(folder / "model.keras")
    convert(str(folder / "model.keras"), "huggingface", str(folder / "hf"), spm_model_file=str(spm))
    return folder / "hf"


@pytest.fixture(scope="module")
def preprocess(weights):
    return albert_tf.Preprocessor.from_weights(
        weights, LENGTH, max_qa_length=9, max_query_length=6, doc_stride=5
    )


def check_rows(found, rows):
    """Compares features with a task's rows, one by one."""
    rows = list(rows)
    assert len(found["input_ids"]) == len(rows)
    for i, row in enumerate(rows):
        length = row["input_ids"].shape[-1]
        for name in ("input_ids", "input_mask", "segment_ids"):
            assert found[name].dtype == np.int32
            np.testing.assert_array_equal(found[name][i][..., :length], row[name])
            assert not found[name][i][..., length:].any()


@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_texts_are_the_scripts(pairs, preprocess):
    given = {"max_seq_length": LENGTH, "text_pair_column": "b" if pairs else None}
    task = tiny.task("classification", preprocess.tokenizer, "ab", **given)
    seconds = pairs or [None] * len(TEXTS)
    examples = [TextExample("", a, b, 0) for a, b in zip(TEXTS, seconds, strict=True)]
    check_rows(preprocess(TEXTS, pairs), task.rows(examples, True))


def test_choices_are_the_scripts(preprocess):
    choices = [["light", "the dry land appeared in one place", ""]] * len(TEXTS)
    given = {"max_seq_length": LENGTH, "max_qa_length": 9}
    task = tiny.task("choice", preprocess.tokenizer, "abc", **given)
    examples = [ChoiceExample("", text, tuple(choices[0]), 0) for text in TEXTS]
    found = preprocess(TEXTS, choices=choices)
    assert found["input_ids"].shape[:2] == (len(TEXTS), 3)
    check_rows(found, task.rows(examples, True))


def test_contexts_without_a_word_are_refused(preprocess):
    with pytest.raises(ValueError, match="no context has any text to search"):
        preprocess(["Who?", "What?"], contexts=["", " "])


def test_questions_with_contexts_are_the_scripts(preprocess):
    given = {"max_seq_length": LENGTH, "doc_stride": 5, "max_query_length": 6}
    task = tiny.task("squad_v2", preprocess.tokenizer, **given)
    contexts = [PAIRS[0], "light " * 60]
    questions = ["What was without form?", "What is it, and what is it not?"]
    pairs = zip(questions, contexts, strict=True)
    examples = [SquadExample(str(i), q, c, (), False) for i, (q, c) in enumerate(pairs)]
    rows = list(task.rows(examples, False))
    found = preprocess(questions, contexts=contexts)
    check_rows(found, rows)
    assert found["example_index"].tolist() == [row["example_index"] for row in rows]
    assert found["example_index"].tolist().count(1) > 1
    for i, row in enumerate(rows):
        expected = np.ones(found["p_mask"].shape[1])
        expected[: len(row["p_mask"])] = row["p_mask"]
        np.testing.assert_array_equal(found["p_mask"][i], expected)


def as_frame(texts, labels):
    pandas = pytest.importorskip("pandas")
    return (pandas.DataFrame({"text": texts, "label": labels}),)


def as_dataset(texts, labels):
    return (tf.data.Dataset.from_tensor_slices((texts, labels)).batch(3),)


@pytest.mark.parametrize(
    "hold",
    [
        lambda texts, labels: (texts, labels),
        lambda texts, labels: (np.array(texts), np.array(labels)),
        lambda texts, labels: ({"text": texts, "label": labels},),
        lambda texts, labels: (tuple(text.encode() for text in texts), labels),
        as_frame,
        as_dataset,
    ],
    ids=["lists", "numpy", "dictionary", "bytes", "frame", "dataset"],
)
def test_texts_may_be_held_by_anything(hold, preprocess):
    texts, labels = [f"{TEXTS[i % 4]} {i}" for i in range(11)], [i % 3 for i in range(11)]
    found = list(preprocess.dataset(*hold(texts, labels), batch_size=4, shuffle=False))
    assert [len(labels) for _, labels in found] == [4, 4, 3]
    for i, (inputs, ids) in enumerate(found):
        expected = preprocess(texts[4 * i : 4 * i + 4])
        assert ids.numpy().tolist() == labels[4 * i : 4 * i + 4]
        width = expected["input_ids"].shape[1]
        np.testing.assert_array_equal(inputs["input_ids"][:, :width], expected["input_ids"])


def test_tf_datas_map_makes_rows_of_texts_and_batches_of_batches(preprocess):
    texts, labels = [f"{TEXTS[i % 4]} {i}" for i in range(5)], [0, 1, 1, 0, 1]
    data = tf.data.Dataset.from_tensor_slices((texts, labels))
    expected = preprocess(texts, pad_to=LENGTH)
    rows = data.map(lambda text, label: (preprocess(text), label)).batch(5)
    batches = data.batch(5).map(lambda text, label: (preprocess(text, pad_to=LENGTH), label))
    of_names = data.map(lambda text, label: {"text": text, "label": label}).map(preprocess).batch(5)
    for each in (rows, batches, of_names):
        (found,) = each
        found = found if isinstance(found, dict) else found[0]
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
    assert rows.element_spec[0]["input_ids"].shape == (None, LENGTH)
    pairs = tf.data.Dataset.from_tensors((texts, [["a", "b c"]] * 5))
    (found,) = pairs.map(lambda text, choices: preprocess(text, choices=choices))
    chosen = preprocess(texts, choices=[["a", "b c"]] * 5)
    np.testing.assert_array_equal(found["input_ids"], chosen["input_ids"])
    with pytest.raises(ValueError, match="pairs must be strings, not int32: map texts and labels"):
        data.map(preprocess)


def test_lengths_are_multiples_that_datasets_share(preprocess):
    texts = [" ".join(["light"] * k) for k in range(1, 30)]
    lengths = {x["input_ids"].shape[1] for x, _ in preprocess.dataset(texts, [0] * 29, 2, pad_to=7)}
    assert lengths == {7, 14, 21, LENGTH}
    assert preprocess(texts[:1], pad_to=7)["input_ids"].shape == (1, 7)
    assert preprocess(texts[:1], pad_to=100)["input_ids"].shape == (1, LENGTH)
    with pytest.raises(ValueError, match="`pad_to` must be"):
        preprocess(texts, pad_to=-1)


def test_each_epoch_has_every_text_once_in_batches_of_like_lengths(preprocess):
    texts = [" ".join(["light"] * (1 + i % 20)) for i in range(403)]
    dataset = preprocess.dataset(texts, list(range(403)), batch_size=8, static_lengths=4)
    assert len(dataset) == 51
    epochs = [list(dataset) for _ in range(2)]
    orders = [[int(label) for _, labels in epoch for label in labels] for epoch in epochs]
    assert orders[0] != orders[1]
    for order in orders:
        assert sorted(order) == list(range(403))
    widths = {inputs["input_ids"].shape[1] for epoch in epochs for inputs, _ in epoch}
    assert len(widths) == 4
    table = FeatureTable.from_rows([{"input_ids": preprocess(t)["input_ids"][0]} for t in texts])
    positions = sum(inputs["input_ids"].shape.num_elements() for inputs, _ in epochs[0])
    assert positions < 1.3 * table.lengths.sum()


def test_a_model_is_fitted_from_strings(weights):
    """It is saved and exported in examples/test_finetune_keras.py."""
    preprocess = albert_tf.Preprocessor.from_weights(weights, LENGTH, ("bad", "good"))
    model = albert_tf.AlbertForSequenceClassification.from_weights(weights, num_labels=2)
    texts = ["light was good", "void and darkness"] * 12
    train = preprocess.dataset(texts, ["good", "bad"] * 12, 6)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(5e-3), loss, metrics=["accuracy"], jit_compile=False)
    seen = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs))
    weights_of = {0: 1.0, 1: 2.0}
    # Keras warns that it does not shuffle a dataset itself.
    given = {"shuffle": False, "class_weight": weights_of, "callbacks": [callback]}
    # With some initial weights eight epochs are too few.
    model.fit(train, epochs=16, verbose=0, **given)
    assert seen[-1]["accuracy"] == 1.0 and len(seen) == 16
    expected = model.predict(preprocess.dataset(texts, batch_size=5), verbose=0)
    assert expected.argmax(axis=1).tolist() == [1, 0] * 12
    weighted = preprocess.dataset(texts, [0] * 24, 24, sample_weights=[1.0, 0.0] * 12)
    half = preprocess.dataset(texts[::2], [0] * 12, 24)
    loss_of = [model.evaluate(data, verbose=0)[0] for data in (weighted, half)]
    assert loss_of[0] * 2 == pytest.approx(loss_of[1], rel=1e-5)


@pytest.mark.parametrize(
    ("labels", "rows", "names", "expected"),
    [
        ([0, 1], [1, 0, 1], ("0", "1"), [1, 0, 1]),
        (np.unique([0, 1]), np.array([1, 0, 1]), ("0", "1"), [1, 0, 1]),
        ([1, 2, 3], [3, 1, 2], ("1", "2", "3"), [2, 0, 1]),
        (["1", "2", "3"], np.array([3, 1, 2]), ("1", "2", "3"), [2, 0, 1]),
        ([1, 2, 3], ["3", b"1", "2"], ("1", "2", "3"), [2, 0, 1]),
        ([1, 2, 3], np.array([1.0, 2.0, 1.0]), ("1", "2", "3"), [0, 1, 0]),
        ([1.0, 2.0, 3.0], [1, 2, 1], ("1.0", "2.0", "3.0"), [0, 1, 0]),
        ([0.5, 1.0], np.array([1.0, 0.5, 1.0]), ("0.5", "1.0"), [1, 0, 1]),
        ([False, True], np.array([True, False, True]), ("False", "True"), [1, 0, 1]),
        (["false", "true"], np.array([True, False, True]), ("false", "true"), [1, 0, 1]),
        (["0", "1"], ["1.0", "0.0", "1"], ("0", "1"), [1, 0, 1]),
        (["bad", "good"], [1, 0, 1], ("bad", "good"), [1, 0, 1]),
        (["bad", "good"], np.array([1.0, 0.0, 1.0]), ("bad", "good"), [1, 0, 1]),
        ([b"bad", np.str_("good")], ["good", "bad", "good"], ("bad", "good"), [1, 0, 1]),
    ],
)
def test_labels_may_be_numbers(labels, rows, names, expected, preprocess, tmp_path):
    named = albert_tf.Preprocessor(preprocess.vocabulary, LENGTH, labels)
    assert named.labels == names and {type(name) for name in named.labels} == {str}
    ((_, ids),) = named.dataset(["a", "b", "c"], rows, shuffle=False)
    assert ids.numpy().tolist() == expected
    named.save(tmp_path)
    assert labels_file.read(str(tmp_path)) == names


def test_several_numbers_for_a_text_are_no_classes(preprocess):
    named = albert_tf.Preprocessor(preprocess.vocabulary, LENGTH, ("0", "1"))
    ((_, found),) = named.dataset(["a", "b"], [[0, 5], [1, 1]], shuffle=False)
    assert found.numpy().tolist() == [[0, 5], [1, 1]]


@pytest.mark.parametrize("batched", [False, True])
def test_the_labels_of_a_dataset_may_be_vectors(batched, preprocess):
    named = albert_tf.Preprocessor(preprocess.vocabulary, LENGTH, ("bad", "good"))
    ragged = tf.ragged.constant([["good"], [], ["good", "bad"]])
    expected = [[0, 1], [0, 0], [1, 1]]
    for labels in (np.array(expected, np.float32), ragged):
        given = tf.data.Dataset.from_tensor_slices(({"text": ["a", "b", "c"]}, labels))
        ((_, found),) = named.dataset(given.batch(2) if batched else given, shuffle=False)
        assert found.numpy().tolist() == expected


def test_lists_of_names_are_any_number_of_classes(preprocess):
    named = albert_tf.Preprocessor(preprocess.vocabulary, LENGTH, ("bad", "good"))
    for labels in (
        [["good"], ["bad", "good"], []],
        [("good",), {"good", "bad"}, np.array([], str)],
        ["good", [b"bad", "good"], []],
    ):
        dataset = named.dataset(["a", "b", "c"], labels, shuffle=False)
        ((_, found),) = dataset
        assert found.numpy().tolist() == [[0, 1], [1, 1], [0, 0]]
        assert found.dtype == tf.float32 and dataset.element_spec[1].shape.as_list() == [None, 2]


@pytest.mark.parametrize("metric", ["F1Score", "FBetaScore", "R2Score"])
def test_metrics_over_several_labels_know_their_number(metric, weights):
    preprocess = albert_tf.Preprocessor.from_weights(weights, LENGTH, ("bad", "good"))
    model = albert_tf.AlbertForSequenceClassification.from_weights(weights, num_labels=2)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=[getattr(keras.metrics, metric)()], jit_compile=False)
    labels = np.array([[1, 0], [1, 1], [0, 1]], np.float32)
    data = preprocess.dataset(TEXTS[:3], labels, 2, shuffle=False)
    found = model.evaluate(data, verbose=0, return_dict=True)
    arrays = model.evaluate(preprocess(TEXTS[:3]), labels, 2, verbose=0, return_dict=True)
    for name, value in arrays.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


def test_weights_beside_the_labels_of_a_dataset(preprocess):
    labelled = tf.data.Dataset.from_tensor_slices((["a", "b"], [1, 0]))
    given = preprocess.dataset(labelled, sample_weights=[0.5, 2.0], shuffle=False)
    ((_, labels, found),) = given
    assert labels.numpy().tolist() == [1, 0] and found.numpy().tolist() == [0.5, 2.0]
    weighted = tf.data.Dataset.from_tensor_slices((["a", "b"], [1, 0], [0.5, 2.0]))
    for dataset, name in ((labelled, "labels"), (weighted, "sample_weights")):
        with pytest.raises(ValueError, match=f"the dataset has its own `{name}`"):
            preprocess.dataset(dataset, **{name: [1, 1]})


def test_what_it_is_saved_with_it_comes_back_with(weights, tmp_path):
    """Beside a model of Keras, in albert-export and albert-predict too; and after conversion."""
    given = {"max_seq_length": 16, "max_qa_length": 9, "max_query_length": 6, "doc_stride": 5}
    form = {"do_lower_case": False, "keep_accents": True}
    preprocess = albert_tf.Preprocessor.from_weights(
        weights, labels=("bad", "good"), **given, **form
    )
    model = albert_tf.AlbertForSequenceClassification.from_weights(weights, num_labels=2)
    model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
    preprocess.save(tmp_path / "there")
    model.save(tmp_path / "there/model.keras")
    convert(str(tmp_path / "there"), "huggingface", str(tmp_path / "hf"))
    for folder in (tmp_path / "there", tmp_path / "hf"):
        found = albert_tf.Preprocessor.from_weights(folder)
        assert found.options == given and found.labels == ("bad", "good")
        assert found.vocabulary.form == (False, True)
        served = served_tasks.load_served("classify", ModelLocation(str(folder)), {})
        assert (served.kind.max_seq_length, served.kind.multilabel) == (16, True)
    assert albert_tf.Preprocessor.from_weights(folder, 12).options == {
        **given,
        "max_seq_length": 12,
    }


def test_the_record_of_a_run_keeps_what_else_it_has(preprocess, tmp_path):
    reading = {"max_seq_length": 16, "windows": "max", "doc_stride": 7}
    run = tiny.fine_tuned("classification", "single_label_classification", reading, seed=3)
    run.write(str(tmp_path))
    preprocess.save(tmp_path)
    found = run_record.find_run(str(tmp_path))
    expected = {"task": "classify", **reading, **preprocess.options}
    assert found.task.kind == expected
    assert dataclasses.replace(found, task=run.task) == run


def test_another_vocabulary_is_kept(preprocess, tmp_path):
    preprocess.save(tmp_path)
    preprocess.save(tmp_path)
    (before,) = tmp_path.glob("*.model")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (tmp_path / "other").write_text("\n".join(pieces))
    other = albert_tf.Preprocessor(Vocabulary.read(str(tmp_path / "other"), True), LENGTH, ("x",))
    with pytest.raises(FileExistsError, match=f"{before.name} is another vocabulary"):
        other.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {before.name, "other", "run.json"}


def test_labels_of_another_model_do_not_stay(preprocess, tmp_path):
    named = albert_tf.Preprocessor(preprocess.vocabulary, LENGTH, ("bad", "good"))
    named.save(tmp_path)
    with pytest.raises(FileExistsError, match="labels.jsonl would name the classes of a model w"):
        preprocess.save(tmp_path)


def test_bad_texts_and_labels_are_one_line(preprocess, weights):
    named = albert_tf.Preprocessor(preprocess.vocabulary, LENGTH, ("bad", "good"))
    numbered = albert_tf.Preprocessor(preprocess.vocabulary, LENGTH, [1, 2])
    endless = tf.data.Dataset.from_tensor_slices((["a", "b"], [0, 1])).repeat().batch(3)
    for call, message in (
        (lambda: preprocess([]), "there are no texts"),
        (lambda: preprocess(["a", None]), "texts must be strings, but the one at index 1 is None"),
        (lambda: preprocess(3), "texts must be strings, not 3"),
        (lambda: preprocess(["a", "I \ud83d"]), r"index 1 is no text: '.ud83d' at character 2"),
        (lambda: preprocess.tokenizer.encode("\udcff"), "unpaired surrogate"),
        (lambda: preprocess.dataset(endless), "never ends: leave its repeat"),
        (lambda: named.dataset(["a", "b"], [["bad"], ["ugly"]]), "label 'ugly' is not one of"),
        (lambda: named.dataset(["a", "b"], [[0], [0, 1]]), "finite numbers, as many for each text"),
        (lambda: preprocess(["a"], ["b", "c"]), "expected as many pairs as texts, got 2 and 1"),
        (lambda: preprocess(["a", "b"], choices=[["c"], []]), "the same number of choices"),
        (lambda: preprocess({"sentence": ["a"]}), "expected a column 'text', got 'sentence'"),
        (lambda: preprocess.dataset(["a"], [1], sample_weights=[np.nan]), "`sample_weights` must"),
        (lambda: preprocess.dataset(["a"], ["b"]), "label 'b' is not one of `labels`.*none given"),
        (lambda: named.dataset(["a"], ["ugly"]), "label 'ugly' is not one of `labels`"),
        (lambda: named.dataset(["a", "b"], [1, 2]), "label 2 is neither one of `labels`"),
        (lambda: named.dataset(["a", "b"], [-1, 0]), "label -1 is neither one of `labels`"),
        (lambda: named.dataset(["a"], [3.7]), "or `labels=\\(\\)` for numbers that are no cl"),
        (lambda: named.dataset(["a", "b"], [0.3, 0.9]), "label 0.3 is neither one of `labels`"),
        (lambda: numbered.dataset(["a", "b"], [0, 1]), "label '0' is not one of `labels`"),
        (lambda: preprocess.dataset(["a"], [float("nan")]), "labels must be finite numbers"),
        (lambda: preprocess.dataset(["a"], sample_weights=[1.0]), "give both"),
        (lambda: albert_tf.Preprocessor.from_weights(weights, 65), "at most 64"),
        (lambda: albert_tf.Preprocessor(preprocess.vocabulary, 3), "at least 4, not 3"),
        (lambda: albert_tf.Preprocessor(preprocess.vocabulary, "9"), "`max_seq_length` .* '9'"),
        (lambda: preprocess.dataset(["a"], batch_size=2.5), "`batch_size` .* least 1, not 2.5"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_labels_in_another_order_than_stored_are_refused(weights, tmp_path):
    there = shutil.copytree(weights, tmp_path / "there")
    labels_file.write(str(there), ("good", "bad"))
    for labels in (["other", "names"], ["good", "bad"], []):
        assert albert_tf.Preprocessor.from_weights(there, LENGTH, labels).labels == tuple(labels)
    with pytest.raises(ValueError, match="in the order good, bad, .*: leave `labels` out"):
        albert_tf.Preprocessor.from_weights(there, LENGTH, ["bad", "good"])


def test_a_seed_is_drawn_if_none_is_given(preprocess):
    texts = ["light"] * 100
    drawn = [preprocess.dataset(texts, list(range(100)), 100, seed=None) for _ in range(2)]
    orders = [labels.numpy().tolist() for ((_, labels),) in drawn]
    assert orders[0] != orders[1] and list(range(100)) not in orders
