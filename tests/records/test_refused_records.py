"""Record files and values that are refused, in one line."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records import example_encoding, input_files, masking
from albert_tf.records.spec import RowFormat, pretraining_spec
from tests.kit import pretraining_runs as runs
from tests.kit import tiny
from tests.kit.files import all_words, refused

SPEC = pretraining_spec(runs.LENGTH, runs.PREDICTIONS, vocab_size=tiny.CONFIG["vocab_size"])
WHOLE = [f"a-0000{i}-of-00002" for i in (0, 1)]
ROW = RowFormat(19, 307, 1, 7, 11, 13)


def find(pattern):
    return lambda here: input_files.find_files(str(here / pattern) if pattern else pattern)


def check(spec):
    return lambda here: input_files.check_features([str(here / "a")], spec)


def lay_out(*lengths):
    ids = np.zeros((1, 17), np.int32)
    return lambda here: masking.Rows.lay_out(ids, np.array([lengths]), ids > 0, ROW)


def write_short_example(here):
    (example,) = runs.examples(1)
    runs.serialized([{**example, "segment_ids": example["segment_ids"][:-1]}], SPEC)


def encode(*values):
    return lambda here: example_encoding.encode_examples({"x": np.array([values])})


# Files that hold two examples, or a record of these bytes; a call, and words of its message.
REFUSED = [
    ({}, find("none.tfrecord"), "none.tfrecord exist"),
    ({}, find("none*"), "none* exist: matches"),
    ({}, lambda here: input_files.find_files(" ,"), "no input file"),
    ({"empty": None}, find("empty"), "empty empty: generate"),
    ({"a": 2}, find("."), "directory: /*"),
    ({"a.unfinished": 2}, find("a*.unfinished"), "a.unfinished unfinished command"),
    ({"a.unfinished.json": 2}, find("a*"), "a.unfinished.json unfinished command"),
    # Shards of two runs; an unsharded file, and shards of its name.
    (dict.fromkeys([*WHOLE, "a-00000-of-00001"], 2), find("*"), "several runs a-*-of-00002"),
    ({"a": 2, "a-00000-of-00001": 2}, find("*"), "several runs a-*-of-00001"),
    ({"a": 2}, check(pretraining_spec(19, 5)), "record 0 23 input_ids, 19: `max_seq_length=23`"),
    ({"a": 2}, check(pretraining_spec(23, 7)), "record 0 5 7: `max_predictions_per_seq=5`"),
    ({"a": b"Four score"}, check(SPEC), "record 0 tf.train.Example"),
    ({"a": b""}, check(SPEC), "record 0 input_ids type"),
    ({}, write_short_example, "segment_ids: (23,), (22,)"),
    ({}, encode(3, -1), "integers 0, -1"),
    ({}, lay_out(10, 7), "17 tokens, 16"),
    ({}, lay_out(9, 14), "23 tokens, 16"),
    (
        {},
        lambda here: masking.MaskingSettings(9, 4, mask_replace_prob=0.9, random_replace_prob=0.2),
        "`mask_replace_prob` `random_replace_prob`, 0.9 0.2,",
    ),
]


@pytest.mark.parametrize(("files", "call", "message"), REFUSED)
def test_what_is_refused(files, call, message, tmp_path):
    for name, content in files.items():
        (tmp_path / name).touch()
        if content == 2:
            runs.write_records(tmp_path / name, runs.examples(2))
        elif content is not None:
            with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
                writer.write(content)
    with refused(all_words(message), tmp_path, exception=(ValueError, OSError)):
        call(tmp_path)
