"""Features on disk: made once, never stale, never half-written."""

from __future__ import annotations

import numpy as np
import pytest

from albert_tf.tasks import feature_table
from albert_tf.tasks.glue import TextExample

EXAMPLES = [TextExample("1", "a cat", None, 1), TextExample("2", "a dog", "b", 0)]
SETTINGS = {"max_seq_length": 7, "tokenizer": "abc"}


class Maker:
    """Makes two rows of unequal length, one with choices; counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, examples):
        self.count += 1
        for i, example in enumerate(examples, start=2):
            ids = np.arange(3 * i, dtype=np.int32).reshape(3, i)
            yield {"input_ids": ids, "label_ids": np.float32(example.label / 3)}


def load(tmp_path, make, examples=EXAMPLES, **changes):
    stem = str(tmp_path / "folder/rte_train")
    return feature_table.load_or_make_features(examples, make, {**SETTINGS, **changes}, stem)


def test_what_is_read_is_what_was_made(tmp_path):
    make = Maker()
    first, second = load(tmp_path, make), load(tmp_path, make)
    assert make.count == 1
    for table in (first, second):
        np.testing.assert_array_equal(table.lengths, [2, 3])
        np.testing.assert_array_equal(table.scalars["label_ids"], np.float32([1 / 3, 0]))
        ids = table.sequences["input_ids"]
        assert ids.dtype == np.int32
        np.testing.assert_array_equal(ids.T, [[0, 1, 0, 1, 2], [2, 3, 3, 4, 5], [4, 5, 6, 7, 8]])


@pytest.mark.parametrize(
    "change",
    [
        {"max_seq_length": 8},
        {"tokenizer": "abd"},
        {"examples": EXAMPLES[:1]},
        {"examples": EXAMPLES[::-1]},
        {"examples": [EXAMPLES[0], TextExample("2", "a dog", "b", 1)]},
        {"examples": [EXAMPLES[0], TextExample("2", "a dog", "c", 0)]},
    ],
    ids=["length", "vocabulary", "fewer", "order", "label", "text"],
)
def test_another_shape_of_features_is_another_file(tmp_path, change):
    make = Maker()
    load(tmp_path, make)
    load(tmp_path, make, **change)
    assert make.count == 2
    load(tmp_path, make)
    assert make.count == 2
    assert len(list((tmp_path / "folder").iterdir())) == 2


def test_a_killed_process_leaves_no_file_to_read(tmp_path, monkeypatch):
    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(feature_table.tf.io.gfile, "rename", killed)
        load(tmp_path, Maker())
    assert not list((tmp_path / "folder").glob("*.npz"))
    make = Maker()
    load(tmp_path, make)
    assert make.count == 1


@pytest.mark.parametrize("damage", ["empty", "half", "a byte of an array", "another file"])
def test_a_damaged_file_is_made_again(tmp_path, damage, caplog):
    make = Maker()
    load(tmp_path, make)
    (path,) = (tmp_path / "folder").iterdir()
    whole = path.read_bytes()
    byte = whole.index(b"NUMPY") + 60  # Of the first array's header: its shape.
    path.write_bytes(
        {
            "empty": b"",
            "half": whole[: len(whole) // 2],
            "a byte of an array": whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :],
            "another file": b"\x93NUMPY",
        }[damage]
    )
    np.testing.assert_array_equal(load(tmp_path, make).lengths, [2, 3])
    assert make.count == 2 and "is damaged: it is written again" in caplog.text
    assert path.read_bytes() == whole


def test_a_file_that_has_lost_an_array_is_made_again(tmp_path):
    """A changed byte in the end of the archive's list is enough for it."""
    make = Maker()
    load(tmp_path, make)
    (path,) = (tmp_path / "folder").iterdir()
    whole = path.read_bytes()
    with np.load(path) as stored:
        arrays = dict(stored)
    for name in arrays:
        np.savez(path, **{other: arrays[other] for other in arrays if other != name})
        np.testing.assert_array_equal(load(tmp_path, make).lengths, [2, 3])
        assert path.read_bytes() == whole
    assert make.count == 1 + len(arrays)


def test_examples_without_any_row_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="none of 2 examples yields any features"):
        load(tmp_path, lambda examples: iter(()))
    assert not (tmp_path / "folder").exists()
