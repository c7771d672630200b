"""What export_saved_model makes of a model in memory; the notebook's test writes and reads one."""

import keras
import numpy as np
import pytest

import albert_tf
from albert_tf.serving import served_tasks
from tests import tiny


class Own(albert_tf.AlbertForSequenceClassification):
    """As one with a train_step of its own."""


@pytest.fixture
def preprocess(vocabulary):
    return albert_tf.Preprocessor(vocabulary, 16)


def model_of(num_labels: int, kind: type = albert_tf.AlbertForSequenceClassification):
    config = tiny.config(num_hidden_layers=1, vocab_size=6000, max_position_embeddings=16)
    return kind(config, num_labels=num_labels)


def test_a_subclass_is_served(preprocess):
    served = served_tasks.serve_fitted(model_of(3, Own), preprocess, {})
    assert served.task == "classify" and served.labels == ("0", "1", "2")
    with pytest.raises(ValueError, match="Sequential can't be exported to take raw text, only Al"):
        served_tasks.serve_fitted(keras.Sequential(), preprocess, {})


def test_longer_endings_are_cut_to_the_length(vocabulary):
    config = tiny.config(num_hidden_layers=1, vocab_size=6000, max_position_embeddings=16)
    preprocess = albert_tf.Preprocessor(vocabulary, 16, max_qa_length=128)
    served = served_tasks.serve_fitted(albert_tf.AlbertForMultipleChoice(config), preprocess, {})
    assert served.task == "choose" and served.max_qa_length == 13


def test_the_file_of_a_subclass_names_the_way_out(tmp_path):
    model = model_of(3, Own)
    model.save(tmp_path / "own.keras")
    with pytest.raises(ValueError, match="not 0: of a class of your own call `save_weights`, and"):
        albert_tf.load_config(tmp_path / "own.keras")
    model.save_weights(tmp_path / "own.weights.h5")
    ours = model_of(3)
    report = albert_tf.load_weights(ours, tmp_path / "own.weights.h5")
    assert report.missing == report.unused == ()
    np.testing.assert_array_equal(ours.classifier.output_weights, model.classifier.output_weights)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (keras.losses.BinaryCrossentropy(from_logits=True), True),
        ("binary_crossentropy", True),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), False),
        (None, False),
    ],
)
def test_the_loss_tells_whether_a_text_has_several_labels(loss, expected, preprocess):
    model = model_of(2)
    model.compile("sgd", loss)
    assert served_tasks.serve_fitted(model, preprocess, {}).multilabel is expected
    assert not served_tasks.serve_fitted(model, preprocess, {"multilabel": False}).multilabel


def test_labels_of_a_regression_are_refused(preprocess):
    named = albert_tf.Preprocessor(preprocess.vocabulary, 16, ("bad", "good"))
    model = model_of(1)
    model.compile("sgd", "binary_crossentropy")
    with pytest.raises(ValueError, match="has labels .bad, good., but the model has one output"):
        served_tasks.serve_fitted(model, named, {})
    assert not served_tasks.serve_fitted(model, preprocess, {}).labels


def test_other_backends_are_refused(preprocess, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="made on TensorFlow, but Keras runs on jax: save model"):
        albert_tf.export_saved_model(None, preprocess, tmp_path / "served")
    assert not (tmp_path / "served").exists()
