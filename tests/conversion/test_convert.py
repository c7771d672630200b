"""The release's checkpoints through each layout and back; where a conversion may write."""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import pytest
import safetensors.numpy
import tensorflow as tf

import albert_tf
from albert_tf import conversion
from albert_tf.config import AlbertConfig
from albert_tf.conversion import huggingface, layouts
from albert_tf.conversion.convert import convert
from albert_tf.storage import checkpoint, files
from tests.kit import goldens, tiny

FOLDER = goldens.FOLDER.parent
HEADS = ("classifier", "cola", "race", "squad_v1", "squad_v2", "stsb")
SOURCES = (*(f"encoder/{v}" for v in goldens.VARIANTS), *(f"heads/{h}" for h in HEADS))


def assert_same(actual: pathlib.Path, expected: pathlib.Path, **lost: Any) -> None:
    """The weights are equal to the bit, the configs except for what the layout can't express."""
    after, before = (checkpoint.read(path) for path in (actual, expected))
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert (after[name].dtype, after[name].shape) == (value.dtype, value.shape), name
        assert name == "global_step" or after[name].tobytes() == value.tobytes(), name
    config = AlbertConfig.from_json_file(expected / "albert_config.json")
    assert albert_tf.load_config(actual) == dataclasses.replace(config, **lost)


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


def step(path: str, layout: str, target: str, weights: Mapping[str, bytes]) -> dict | None:
    """Converts, dropping what the error says must go; returns the new weights, None if refused."""
    drop: list[str] = []
    try:
        convert(path, layout, target)
    except ValueError as error:
        found = re.search("set `drop=(.*)`", str(error))
        drop = found[1].split(",") if found else []
        assert all(any(name.startswith(each) for name in weights) for each in drop), "invented"
        try:
            convert(path, layout, target, drop=drop)
        except ValueError:
            return None
    actual = {name: v.tobytes() for name, v in layouts.find(target).read_weights(target).items()}
    assert actual == {n: v for n, v in weights.items() if not n.startswith(tuple(drop))}
    return actual


@pytest.mark.parametrize(
    ("source", "architecture", "walks"),
    [
        ("encoder/base", None, 8),
        ("heads/classifier", None, 9),
        ("heads/classifier", "AlbertForTokenClassification", 4),
        ("heads/race", "AlbertForMultipleChoice", 9),
        ("heads/squad_v1", "AlbertForQuestionAnswering", 4),
        ("heads/squad_v2", None, 5),
    ],
)
def test_no_chain_of_conversions_invents_or_loses_weights(source, architecture, walks, tmp_path):
    """All chains of two conversions; errors name parts that a layout can't store, or needs."""

    def walk(path: str, layout: str, weights: Mapping[str, bytes], steps: int) -> int:
        done = 0
        for to in (each for each in layouts.LAYOUTS if steps and each != layout):
            reached = step(path, to, f"{path}-{to}", weights)
            done += (steps == 1) + walk(f"{path}-{to}", to, reached, steps - 1) if reached else 0
        return done

    first, layout = str(tmp_path / "first"), "huggingface" if architecture else "tf1"
    own = {"architecture": architecture, "drop": ["bert/pooler/"] if walks == 4 else []}
    convert(str(FOLDER / source), layout, first, **own if architecture else {})
    reader = layouts.find(first)
    weights = {name: value.tobytes() for name, value in reader.read_weights(first).items()}
    assert walk(first, layout, weights, 2) == walks


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_files_are_readable_as_the_umask_says(layout, tmp_path):
    umask = os.umask(0o027)
    try:
        convert(str(goldens.FOLDER / "base"), layout, str(tmp_path / "there"), drop=["cls/"])
    finally:
        os.umask(umask)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "there").iterdir()}
    assert modes == {0o640}


def test_a_target_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    """Renaming onto any of them would fail, but only after the work."""
    (tmp_path / "file").touch()
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("os.path.ismount", lambda path: path == str(tmp_path / "disk"))
    (tmp_path / "disk").mkdir()
    for path, message in {
        "": "is empty: give a new dir",
        ".": "can't be replaced, because it is a link, .*: name a new",
        "../link": "can't be replaced",
        "../disk": "can't be replaced",
        "../file/a/b": "can't be written: Not a directory",
        "..": "already exists: give a new directory, or an empty one",
    }.items():
        with pytest.raises(ValueError, match=message):
            files.check_free(path)
    files.check_free("new/deep")
    assert list((tmp_path / "here").iterdir()) == []


def test_a_target_that_is_not_local(copy_of, tmp_path):
    convert(str(copy_of("tf1")), "huggingface", str(tmp_path / "target"))
    convert(str(tmp_path / "target"), "huggingface", "ram://converted/target")
    for path in (tmp_path / "target").iterdir():
        with tf.io.gfile.GFile(f"ram://converted/target/{path.name}", "rb") as file:
            assert file.read() == path.read_bytes()
    with pytest.raises(ValueError, match="^ram://converted/target already exists: give a new"):
        convert(str(tmp_path / "target"), "keras", "ram://converted/target")
    with pytest.raises(ValueError, match="^nowhere://b/x can't be written: .*nowhere"):
        files.check_free("nowhere://b/x")


def test_a_target_that_is_not_local_appears_whole_or_not_at_all(monkeypatch):
    copy, copied, root = tf.io.gfile.copy, [], "ram://partly/model"

    def fail_at_last(source, target):
        copied.append(target.removeprefix(f"{root}/"))
        if target.endswith("saved_model.pb"):
            raise OSError("the disk is full")
        copy(source, target)

    monkeypatch.setattr(tf.io.gfile, "copy", fail_at_last)
    names = ["variables/variables.index", "fingerprint.pb", "saved_model.pb"]
    full = pytest.raises(OSError, match="the disk is full")
    with full, files.whole_directory(root) as folder:
        for name in names[::-1]:
            tiny.write(pathlib.Path(folder, name), name)
    assert copied == names and not tf.io.gfile.exists(root)


def test_hugging_face_directories_are_as_transformers_reads_them(golden, vocabulary, tmp_path):
    """A round trip would not reveal an error that is made in both directions."""
    tokenizer = vocabulary.tokenizer
    config = goldens.config("groups2_inner2", vocab_size=tokenizer.vocab_size)
    weights = conversion.named_weights(albert_tf.AlbertForPreTraining(config))
    weights = {name: value.numpy() for name, value in weights.items()}
    huggingface.write(str(tmp_path), config, weights, "AlbertForPreTraining", tokenizer)
    expected = (golden / "huggingface_names.txt").read_text().splitlines()
    names = safetensors.numpy.load_file(tmp_path / "model.safetensors").keys()
    assert sorted(names) == [line for line in expected if not line.startswith("#")]
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["hidden_act"] == "gelu_new"
    ids = [written[f"{name}_token_id"] for name in ("pad", "bos", "eos")]
    assert ids == tokenizer.convert_tokens_to_ids(["<pad>", "[CLS]", "[SEP]"])
