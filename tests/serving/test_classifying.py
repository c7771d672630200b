"""Classifiers of raw text: several labels for a text."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import export
from albert_tf.serving import answers
from albert_tf.tasks import metrics, sequence_features
from albert_tf.text.vocabulary import Vocabulary
from tests import goldens, tolerances
from tests.random_weights import randomise

TEXTS = ("The capital, 1990, yes.", "", "word " * 90)
LABELS = ("art", "law", "war")


@pytest.fixture(scope="module")
def vocabulary(golden):
    return Vocabulary.read(str(golden / "spm" / "en_small.model"), is_word_piece=False)


@pytest.fixture(scope="module")
def model(vocabulary):
    size = vocabulary.tokenizer.vocab_size
    config = goldens.config("base", vocab_size=size, num_hidden_layers=1)
    return randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=3))


def probabilities_of(model, vocabulary, text):
    features = sequence_features.pair_features(vocabulary.tokenizer, text, None, 64)
    return metrics.sigmoid(model({name: value[None] for name, value in features.items()}))[0]


@pytest.mark.parametrize("threshold", [None, 0.0])
def test_a_text_has_each_label_that_reaches_the_threshold(model, vocabulary, threshold):
    served = export.Classifier(model, vocabulary, LABELS, multilabel=True, threshold=threshold)
    signature = served.signatures()["serving_default"]
    found = {name: value.numpy() for name, value in signature(text=tf.constant(TEXTS)).items()}
    assert ("threshold" in found) == (threshold is not None)
    for row, text in enumerate(TEXTS):
        expected = probabilities_of(model, vocabulary, text)
        np.testing.assert_allclose(found["probabilities"][row], expected, atol=tolerances.OUTPUT)
        least = 0.5 if threshold is None else threshold
        names = [name for name, share in zip(LABELS, expected, strict=True) if share >= least]
        answer = answers.MAKERS["labels"]({name: value[row] for name, value in found.items()})
        assert answer["label"] == "|".join(names)
        assert list(answer["probabilities"]) == list(LABELS)


def test_what_has_no_labels_has_not_several(vocabulary):
    config = goldens.config("base", vocab_size=6000, num_hidden_layers=1)
    regression = albert_tf.AlbertForSequenceClassification(config, num_labels=1)
    with pytest.raises(ValueError, match="`multilabel` is for classes, and the model is a regre"):
        export.Classifier(regression, vocabulary, multilabel=True)
