"""Stored and fitted models are served for the task that they were trained for, and no other."""

import dataclasses
import inspect

import keras
import numpy as np
import pytest

import albert_tf
from albert_tf.answers import kinds as answer_kinds
from albert_tf.answers.choose import Choose
from albert_tf.answers.classify import Classify
from albert_tf.answers.span import SpanOrNone
from albert_tf.answers.tag import Tag
from albert_tf.conversion import labels
from albert_tf.conversion.convert import convert
from albert_tf.conversion.stored_model import ModelLocation
from albert_tf.serving import served_tasks
from albert_tf.serving.settings import ExportSettings
from albert_tf.storage.run_record import RUN_FILE, RunRecord, TaskRecord
from tests.kit import tiny
from tests.kit.served_tasks import KINDS, config_for, model, store

THREE = KINDS["labels"]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "trained"


def serve(task, folder, options=None, classes=()):
    return served_tasks.load_served(task, ModelLocation(str(folder)), options or {}, classes)


def record(folder, **known):
    """Replaces what a run's record says about the kind."""
    RunRecord({}, {}, task=TaskRecord("a", known)).write(str(folder))


# With one output, the heads of all these have weights of the same names and shapes.
ALIKE = [Classify(max_seq_length=16), Tag(labels=("O",)), Choose(max_seq_length=16)]


@pytest.mark.parametrize("layout", ["tf1", "huggingface"])
@pytest.mark.parametrize("kind", ALIKE, ids=lambda kind: kind.task)
def test_only_what_it_was_trained_for_is_served(kind, layout, vocabulary, folder, tmp_path):
    store(folder, kind.replace(max_seq_length=16), vocabulary)
    drop = ["bert/pooler/"] if kind.task == "tag" else []
    convert(str(folder), layout, str(tmp_path / "there"), drop=drop)
    for task in ("classify", "tag", "choose", "fill_mask"):
        if task != kind.task:
            with pytest.raises(ValueError, match=f"trained for {kind.task}.* `task`"):
                serve(task, tmp_path / "there")
    options = {"labels": ("O",)} if kind.task == "tag" else {}
    assert serve(kind.task, tmp_path / "there", options).kind.task == kind.task


def test_without_a_record_weights_and_defaults_tell(vocabulary, folder):
    """If two kinds have the same name, the stored head tells which one it is."""
    store(folder, SpanOrNone(max_seq_length=16, max_query_length=12), vocabulary)
    (folder / RUN_FILE).unlink()
    served = serve("answer_v2", folder, {"max_query_length": 9})
    assert served.kind == SpanOrNone(max_seq_length=64, max_query_length=9)


def test_labels_are_those_beside_the_weights_or_as_given(vocabulary, folder):
    store(folder, THREE, vocabulary)
    other = THREE.labels[::-1]
    with pytest.raises(ValueError, match="one, two, three.*`labels`"):
        serve("classify", folder, {"labels": other})
    # If a task's classes are given, the head's rows are put into their order.
    assert serve("classify", folder, {"labels": other}, other).kind.labels == other
    labels.write(str(folder), ("no", "yes"))
    with pytest.raises(ValueError, match="3 labels"):
        serve("classify", folder)
    assert serve("classify", folder, {"labels": tuple("abc")}).kind.labels == tuple("abc")


REGRESSION = {"task": "classify", "labels": []}


@pytest.mark.parametrize(
    ("known", "task", "options", "noun"),
    [
        (REGRESSION, "classify", {}, "problem_type of .* is regression"),
        ({"task": "classify", "max_seq_length": "16"}, "classify", {}, "run.json.*max_seq_length"),
        ({"task": "classify", "labels": "ab"}, "classify", {}, "run.json.*labels"),
        ({"task": "classified"}, "classify", {}, "run.json: the task"),
        ({}, "classify", {"labels": tuple("ab")}, "3 classes: give 3 labels"),
        ({}, "classify", {"labels": tuple("aab")}, "`labels`"),
        ({}, "choose", {}, "output_weights .3, 32."),
        ({}, "fill_mask", {}, "is not trained for fill_mask: it lacks .*predictions"),
        ({}, "classify", {"max_seq_length": 65}, "`max_seq_length`"),
    ],
)
def test_what_does_not_fit_is_refused(known, task, options, noun, vocabulary, folder):
    store(folder, THREE, vocabulary)
    record(folder, **known)
    with pytest.raises(ValueError, match=noun):
        serve(task, folder, options)


def test_each_option_has_a_flag():
    flags = {field.name for field in dataclasses.fields(ExportSettings)}
    options = {name for kind in answer_kinds.KINDS for name in kind.option_fields()}
    assert options - flags == {"without", "dense_units", "dense_activation"}  # The weights tell.
    given = {"labels": ("a",), "windows": "none", "doc_stride": 7, "pairs": False}
    settings = ExportSettings.of(model="x", task="classify", export_dir="y", **given)
    assert settings.options() == {**given, "windows": None}


class Own(albert_tf.AlbertForSequenceClassification):
    """A subclass, such as one with its own train_step."""


@pytest.fixture
def preprocess(vocabulary):
    return albert_tf.Preprocessor(vocabulary, 16)


def model_of(num_labels: int, kind: type = albert_tf.AlbertForSequenceClassification):
    config = tiny.config(num_hidden_layers=1, vocab_size=6000, max_position_embeddings=16)
    return kind(config, num_labels=num_labels)


def test_a_subclass_is_served(preprocess):
    served = served_tasks.serve_fitted(model_of(3, Own), preprocess, {})
    assert served.kind == Classify(labels=("0", "1", "2"), max_seq_length=16)
    with pytest.raises(ValueError, match="Sequential.*only Albert"):
        served_tasks.serve_fitted(keras.Sequential(), preprocess, {})


@pytest.mark.parametrize("name", KINDS)
def test_a_fitted_model_is_read_as_its_preprocessor_does(name, vocabulary):
    """A Preprocessor has the lengths and labels, a model its beam; other options are given."""
    kind = KINDS[name]
    names = kind.options().keys() & inspect.signature(albert_tf.Preprocessor).parameters.keys()
    preprocess = albert_tf.Preprocessor(vocabulary, **{n: getattr(kind, n) for n in names})
    rest = kind.options().keys() - names - kind.model_arguments.keys()
    fitted, given = model(kind, config_for(vocabulary)), {n: getattr(kind, n) for n in rest}
    assert served_tasks.serve_fitted(fitted, preprocess, given).kind == kind


@pytest.mark.parametrize(
    ("options", "noun"),
    [
        ({"pooling": "cls"}, "`pooling` is 'mean' in the model"),
        ({"dimensions": 4}, "`dimensions` is None in the model"),
        ({"default_prompt": "query"}, "`query_prompt` is empty"),
    ],
)
def test_options_that_contradict_the_model_are_refused(options, noun, preprocess):
    fitted = model(KINDS["vectors"].replace(pooling="mean"), config_for(preprocess.vocabulary))
    with pytest.raises(ValueError, match=noun):
        served_tasks.serve_fitted(fitted, preprocess, options)


def test_the_file_of_a_subclass_names_the_way_out(tmp_path):
    model = model_of(3, Own)
    model.save(tmp_path / "own.keras")
    with pytest.raises(ValueError, match="a class of your own.*`save_weights`"):
        albert_tf.load_config(tmp_path / "own.keras")
    model.save_weights(tmp_path / "own.weights.h5")
    ours = model_of(3)
    report = albert_tf.load_weights(ours, tmp_path / "own.weights.h5")
    assert report.missing == report.unused == ()
    np.testing.assert_array_equal(ours.classifier.output_weights, model.classifier.output_weights)


def test_the_loss_tells_whether_a_text_has_several_labels(preprocess):
    model = model_of(2)
    names = dict.fromkeys(("BinaryCrossentropy", "BinaryFocalCrossentropy"), True)
    for name, expected in (names | {"SparseCategoricalCrossentropy": False}).items():
        model.compile("sgd", getattr(keras.losses, name)(from_logits=True))
        assert served_tasks.serve_fitted(model, preprocess, {}).kind.multilabel is expected
        given = served_tasks.serve_fitted(model, preprocess, {"multilabel": False})
        assert not given.kind.multilabel


def test_labels_of_a_regression_are_refused(preprocess):
    named = albert_tf.Preprocessor(preprocess.vocabulary, 16, ("bad", "good"))
    model = model_of(1)
    with pytest.raises(ValueError, match="bad, good.* one output"):
        served_tasks.serve_fitted(model, named, {})
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    assert not served_tasks.serve_fitted(model, preprocess, {}).kind.labels


def test_other_backends_are_refused(preprocess, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="TensorFlow.*jax"):
        albert_tf.export_saved_model(None, preprocess, tmp_path / "served")
    assert not (tmp_path / "served").exists()
