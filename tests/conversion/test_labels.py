"""Names of classes, from a run's directory through each layout and back."""

import json
import shutil

import pytest

from albert_tf.conversion import labels, layouts
from albert_tf.conversion.convert import convert
from tests import goldens

NAMES = ("no", "ja", "ä\n\u2028b")
CLASSIFIER = goldens.FOLDER.parent / "heads/classifier"


@pytest.fixture
def trained(tmp_path):
    """A classifier of three classes, whose names lie beside its weights."""
    folder = shutil.copytree(CLASSIFIER, tmp_path / "trained")
    labels.write(str(folder), NAMES)
    return str(folder)


@pytest.mark.parametrize("layout", ["tf1", "keras", "huggingface"])
def test_names_go_along(trained, layout, tmp_path):
    there, back = str(tmp_path / "there"), str(tmp_path / "back")
    assert "not kept" not in convert(trained, layout, there)
    assert labels.find(there, 3) == NAMES
    convert(there, "tf1", back)
    assert labels.read(back) == NAMES


@pytest.mark.parametrize("layout", ["tf1", "keras", "huggingface", "kerashub"])
def test_classes_are_counted_without_reading_an_encoder(trained, layout, tmp_path, monkeypatch):
    there = str(tmp_path / "there")
    convert(trained, layout, there)
    convert(str(goldens.FOLDER / "base"), layout, str(tmp_path / "none"), drop=["cls/"])
    if layout != "keras":  # Whose weights are in one file, by numbers.
        monkeypatch.setattr(layouts.find(there), "read_weights", None)
    assert labels.count(there) == 3
    assert labels.count(str(tmp_path / "none")) == 0


def test_hugging_face_has_them_in_its_config(trained, tmp_path):
    convert(trained, "huggingface", str(tmp_path / "named"))
    config = json.loads((tmp_path / "named/config.json").read_text())
    assert config["id2label"] == {str(i): name for i, name in enumerate(NAMES)}
    assert config["label2id"] == {name: i for i, name in enumerate(NAMES)}
    # Its own names are none.
    convert(str(CLASSIFIER), "huggingface", str(tmp_path / "nameless"))
    config = json.loads((tmp_path / "nameless/config.json").read_text())
    assert config["label2id"] == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
    assert labels.find(str(tmp_path / "nameless"), 3) == ()


def test_what_a_layout_has_no_place_for_is_said(trained, tmp_path):
    said = convert(trained, "kerashub", str(tmp_path / "there"))
    assert said.endswith("; not kept: initializer_range, labels (no, ja, ä\n\u2028b)")


def test_those_of_another_model_are_refused(trained, tmp_path):
    labels.write(trained, NAMES[:2])
    with pytest.raises(ValueError, match=r"expected 3 labels .*, got 2 \(no, ja\)"):
        convert(trained, "tf1", str(tmp_path / "there"))
    assert labels.find(trained, 1) == (), "a regression has no classes"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'"a"\n"b', "labels.jsonl:2 is not JSON"),
        (b'"a"\n1\n', "labels.jsonl:2: expected a label that is not listed before, got 1"),
        (b'"a"\n"a"\n', "labels.jsonl:2: expected a label that is not listed before, got 'a'"),
        (b'"\xff"\n', "labels.jsonl:1: not UTF-8 text"),
        (
            b"".join(b'"%d"\n' % i for i in range(1_000_000)),
            "has 1,000,000 labels, more than 100,000",
        ),
        (b"".join(b'"%d"\n' % i for i in range(100_000)), "expected 2 labels .* got 100000"),
    ],
)
def test_damaged_names_are_refused(content, message, tmp_path):
    (tmp_path / labels.LABELS_FILE).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        labels.find(str(tmp_path), 2)


def test_a_run_without_names_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="labels.jsonl does not exist: it lists the labels"):
        labels.read(str(tmp_path))


@pytest.mark.parametrize(
    "by_id",
    [
        *(5, True, "ab", ["a", "b"], {"0": "a", "2": "b"}, {"0": "a", "1": "a"}),
        dict.fromkeys(range(100_001), "a"),
    ],
    ids=lambda by_id: str(by_id)[:20],
)
def test_damaged_names_of_hugging_face_are_refused(by_id, tmp_path):
    config = {"model_type": "albert", "id2label": by_id}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="config.json(: id2label must | has 100,001 labels, more)"):
        labels.find(str(tmp_path), 2)
