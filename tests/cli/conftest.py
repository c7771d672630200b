import pathlib

import pytest

from tests import finetune_runs
from tests import pretraining_runs as runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """A file of records and a config of one layer; some modules have a folder of their own."""
    folder = tmp_path_factory.mktemp("pretraining")
    runs.write_records(folder / "a.tfrecord", runs.examples(31))
    runs.write_config(folder / "albert_config.json", num_hidden_layers=1)
    return folder


@pytest.fixture(scope="session")
def mrpc(tmp_path_factory) -> pathlib.Path:
    """Four updates on MRPC, two evaluations, a prediction; its folder is not to be written to."""
    folder = tmp_path_factory.mktemp("mrpc")
    command = finetune_runs.command("mrpc", folder, do_train=True, do_eval=True, do_predict=True)
    finetune_runs.main(command)
    return folder


@pytest.fixture
def saved(monkeypatch) -> list:
    """What would have been exported, so far."""
    models = []
    save = "albert_tf.serving.saved_model.save"
    monkeypatch.setattr(save, lambda served, directory: models.append(served))
    return models
