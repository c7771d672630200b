"""Strings to `fit`: features are those of run_finetune.py, whatever holds the texts.

A model is fitted with them in tests/test_api_page.py, and exported in tests/examples.
"""

import dataclasses
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.answers.rows import FEATURES, pad_features
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
from tests.kit import tiny
from tests.kit.files import refused

TEXTS = ["In the beginning God created the heaven", "and the earth", "", "the earth was void " * 9]
PAIRS = ["And the earth was without form", "", "void", "and darkness was upon the face"]
LENGTH = 24


@pytest.fixture(scope="module")
def weights(tmp_path_factory, golden):
    """Returns the directory of a tiny encoder with its vocabulary, as if it had been downloaded."""
    folder = tmp_path_factory.mktemp("weights")
    spm = golden / "spm" / "en_small.model"
    config = tiny.config(num_hidden_layers=1, vocab_size=6000, max_position_embeddings=64)
    albert_tf.AlbertModel(config).save(folder / "model.keras")
    convert(str(folder / "model.keras"), "huggingface", str(folder / "hf"), spm_model_file=str(spm))
    return folder / "hf"


@pytest.fixture(scope="module")
def preprocess(weights):
    given = {"max_qa_length": 9, "max_query_length": 6, "doc_stride": 5}
    return albert_tf.Preprocessor.from_weights(weights, LENGTH, **given)


@pytest.fixture(scope="module")
def named(preprocess):
    return albert_tf.Preprocessor(preprocess.vocabulary, LENGTH, ("bad", "good"))


def texts_of(pairs=None):
    seconds = pairs or [None] * len(TEXTS)
    return [TextExample("", a, b, 0) for a, b in zip(TEXTS, seconds, strict=True)]


CHOICES = ("light", "the dry land appeared in one place", "")
QUESTIONS = ["What was without form?", "What is it, and what is it not?"]
CONTEXTS = [PAIRS[0], "light " * 60]
ASKED = [
    SquadExample(str(i), *pair, (), False)
    for i, pair in enumerate(zip(QUESTIONS, CONTEXTS, strict=True))
]
# Task, settings, classes and examples; and the same examples as arguments.
TASKS = [
    ("classification", {}, "ab", texts_of(), (TEXTS,), {}),
    ("classification", {"text_pair_column": "b"}, "ab", texts_of(PAIRS), (TEXTS, PAIRS), {}),
    ("choice", {"max_qa_length": 9}, "abc", [ChoiceExample("", x, CHOICES, 0) for x in TEXTS],
     (TEXTS,), {"choices": [CHOICES] * len(TEXTS)}),
    ("squad_v2", {"doc_stride": 5, "max_query_length": 6}, None, ASKED,
     (QUESTIONS,), {"contexts": CONTEXTS}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "classes", "examples", "args", "more"), TASKS)
def test_features_are_the_scripts(name, settings, classes, examples, args, more, preprocess):
    task = tiny.task(name, preprocess.tokenizer, classes, max_seq_length=LENGTH, **settings)
    rows, found = list(task.rows(examples, False)), preprocess(*args, **more)
    assert len(rows) > len(examples) or not more.get("contexts")
    assert {*found} == {*FEATURES, *({"p_mask", "example_index"} if "contexts" in more else ())}
    width = found["input_ids"].shape[-1]
    for key, values in found.items():
        expected = [row[key] for row in rows]
        if expected[0].ndim:
            expected = [pad_features({key: each}, width)[key] for each in expected]
        assert values.dtype == np.int32
        np.testing.assert_array_equal(values, expected)


HOLDERS = {
    "lists": lambda texts, labels: (texts, labels),
    "numpy": lambda texts, labels: (np.array(texts), np.array(labels)),
    "dictionary": lambda texts, labels: ({"text": texts, "label": labels},),
    "bytes": lambda texts, labels: (tuple(text.encode() for text in texts), labels),
    "frame": lambda *columns: (
        pytest.importorskip("pandas").DataFrame(dict(zip(("text", "label"), columns, strict=True))),
    ),
    "dataset": lambda *columns: (tf.data.Dataset.from_tensor_slices(columns).batch(3),),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
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
    with pytest.raises(ValueError, match="pairs .* strings, not int32"):
        data.map(preprocess)
    pairs = tf.data.Dataset.from_tensors((texts, [["a", "b c"]] * 5))
    (found,) = pairs.map(lambda text, choices: preprocess(text, choices=choices))
    chosen = preprocess(texts, choices=[["a", "b c"]] * 5)
    np.testing.assert_array_equal(found["input_ids"], chosen["input_ids"])


def test_a_dictionary_of_one_text_is_a_row(preprocess):
    row = preprocess({"text": TEXTS[0], "text_pair": TEXTS[1]})
    batch = preprocess(TEXTS[:1], TEXTS[1:2], pad_to=LENGTH)
    assert row.keys() == batch.keys()
    for name, value in batch.items():
        np.testing.assert_array_equal(row[name], value[0])


def test_lengths_are_multiples_that_datasets_share(preprocess):
    texts = [" ".join(["light"] * k) for k in range(1, 30)]
    lengths = {x["input_ids"].shape[1] for x, _ in preprocess.dataset(texts, [0] * 29, 2, pad_to=7)}
    assert lengths == {7, 14, 21, LENGTH}
    assert preprocess(texts[:1], pad_to=7)["input_ids"].shape == (1, 7)
    assert preprocess(texts[:1], pad_to=100)["input_ids"].shape == (1, LENGTH)


def test_without_labels_batches_are_in_the_order_of_the_texts(preprocess):
    texts = [" ".join(["light"] * (1 + i % 20)) for i in range(23)]
    found = [inputs["input_mask"].numpy() for (inputs,) in preprocess.dataset(texts, batch_size=5)]
    counts = [row.sum() for batch in found for row in batch]
    assert counts == preprocess(texts)["input_mask"].sum(axis=1).tolist()


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


@pytest.mark.parametrize(
    ("labels", "expected", "dtype"),
    [
        # Several numbers for a text are not class ids.
        ([[0, 5], [1, 1], [2, 0]], [[0, 5], [1, 1], [2, 0]], "int32"),
        (np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), [[1, 0], [1, 1], [0, 1]], "float32"),
        ([["good"], ["bad", "good"], []], [[0, 1], [1, 1], [0, 0]], "float32"),
        ([("good",), {"good", "bad"}, np.array([], str)], [[0, 1], [1, 1], [0, 0]], "float32"),
        (["good", [b"bad", "good"], []], [[0, 1], [1, 1], [0, 0]], "float32"),
    ],
)
def test_a_text_may_have_several_labels(labels, expected, dtype, named):
    dataset = named.dataset(["a", "b", "c"], labels, shuffle=False)
    ((_, found),) = dataset
    assert found.numpy().tolist() == expected and found.dtype == dtype
    # Keras' F1Score and R2Score need the number of labels.
    assert dataset.element_spec[1].shape.as_list() == [None, 2]


@pytest.mark.parametrize("batched", [False, True])
def test_the_labels_of_a_dataset_may_be_vectors(batched, named):
    ragged = tf.ragged.constant([["good"], [], ["good", "bad"]])
    expected = [[0, 1], [0, 0], [1, 1]]
    for labels in (np.array(expected, np.float32), ragged):
        given = tf.data.Dataset.from_tensor_slices(({"text": ["a", "b", "c"]}, labels))
        ((_, found),) = named.dataset(given.batch(2) if batched else given, shuffle=False)
        assert found.numpy().tolist() == expected


def test_weights_beside_the_labels_of_a_dataset(preprocess):
    labelled = tf.data.Dataset.from_tensor_slices((["a", "b"], [1, 0]))
    table = {"text": ["a", "b"], "label": [1, 0], "id": [7, 8]}
    for given in (
        preprocess.dataset(labelled, sample_weights=[0.5, 2.0], shuffle=False),
        *(
            preprocess.dataset({**table, name: [0.5, 2.0], **more}, shuffle=False)
            for name in ("sample_weight", "sample_weights")
            for more in ({}, {"text_pair": ["c", "d"]}, {"label": [1.0, 0.0]})
        ),
    ):
        ((_, labels, found),) = given
        assert labels.numpy().tolist() == [1, 0] and found.numpy().tolist() == [0.5, 2.0]
    # Without labels there is no loss, and weights are left out.
    ((inputs,),) = preprocess.dataset({"text": ["a", "b"], "sample_weight": [0.5, 2.0]})
    assert inputs["input_ids"].shape[0] == 2


def test_what_it_is_saved_with_it_comes_back_with(weights, tmp_path):
    """Beside a Keras model; albert-export and albert-predict read it, too; conversion keeps it."""
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
    changed = albert_tf.Preprocessor.from_weights(folder, 12).options
    assert changed == {**given, "max_seq_length": 12}


def test_the_record_of_a_run_keeps_what_else_it_has(preprocess, tmp_path):
    reading = {"max_seq_length": 16, "windows": "max", "doc_stride": 7}
    run = tiny.fine_tuned("classification", "single_label_classification", reading, seed=3)
    run.write(str(tmp_path))
    preprocess.save(tmp_path)
    found = run_record.find_run(str(tmp_path))
    expected = {"task": "classify", **reading, **preprocess.options}
    assert found.task.kind == expected
    assert dataclasses.replace(found, task=run.task) == run


def test_no_other_vocabulary_nor_another_models_labels_are_replaced(preprocess, named, tmp_path):
    preprocess.save(tmp_path)
    preprocess.save(tmp_path)
    (before,) = tmp_path.glob("*.model")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (tmp_path / "other").write_text("\n".join(pieces))
    other = albert_tf.Preprocessor(Vocabulary.read(str(tmp_path / "other"), True), LENGTH, ("x",))
    with pytest.raises(FileExistsError, match=f"{before.name} is another vocabulary"):
        other.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {before.name, "other", "run.json"}
    named.save(tmp_path)
    with pytest.raises(FileExistsError, match=r"labels\.jsonl"):
        preprocess.save(tmp_path)


def test_another_order_of_labels_and_too_long_rows_are_refused(weights, tmp_path):
    there = shutil.copytree(weights, tmp_path / "there")
    labels_file.write(str(there), ("good", "bad"))
    for labels in (["other", "names"], ["good", "bad"], []):
        assert albert_tf.Preprocessor.from_weights(there, LENGTH, labels).labels == tuple(labels)
    with pytest.raises(ValueError, match="good, bad.*`labels`"):
        albert_tf.Preprocessor.from_weights(there, LENGTH, ["bad", "good"])
    with pytest.raises(ValueError, match="`max_seq_length` .* 64 "):
        albert_tf.Preprocessor.from_weights(there, 65)


def test_a_seed_is_drawn_if_none_is_given(preprocess):
    texts = ["light"] * 100
    drawn = [preprocess.dataset(texts, list(range(100)), 100, seed=None) for _ in range(2)]
    orders = [labels.numpy().tolist() for ((_, labels),) in drawn]
    assert orders[0] != orders[1] and list(range(100)) not in orders


@pytest.mark.parametrize("given", ["vocab.txt", pathlib.Path("vocab.txt"), None])
def test_a_path_is_no_vocabulary(given):
    with refused("`vocabulary` .*from_weights", exception=TypeError):
        albert_tf.Preprocessor(given, LENGTH)
