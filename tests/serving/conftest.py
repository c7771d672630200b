"""What most tests of exports start from: a config that fits the small SentencePiece model."""

import pytest

import albert_tf
from albert_tf.config import AlbertConfig
from albert_tf.text.vocabulary import Vocabulary
from tests import goldens
from tests.tiny import randomise


@pytest.fixture(scope="module")
def config(vocabulary: Vocabulary) -> AlbertConfig:
    return goldens.config("base", vocab_size=vocabulary.tokenizer.vocab_size, num_hidden_layers=1)


@pytest.fixture(scope="module")
def classifier(config: AlbertConfig) -> albert_tf.AlbertForSequenceClassification:
    """Of three classes."""
    return randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=3))
