"""Hugging Face's AlbertForTokenClassification, without transformers: names, no pooler, labels.

What transformers itself computes with it: tests/peers/test_hugging_face.py.
"""

import json

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import albert_tf
from albert_tf import conversion
from albert_tf.conversion import labels, names
from albert_tf.conversion.convert import convert
from tests import goldens, tiny
from tests.tiny import randomise

LABELS = ("O", "B-PER", "I-PER")


@pytest.fixture
def tagger():
    return randomise(albert_tf.AlbertForTokenClassification(goldens.config("base"), 3))


@pytest.fixture
def theirs(tagger, tmp_path):
    """A tagger as Hugging Face stores it, from the model's own file."""
    source = tmp_path / "ours"
    source.mkdir()
    tagger.save(source / "tagger.keras")
    labels.write(str(source), LABELS)
    said = convert(
        str(source),
        "huggingface",
        str(tmp_path / "theirs"),
        architecture="AlbertForTokenClassification",
        drop=["bert/pooler/"],
    )
    assert "AlbertForTokenClassification" in said and "not kept" not in said
    return tmp_path / "theirs"


def test_it_goes_out_without_a_pooler_and_with_labels(theirs, tagger):
    config = json.loads((theirs / "config.json").read_text())
    assert config["architectures"] == ["AlbertForTokenClassification"]
    assert config["id2label"] == {str(i): name for i, name in enumerate(LABELS)}
    assert config["label2id"] == {name: i for i, name in enumerate(LABELS)}
    stored = load_file(theirs / "model.safetensors")
    assert not any("pooler" in name for name in stored)
    assert stored["classifier.weight"].shape == (3, tagger.config.hidden_size)
    named = tiny.weights(tagger)
    np.testing.assert_array_equal(stored["classifier.weight"], named["output_weights"])
    np.testing.assert_array_equal(stored["classifier.bias"], named["output_bias"])


def test_it_comes_in_and_computes_the_same(theirs, tagger):
    model = albert_tf.AlbertForTokenClassification(albert_tf.load_config(theirs), 3)
    report = albert_tf.load_weights(model, theirs)
    assert report.unused == ()
    assert {names.tf1_name(path).rpartition("/")[0] for path in report.missing} == {
        "bert/pooler/dense"
    }
    assert conversion.lacking(model, report) == [], "no output depends on the pooler"
    features = goldens.arrays(goldens.FOLDER / "base" / "inputs.npz")
    inputs = {name: features[name] for name in ("input_ids", "input_mask", "segment_ids")}
    np.testing.assert_array_equal(model(inputs), tagger(inputs))
    assert labels.find(str(theirs), 3) == LABELS


def test_it_becomes_keras_own_file_of_the_same_class(theirs, tagger, tmp_path):
    convert(str(theirs), "keras", str(tmp_path / "keras"))
    model = keras.models.load_model(tmp_path / "keras" / "model.keras")
    assert type(model) is albert_tf.AlbertForTokenClassification
    inputs = {"input_ids": np.array([[2, 7, 9, 3]], np.int32)}
    np.testing.assert_array_equal(model(inputs), tagger(inputs))


def test_its_head_is_none_for_texts(theirs):
    message = "was trained for token_classification: load it with AlbertForTokenClassification"
    with pytest.raises(ValueError, match=message):
        albert_tf.AlbertForSequenceClassification.from_weights(theirs)
    with pytest.raises(ValueError, match=message):
        albert_tf.AlbertForMultipleChoice.from_weights(theirs)
    assert albert_tf.AlbertForTokenClassification.from_weights(theirs)
    assert albert_tf.AlbertModel.from_weights(theirs)


def test_what_came_without_a_pooler_goes_back_to_the_same_class(theirs, tmp_path):
    convert(str(theirs), "tf1", str(tmp_path / "tf1"))
    said = convert(str(tmp_path / "tf1"), "huggingface", str(tmp_path / "again"))
    assert "Hugging Face's AlbertForTokenClassification" in said
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (theirs / name).read_bytes()
