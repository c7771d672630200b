import pathlib
from collections.abc import Iterator

import pytest

from tests.kit import pretraining_runs


@pytest.fixture(scope="module")
def folder(museum) -> pathlib.Path:
    """A file of records and a config of one layer; some modules have a folder of their own."""
    return museum("records")


@pytest.fixture(scope="session")
def trained(museum) -> pathlib.Path:
    """The output_dir of three updates and an evaluation."""
    return museum("pretrained") / "out"


@pytest.fixture(scope="session")
def mrpc(museum) -> pathlib.Path:
    """Four updates on MRPC, two evaluations, a prediction."""
    return museum("mrpc")


@pytest.fixture
def saved(monkeypatch) -> list:
    """The served models that would have been exported so far; none is written."""
    models = []
    save = "albert_tf.serving.saved_model.save"
    monkeypatch.setattr(save, lambda served, directory: models.append(served))
    return models


@pytest.fixture
def counted() -> Iterator[None]:
    """Fake training steps, without gradients: for tests of files, messages and classes."""
    with pretraining_runs.counted_steps():
        yield
