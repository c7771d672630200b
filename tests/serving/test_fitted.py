"""What export_saved_model makes of a model in memory; the notebook's test writes and reads one."""

from __future__ import annotations

import keras
import pytest

import albert_tf
from albert_tf.serving import fitted
from tests import pretraining_runs as runs


class Own(albert_tf.AlbertForSequenceClassification):
    """As one with a train_step of its own."""


@pytest.fixture
def preprocess(vocabulary):
    return albert_tf.Preprocessor(vocabulary, 16)


def model_of(num_labels: int, kind: type = albert_tf.AlbertForSequenceClassification):
    config = runs.config(num_hidden_layers=1, vocab_size=6000, max_position_embeddings=16)
    return kind(config, num_labels=num_labels)


def test_a_subclass_is_served(preprocess):
    served = fitted._served(model_of(3, Own), preprocess, {})
    assert served.task == "classify" and served.labels == ("0", "1", "2")
    with pytest.raises(ValueError, match="Functional can't be exported to take raw text, only Al"):
        fitted._served(keras.Sequential([keras.Input([3])])._functional, preprocess, {})
