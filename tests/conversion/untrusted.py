"""Shared by tests of damaged and of malicious files."""

import json
import pathlib

import numpy as np
import pytest

import albert_tf
from albert_tf.conversion.convert import convert
from tests.kit import goldens

CONFIGS = {"tf1": "albert_config.json", "huggingface": "config.json", "kerashub": "config.json"}


def change_config(folder: pathlib.Path, layout: str, **changes) -> None:
    file = folder / CONFIGS[layout]
    values = json.loads(file.read_text())
    (values["config"] if layout == "kerashub" else values).update(changes)
    file.write_text(json.dumps(values))


def encoder() -> albert_tf.AlbertModel:
    return albert_tf.AlbertModel(goldens.config("base"))


def assert_refused(path: pathlib.Path, message: str) -> None:
    """Asserts that a file is neither loaded, leaving the model as it was, nor converted."""
    model = encoder()
    before = [value.copy() for value in model.get_weights()]
    with pytest.raises(ValueError, match=message) as error:
        albert_tf.load_weights(model, path)
    assert "\n" not in str(error.value)
    for value, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, old)
    target = path.with_name("target")
    with pytest.raises(ValueError, match=message):
        convert(str(path), "tf1", str(target))
    assert not target.exists()
