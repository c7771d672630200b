"""Checks of TFRecord files before a run.

Not tested here: files on Google Cloud Storage.
"""

import json
import os
import pathlib
import pkgutil
import shutil

import pytest
import tensorflow as tf

from albert_tf.records import input_files
from albert_tf.records.input_files import untuned
from albert_tf.records.spec import pretraining_spec
from tests.kit import pretraining_runs as runs
from tests.kit import tiny

SPEC = pretraining_spec(runs.LENGTH, runs.PREDICTIONS, vocab_size=tiny.CONFIG["vocab_size"])
COUNTS = (13, 5, 11)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("records")
    return [
        str(runs.write_records(folder / f"{i}.tfrecord", runs.examples(count)))
        for i, count in enumerate(COUNTS)
    ]


def count(files: list[str], cache: str | None = None) -> list[int]:
    return [index.records for index in input_files.index_records(files, cache)]


def test_files_are_found_in_order_and_once(files):
    folder = os.path.dirname(files[0])
    patterns = f" {files[2]}, {folder}/*.tfrecord,,{files[0]}"
    assert input_files.find_files(patterns) == [files[2], files[0], files[1]]


def test_one_of_two_runs_may_be_chosen(files, tmp_path):
    for name in ("a.tfrecord", "a.tfrecord-00000-of-00001", "a.tfrecord2"):
        shutil.copy(files[0], tmp_path / name)
    assert len(input_files.find_files(f"{tmp_path}/a.tfrecord,{tmp_path}/a.tfrecord2")) == 2
    # Records tell how many predictions they have room for.
    assert input_files.count_prediction_slots(files[0]) == runs.PREDICTIONS
    compact = runs.write_records(tmp_path / "compact", runs.compact_examples(3, seed=1))
    assert input_files.count_prediction_slots(str(compact)) == 1


@pytest.mark.parametrize(
    ("pattern", "missing"),
    [
        ("a-*", "5 of the 8 shards of {}/a are missing, the first is {}/a-00002-of-00008:"),
        ("*", "5 of the 8 shards of {}/a are missing, the first is {}/a-00002-of-00008:"),
        ("a-0000[0-3]-of-00008", "1 of the 8 shards of {}/a are missing, the first is {}/a-00002"),
        ("a-0000[0-1]-*, {}/a-00003-of-00008", None),
        ("b-*", None),
        ("c[1]/a-*", "2 of the 3 shards of {}/c[1]/a are missing, the first is {}/c[1]/a-00000-of"),
    ],
)
def test_shards_that_a_pattern_asks_for_are_missed(files, tmp_path, caplog, pattern, missing):
    names = ["a-00000-of-00008", "a-00001-of-00008", "a-00003-of-00008", "b-00000-of-00001"]
    (tmp_path / "c[1]").mkdir()
    for name in (*names, "c[1]/a-00002-of-00003"):
        shutil.copy(files[0], tmp_path / name)
    input_files.find_files(f"{tmp_path}/{pattern.format(tmp_path)}")
    assert ("missing" in caplog.text) == bool(missing)
    assert (missing or "").format(tmp_path, tmp_path) in caplog.text


def test_records_are_found_where_they_begin(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "_COUNTED_AT_ONCE", 2 * input_files.STRETCH)
    path = str(runs.write_records(tmp_path / "a.tfrecord", runs.examples(71)))
    (index,) = input_files.index_records([path], str(tmp_path / "index.json"))
    offsets = boundaries(path)
    assert index.records == 71
    assert index.starts.tolist() == [offsets[0], offsets[32], offsets[64], offsets[71]]
    (again,) = input_files.index_records([path], str(tmp_path / "index.json"))
    assert again.records == 71 and again.starts.tolist() == index.starts.tolist()


def test_counts_are_remembered_until_a_file_changes(files, tmp_path, monkeypatch):
    cache = str(tmp_path / "counts.json")
    path = str(runs.write_records(tmp_path / "a.tfrecord", runs.examples(7)))
    read = []
    index = input_files._index_file
    monkeypatch.setattr(input_files, "_index_file", lambda p: read.append(p) or index(p))
    assert count([path, files[0]], cache) == [7, 13]
    assert count([files[0], path], cache) == [13, 7]
    assert sorted(read) == sorted([path, files[0]])
    runs.write_records(tmp_path / "a.tfrecord", runs.examples(3))
    assert count([path, files[0]], cache) == [3, 13]
    assert read[2:] == [path]
    # The same size, but written again.
    os.utime(path, ns=(1, 1))
    assert count([path], cache) == [3]
    assert read[3:] == [path]


@pytest.mark.parametrize("function", ["albert_tf.records.input_files._index_file", "os.replace"])
def test_training_and_evaluation_share_their_counts(files, tmp_path, monkeypatch, function):
    """One counts other files while the other counts, or is about to rename its result."""
    cache = str(tmp_path / "counts.json")
    real = pkgutil.resolve_name(function)

    def late(*args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(function, real)
            count(files[1:], cache)
        return real(*args, **kwargs)

    monkeypatch.setattr(function, late)
    assert count(files[:1], cache) == [13]
    known = set(json.loads((tmp_path / "counts.json").read_text()))
    assert known == set(files) if function.endswith("_index_file") else files[0] in known
    assert os.listdir(tmp_path) == ["counts.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "\xff", "{}", '{"files": [3]}', "[" * 10**5])
def test_a_damaged_memory_of_counts_is_no_harm(files, tmp_path, text):
    cache = tmp_path / "counts.json"
    cache.write_bytes(text.encode("latin-1"))
    assert count(files, str(cache)) == list(COUNTS)
    assert set(json.loads(cache.read_text())) == set(files)


def boundaries(path: str) -> list[int]:
    offsets = [0]
    for record in untuned(tf.data.TFRecordDataset(path)):
        offsets.append(offsets[-1] + len(record.numpy()) + 16)
    return offsets


# Where a record is cut or has a bit flipped, from its start or, if negative, from its end.
PLACES = {"length": (5, 3), "body": (100, 70), "end": (-1, -1)}


@pytest.mark.parametrize("record", [0, 7, 12])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("kind", ["cut", "flip"])
def test_damage_names_file_and_record(files, tmp_path, kind, where, record):
    data = bytearray(pathlib.Path(files[0]).read_bytes())
    start, end = boundaries(files[0])[record : record + 2]
    place = PLACES[where][kind == "flip"]
    place += start if place > 0 else end
    if kind == "cut":
        del data[place:]
    else:
        data[place] ^= 4
    path = tiny.write(tmp_path / "bad.tfrecord", bytes(data))
    message = f"bad.tfrecord, record {record}, is truncated or corrupt .*: copy or generate"
    with pytest.raises(ValueError, match=message) as caught:
        count([files[1], path])
    assert "\n" not in str(caught.value)
    if where != "length" or kind == "flip":
        with pytest.raises(ValueError, match=message):
            input_files.check_features([path], SPEC)
