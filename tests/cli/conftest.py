from __future__ import annotations

import pathlib

import pytest
import tensorflow as tf

from tests import finetune_runs
from tests import pretraining_runs as runs

# TensorFlow spends a sixth of these tests on optimising graphs that run for milliseconds. Numbers
# are compared in tests/model and tests/training, and processes run as a user's do.


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Has graphs run as they are."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def pytest_runtest_teardown() -> None:
    """Optimises them again."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


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
