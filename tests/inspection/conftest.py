import dataclasses
import shutil

import numpy as np
import pytest

import albert_tf
from tests.kit.tiny import randomise
from tests.peers import models as peer_models


@pytest.fixture(scope="session")
def config(vocabulary):
    # Distinct primes, except for the number of heads, as in the peers' tests.
    base = peer_models.CONFIGS["one_group"]
    return dataclasses.replace(base, vocab_size=vocabulary.tokenizer.vocab_size)


@pytest.fixture(scope="session")
def encoder(config):
    return randomise(albert_tf.AlbertModel(config))


@pytest.fixture(scope="session")
def stored(config, vocabulary, tmp_path_factory) -> str:
    """A pretrained model, with its vocabulary beside it."""
    folder = tmp_path_factory.mktemp("stored")
    randomise(albert_tf.AlbertForPreTraining(config)).save(folder / "model.keras")
    shutil.copy(vocabulary.path, folder / "spiece.model")
    return str(folder / "model.keras")


@pytest.fixture(scope="session")
def features(config) -> dict[str, np.ndarray]:
    found = peer_models.inputs(config)
    return {name: found[name] for name in ("input_ids", "input_mask", "segment_ids")}
