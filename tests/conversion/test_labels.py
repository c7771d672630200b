"""Names of classes, from a run's directory through each layout and back."""

import json
import shutil

import pytest

from albert_tf.conversion import labels, layouts
from albert_tf.conversion.convert import convert
from tests.kit import goldens

NAMES = ("no", "ja", "ä\n\u2028b")
CLASSIFIER = goldens.FOLDER.parent / "heads/classifier"


@pytest.fixture
def trained(tmp_path):
    """A classifier of three classes, whose names lie beside its weights."""
    folder = shutil.copytree(CLASSIFIER, tmp_path / "trained")
    labels.write(str(folder), NAMES)
    return str(folder)


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_names_go_along_or_are_said_to_be_lost(trained, layout, tmp_path):
    there, back = str(tmp_path / "there"), str(tmp_path / "back")
    said = convert(trained, layout, there)
    assert labels.count(there) == 3
    if layout == "kerashub":
        assert said.endswith("; not kept: initializer_range, labels (no, ja, ä\n\u2028b)")
        return
    assert "not kept" not in said
    assert labels.find(there, 3) == NAMES
    convert(there, "tf1", back)
    assert labels.read(back) == NAMES


@pytest.mark.parametrize("is_named", [True, False])
def test_hugging_face_has_them_in_its_config(is_named, trained, tmp_path):
    expected = NAMES if is_named else ("LABEL_0", "LABEL_1", "LABEL_2")
    convert(trained if is_named else str(CLASSIFIER), "huggingface", str(tmp_path / "there"))
    config = json.loads((tmp_path / "there/config.json").read_text())
    assert config["id2label"] == {str(i): name for i, name in enumerate(expected)}
    assert config["label2id"] == {name: i for i, name in enumerate(expected)}
    # Made-up names do not count as names.
    assert labels.find(str(tmp_path / "there"), 3) == (NAMES if is_named else ())


def test_those_of_another_model_are_refused(trained, tmp_path):
    labels.write(trained, NAMES[:2])
    with pytest.raises(ValueError, match=r"expected 3 labels .*, got 2 \(no, ja\)"):
        convert(trained, "tf1", str(tmp_path / "there"))
    assert labels.find(trained, 1) == (), "a regression has no classes"
    assert labels.count(str(goldens.FOLDER / "base")) == 0, "nor has what is no classifier"


MANY = b"".join(b'"%d"\n' % i for i in range(100_000))
BY_ID = (5, True, "ab", ["a", "b"], {"0": "a", "2": "b"}, {"0": "a", "1": "a"})
BY_ID += ({"0": 1, "1": "1"}, {"0": 1, "1": 1.0}, {"0": "a", "1": None}, {"0": "a", "1": [1]})


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("labels.jsonl", b'"a"\n"b', "labels.jsonl:2 is not JSON"),
        ("labels.jsonl", b'"a"\n1\n', "labels.jsonl:2: .* not listed before, got 1"),
        ("labels.jsonl", b'"a"\n"a"\n', "labels.jsonl:2: .* not listed before, got 'a'"),
        ("labels.jsonl", b'"\xff"\n', "labels.jsonl:1: not UTF-8 text"),
        ("labels.jsonl", MANY + b'"a"\n', "has 100,001 labels"),
        ("labels.jsonl", MANY, "expected 2 labels .* got 100000"),
        *(("config.json", by_id, "id2label") for by_id in BY_ID),
        ("config.json", dict.fromkeys(range(100_001), "a"), "has 100,001 labels"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_damaged_names_are_refused(file, content, message, tmp_path):
    if file == "config.json":
        content = json.dumps({"model_type": "albert", "id2label": content}).encode()
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        labels.find(str(tmp_path), 2)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([1, 2, 5], ("1", "2", "5")),
        ([1.0, 0.5, "1.0"], ("1", "0.5", "1.0")),
        ([True, "no", 3], ("true", "no", "3")),
        (["0", "1", "2"], ("0", "1", "2")),
    ],
)
def test_names_in_the_config_may_be_numbers(given, names, tmp_path):
    config = {"model_type": "albert", "id2label": dict(enumerate(given))}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert labels.find(str(tmp_path), 3) == names
