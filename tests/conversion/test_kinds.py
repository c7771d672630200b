"""A classifier's kind, which its head's shapes don't tell, through the layouts and back."""

import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import albert_tf
from albert_tf import conversion
from albert_tf.answers.classify import Classify
from albert_tf.conversion import kinds, labels, layouts
from albert_tf.conversion.convert import convert
from tests.kit import goldens, tiny

HEADS = goldens.FOLDER.parent / "heads"
TAGGER, CLASSIFIER = "AlbertForTokenClassification", "AlbertForSequenceClassification"
# Hugging Face's class and its problem_type, for the release's model of this name.
KINDS = [
    ("classifier", CLASSIFIER, "multi_label_classification"),
    ("classifier", CLASSIFIER, "single_label_classification"),
    ("stsb", CLASSIFIER, "regression"),
    ("race", "AlbertForMultipleChoice", None),
]
ONE_LAYER = goldens.config("base", num_hidden_layers=1)


def config_of(folder: pathlib.Path, **changes) -> dict:
    values = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps(values))
    return values


def kind(folder: pathlib.Path) -> tuple[str, str | None]:
    return config_of(folder)["architectures"][0], config_of(folder).get("problem_type")


def hugging_face(source: str, architecture: str, problem_type: str | None, folder) -> pathlib.Path:
    """Returns a directory as other programs make it: only config.json tells the kind."""
    convert(str(HEADS / source), "huggingface", str(folder), architecture=architecture)
    config_of(folder, problem_type=problem_type)
    return folder


def saved(name: str, file: pathlib.Path, loss=None, **arguments) -> str:
    """Writes a model, compiled if there is a loss: only that tells what the model is for."""
    model = getattr(albert_tf, name)(ONE_LAYER, **arguments)
    if loss:
        model.compile("adam", loss)
    file.parent.mkdir(exist_ok=True)
    model.save(file)
    return str(file)


@pytest.mark.parametrize("between", layouts.LAYOUTS)
@pytest.mark.parametrize("expected", KINDS)
def test_hugging_faces_kind_is_kept(expected, between, tmp_path):
    theirs = hugging_face(*expected, tmp_path / "theirs")
    said = convert(str(theirs), between, str(tmp_path / "there"))
    # In KerasHub's layout a record beside the model keeps the kind, but something else is lost.
    assert ("kind of" if between == "kerashub" else "not kept") not in said
    assert "not kept" not in convert(str(tmp_path / "there"), "huggingface", str(tmp_path / "back"))
    assert kind(tmp_path / "back") == expected[1:]
    card = (tmp_path / "back" / "README.md").read_text()
    assert "## Training" not in card, "nobody knows how it was trained"


READING = Classify(labels=("a", "b", "c"), max_seq_length=16, pairs=True).to_json()


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_how_a_run_read_its_texts_goes_along(layout, tmp_path):
    trained = shutil.copytree(HEADS / "classifier", tmp_path / "trained")
    tiny.fine_tuned("mnli", reading=READING, task_name="mnli").write(str(trained))
    said = convert(str(trained), layout, str(tmp_path / "there"))
    assert "kind of classifier" not in said and "how texts were read" not in said
    record = json.loads((tmp_path / "there" / "run.json").read_text())
    assert record["task"] == {"name": "mnli", "kind": READING}


def test_how_a_run_read_its_texts_is_not_kept_for_another_class(tmp_path):
    trained, there = shutil.copytree(HEADS / "race", tmp_path / "trained"), tmp_path / "there"
    tiny.fine_tuned("race", reading={"max_qa_length": 9}).write(str(trained))
    said = convert(str(trained), "huggingface", str(there), architecture=CLASSIFIER)
    lost = "kind of classifier (AlbertForMultipleChoice), how texts were read (max_qa_length)"
    assert said.endswith(f"; not kept: {lost}")
    assert not (there / "run.json").exists()


def test_an_unknown_kind_is_refused_and_without_a_head_there_is_none(tmp_path):
    theirs = hugging_face(*KINDS[0][:2], "multi_label", tmp_path / "theirs")
    with pytest.raises(ValueError, match="theirs: problem_type must be one of .*regression"):
        convert(str(theirs), "tf1", str(tmp_path / "there"))
    race = hugging_face(*KINDS[3], tmp_path / "race")
    convert(str(race), "huggingface", str(tmp_path / "bare"), drop=["output_"])
    assert kind(tmp_path / "bare") == ("AlbertModel", None)


@pytest.mark.parametrize(
    ("num_labels", "loss", "expected"),
    [
        (None, None, ("AlbertForMultipleChoice", None)),
        (3, "BinaryCrossentropy", KINDS[0][1:]),
        (3, "BinaryFocalCrossentropy", KINDS[0][1:]),
        (3, "SparseCategoricalCrossentropy", KINDS[1][1:]),
        (1, "BinaryCrossentropy", KINDS[2][1:]),
    ],
)
def test_the_kind_of_a_keras_file_is_kept(num_labels, loss, expected, tmp_path):
    arguments = {"num_labels": num_labels} if num_labels else {}
    loss = getattr(keras.losses, loss)(from_logits=True) if loss else None
    file = saved(expected[0], tmp_path / "model.keras", loss, **arguments)
    assert "not kept" not in convert(file, "huggingface", str(tmp_path / "there"))
    assert kind(tmp_path / "there") == expected


def test_a_keras_file_becomes_keras_own_file_of_the_same_class(tmp_path):
    file = saved(TAGGER, tmp_path / "mine" / "model.keras", num_labels=3)
    assert convert(file, "keras", str(tmp_path / "there")).partition(": ")[2].startswith(TAGGER)
    with pytest.raises(ValueError, match=f"model.keras was trained for .*: load it with {TAGGER}"):
        albert_tf.AlbertForSequenceClassification.from_weights(file)
    inputs = (tagger := keras.models.load_model(file)).symbolic_inputs()
    keras.Model(inputs, tagger(inputs)).save(tmp_path / "functional.keras")
    assert kinds.find(str(tmp_path / "functional.keras")).kind == {"task": "tag"}


def test_a_tagger_goes_to_hugging_face_without_a_pooler_and_comes_back(tmp_path):
    """tests/peers/test_hugging_face.py compares it with transformers' own outputs."""
    tagger = tiny.randomise(albert_tf.AlbertForTokenClassification(ONE_LAYER, 3))
    tagger.save(tmp_path / "tagger.keras")
    labels.write(str(tmp_path), ("O", "B-PER", "I-PER"))
    there = tmp_path / "there"
    given = {"architecture": TAGGER, "drop": ["bert/pooler/"]}
    assert "not kept" not in convert(str(tmp_path), "huggingface", str(there), **given)
    assert kind(there) == (TAGGER, None)
    stored = load_file(there / "model.safetensors")
    assert not any("pooler" in name for name in stored)
    np.testing.assert_array_equal(stored["classifier.weight"], tagger.classifier.output_weights)
    np.testing.assert_array_equal(stored["classifier.bias"], tagger.classifier.output_bias)
    model = albert_tf.AlbertForTokenClassification(albert_tf.load_config(there), 3)
    report = albert_tf.load_weights(model, there)
    assert report.unused == () and all("/pooler/" in path for path in report.missing)
    assert conversion.lacking(model, report) == [], "no output depends on the pooler"
    inputs = {"input_ids": np.array([[2, 7, 8, 3]])}
    np.testing.assert_array_equal(model(inputs), tagger(inputs))
    assert labels.find(str(there), 3) == ("O", "B-PER", "I-PER")


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_dropout_and_activation_of_hugging_face_go_along_or_are_named(layout, tmp_path):
    """Its "gelu" is the exact one; ours, the release's, goes back as "gelu_new"."""
    theirs, there = tmp_path / "theirs", tmp_path / "there"
    convert(str(HEADS / "classifier"), "huggingface", str(theirs))
    assert config_of(theirs)["classifier_dropout_prob"] == 0.1
    config_of(theirs, classifier_dropout_prob=0.3, hidden_act="gelu")
    said = convert(str(theirs), layout, str(there))
    is_lost = layout in ("tf1", "kerashub")
    assert "; not kept: " in said and "hidden_act gelu (exact" in said
    assert ("classifier_dropout_prob (0.3)" in said) == is_lost
    model = albert_tf.AlbertForSequenceClassification.from_weights(there)
    assert model.classifier_dropout_prob == (0.1 if is_lost else 0.3)
    assert "not kept" not in convert(str(there), layout, str(tmp_path / "again"))


OTHERS = ("AlbertForQuestionAnsweringV2", TAGGER, "AlbertForMultipleChoice")
RATES = [*(("AlbertForQuestionAnswering", own) for own in (0.0, 0.4)), *((n, 0.4) for n in OTHERS)]


@pytest.mark.parametrize(("name", "own"), RATES)
def test_a_heads_dropout_is_its_own_classes(name, own, tmp_path):
    """A classifier initialised from a model with another head takes the release's rate."""
    of_class = {"num_labels": 3} if name == TAGGER else {}
    file = saved(name, tmp_path / "model.keras", classifier_dropout_prob=own, **of_class)
    assert "dropout_prob" not in convert(file, "keras", str(tmp_path / "kept"))
    again = getattr(albert_tf, name).from_weights(tmp_path / "kept")
    assert again.classifier_dropout_prob == own
    if "Question" in name:
        new = albert_tf.AlbertForSequenceClassification.from_weights(file, num_labels=2)
        assert new.classifier_dropout_prob == 0.1
    if name == "AlbertForQuestionAnswering":  # Hugging Face has no place for it.
        keep = {"architecture": name, "drop": ["bert/pooler/"]}
        said = convert(file, "huggingface", str(tmp_path / "theirs"), **keep)
        assert ("not kept: classifier_dropout_prob (0.4)" in said) == (own > 0)
        assert config_of(tmp_path / "theirs")["classifier_dropout_prob"] == 0.1
        there = albert_tf.AlbertForQuestionAnswering.from_weights(tmp_path / "theirs")
        assert there.classifier_dropout_prob == 0.0


def test_a_runs_dropout_is_its_heads(tmp_path):
    trained = shutil.copytree(HEADS / "classifier", tmp_path / "trained")
    tiny.fine_tuned("mnli", reading=READING, dropout_prob=0.3).write(str(trained))
    convert(str(trained), "huggingface", str(tmp_path / "theirs"))
    assert kind(tmp_path / "theirs")[0] == CLASSIFIER
    convert(str(trained), "huggingface", str(tmp_path / "alone"))
    (tmp_path / "alone" / "run.json").unlink()
    for path in (trained, tmp_path / "theirs", tmp_path / "alone"):
        model = albert_tf.AlbertForSequenceClassification.from_weights(path)
        assert model.classifier_dropout_prob == 0.3
