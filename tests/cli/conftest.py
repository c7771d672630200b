from __future__ import annotations

import pathlib

import pytest

from tests import pretraining_runs as runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """A file of records and a config of one layer; some modules have a folder of their own."""
    folder = tmp_path_factory.mktemp("pretraining")
    runs.write_records(folder / "a.tfrecord", runs.examples(31))
    runs.write_config(folder / "albert_config.json", num_hidden_layers=1)
    return folder
