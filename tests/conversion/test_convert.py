"""The release's checkpoints, through each layout and back."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.conversion.convert import convert
from albert_tf.storage import checkpoint
from tests import goldens

FOLDER = goldens.FOLDER.parent
HEADS = ("classifier", "cola", "race", "squad_v1", "squad_v2", "stsb")
SOURCES = (*(f"encoder/{v}" for v in goldens.VARIANTS), *(f"heads/{h}" for h in HEADS))


def description(path: pathlib.Path) -> dict[str, tuple]:
    """Returns the shape and dtype of each tensor of a checkpoint, as TensorFlow sees them."""
    reader = tf.train.load_checkpoint(checkpoint.resolve(path))
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    return {name: (shape, dtypes[name]) for name, shape in shapes.items()}


def assert_same(actual: pathlib.Path, expected: pathlib.Path, **lost: Any) -> None:
    """The same weights to the bit, and the same config but for what the layout can't say."""
    assert description(actual) == description(expected)
    after, before = (checkpoint.read(path) for path in (actual, expected))
    for name in set(before) - {"global_step"}:
        assert after[name].tobytes() == before[name].tobytes(), name
    after, before = (
        AlbertConfig.from_json_file(path / "albert_config.json") for path in (actual, expected)
    )
    assert after == dataclasses.replace(before, **lost)


@pytest.mark.parametrize("source", SOURCES)
def test_the_releases_checkpoint_again(source, tmp_path):
    convert(str(FOLDER / source), "tf1", str(tmp_path / "tf1"))
    assert_same(tmp_path / "tf1", FOLDER / source)


# Where a layout has no place for a head, or for another dropout, the release's model has none here.
@pytest.mark.parametrize(
    ("source", "layout", "architecture"),
    [
        *((source, "keras", None) for source in SOURCES),
        *((source, "huggingface", None) for source in SOURCES if "squad" not in source),
        ("heads/race", "huggingface", "AlbertForMultipleChoice"),
        ("heads/classifier", "kerashub", None),
        ("heads/stsb", "kerashub", None),
    ],
)
def test_there_and_back(source, layout, architecture, tmp_path):
    there, back = str(tmp_path / "there"), tmp_path / "back"
    convert(str(FOLDER / source), layout, there, architecture=architecture)
    convert(there, "tf1", str(back))
    lost = {"initializer_range": 0.02} if layout == "kerashub" else {}
    assert_same(back, FOLDER / source, **lost)
