"""What most tests of exports start from: the small SentencePiece model, a config that fits it."""

from __future__ import annotations

import pathlib

import pytest

from albert_tf.config import AlbertConfig
from albert_tf.text.vocabulary import Vocabulary
from tests import goldens


@pytest.fixture(scope="session")
def vocabulary(golden: pathlib.Path) -> Vocabulary:
    return Vocabulary.read(str(golden / "spm" / "en_small.model"), is_word_piece=False)


@pytest.fixture(scope="module")
def config(vocabulary: Vocabulary) -> AlbertConfig:
    return goldens.config("base", vocab_size=vocabulary.tokenizer.vocab_size, num_hidden_layers=1)
