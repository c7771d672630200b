"""Hugging Face's AlbertForTokenClassification, without transformers: names, no pooler, labels.

What transformers itself computes with it: tests/peers/test_hugging_face.py.
"""

import json

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
