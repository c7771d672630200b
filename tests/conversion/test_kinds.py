"""What a classifier is for, through the layouts and back: its heads' shapes don't tell."""

import json
import pathlib
import shutil

import keras
import pytest

import albert_tf
from albert_tf.answers.classify import Classify
from albert_tf.conversion import kinds, layouts
from albert_tf.conversion.convert import convert
from tests import goldens, tiny

HEADS = goldens.FOLDER.parent / "heads"
# Hugging Face's class and its problem_type, for the release's model of this name.
KINDS = [
    ("classifier", "AlbertForSequenceClassification", "multi_label_classification"),
    ("classifier", "AlbertForSequenceClassification", "single_label_classification"),
    ("stsb", "AlbertForSequenceClassification", "regression"),
    ("race", "AlbertForMultipleChoice", None),
]


def kind(folder: pathlib.Path) -> tuple[str, str | None]:
    config = json.loads((folder / "config.json").read_text())
    return config["architectures"][0], config.get("problem_type")


def hugging_face(source: str, architecture: str, problem_type: str | None, folder) -> pathlib.Path:
    """Returns a directory as others make it: all that tells is in config.json."""
    convert(str(HEADS / source), "huggingface", str(folder), architecture=architecture)
    file = folder / "config.json"
    theirs = {**json.loads(file.read_text()), "problem_type": problem_type}
    file.write_text(json.dumps(theirs))
    return folder


@pytest.mark.parametrize("between", layouts.LAYOUTS)
@pytest.mark.parametrize("expected", KINDS)
def test_hugging_faces_kind_is_kept(expected, between, tmp_path):
    theirs = hugging_face(*expected, tmp_path / "theirs")
    said = convert(str(theirs), between, str(tmp_path / "there"))
    # KerasHub has it in a record beside it, and no place for something else.
    assert ("kind of" if between == "kerashub" else "not kept") not in said
    assert "not kept" not in convert(str(tmp_path / "there"), "huggingface", str(tmp_path / "back"))
    assert kind(tmp_path / "back") == expected[1:]
    card = (tmp_path / "back" / "README.md").read_text()
    assert "## Training" not in card, "nobody knows how it was trained"


READING = Classify(labels=("a", "b", "c"), max_seq_length=16, pairs=True).to_json()
READER = tiny.fine_tuned("mnli", reading=READING, task_name="mnli")


@pytest.mark.parametrize("layout", ["tf1", "keras", "huggingface", "kerashub"])
def test_how_a_run_read_its_texts_goes_along(layout, tmp_path):
    trained = shutil.copytree(HEADS / "classifier", tmp_path / "trained")
    READER.write(str(trained))
    said = convert(str(trained), layout, str(tmp_path / "there"))
    assert "kind of classifier" not in said and "how texts were read" not in said
    record = json.loads((tmp_path / "there" / "run.json").read_text())
    assert record["task"] == {"name": "mnli", "kind": READING}


def test_how_a_run_read_its_texts_is_not_kept_for_another_class(tmp_path):
    trained = shutil.copytree(HEADS / "race", tmp_path / "trained")
    tiny.fine_tuned("race", reading={"max_qa_length": 9}).write(str(trained))
    there = tmp_path / "there"
    said = convert(
        str(trained), "huggingface", str(there), architecture="AlbertForSequenceClassification"
    )
    lost = "kind of classifier (AlbertForMultipleChoice), how texts were read (max_qa_length)"
    assert said.endswith(f"; not kept: {lost}")
    assert not (there / "run.json").exists()


def test_without_a_head_there_is_no_kind(tmp_path):
    theirs = hugging_face(*KINDS[3], tmp_path / "theirs")
    convert(str(theirs), "huggingface", str(tmp_path / "bare"), drop=["output_"])
    assert kind(tmp_path / "bare") == ("AlbertModel", None)


def test_an_unknown_kind_is_refused(tmp_path):
    theirs = hugging_face(*KINDS[0][:2], "multi_label", tmp_path / "theirs")
    with pytest.raises(ValueError, match="theirs: problem_type must be one of .*regression, not"):
        convert(str(theirs), "tf1", str(tmp_path / "there"))


ONE_LAYER = goldens.config("base", num_hidden_layers=1)
NLL = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
SEVERAL_LABELS = ("AlbertForSequenceClassification", "multi_label_classification")


def saved(name: str, num_labels: int | None, loss, file: pathlib.Path) -> pathlib.Path:
    """Returns the file of a model that was compiled, which alone tells what it is for."""
    arguments = {} if num_labels is None else {"num_labels": num_labels}
    model = getattr(albert_tf, name)(ONE_LAYER, **arguments)
    if loss:
        model.compile("adam", loss)
    file.parent.mkdir()
    model.save(file)
    return file


@pytest.mark.parametrize(
    ("num_labels", "loss", "expected"),
    [
        (3, None, ("AlbertForTokenClassification", None)),
        (None, None, ("AlbertForMultipleChoice", None)),
        (3, keras.losses.BinaryCrossentropy(from_logits=True), SEVERAL_LABELS),
        (3, keras.losses.BinaryFocalCrossentropy(from_logits=True), SEVERAL_LABELS),
        (3, NLL, (SEVERAL_LABELS[0], "single_label_classification")),
        (1, keras.losses.BinaryCrossentropy(from_logits=True), (SEVERAL_LABELS[0], "regression")),
    ],
)
def test_the_kind_of_a_keras_file_is_kept(num_labels, loss, expected, tmp_path):
    file = saved(expected[0], num_labels, loss, tmp_path / "mine" / "model.keras")
    drop = ["bert/pooler/"] if expected[0] == "AlbertForTokenClassification" else []
    said = convert(str(file.parent), "huggingface", str(tmp_path / "there"), drop=drop)
    assert "not kept" not in said
    assert kind(tmp_path / "there") == expected


def test_a_keras_file_becomes_keras_own_file_of_the_same_class(tmp_path):
    name = "AlbertForTokenClassification"
    file = saved(name, 3, None, tmp_path / "mine" / "model.keras")
    assert convert(str(file), "keras", str(tmp_path / "there")).partition(": ")[2].startswith(name)
    with pytest.raises(ValueError, match=f"model.keras was trained for .*: load it with {name}"):
        albert_tf.AlbertForSequenceClassification.from_weights(file)
    inputs = (tagger := keras.models.load_model(file)).symbolic_inputs()
    keras.Model(inputs, tagger(inputs)).save(tmp_path / "functional.keras")
    assert kinds.find(str(tmp_path / "functional.keras")).kind == {"task": "tag"}


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_dropout_and_activation_of_hugging_face_go_along_or_are_named(layout, tmp_path):
    """Its "gelu" is the exact one; ours, the release's, goes back as "gelu_new"."""
    theirs, there = tmp_path / "theirs", tmp_path / "there"
    convert(str(HEADS / "classifier"), "huggingface", str(theirs))
    values = json.loads((theirs / "config.json").read_text())
    assert values["classifier_dropout_prob"] == 0.1
    values |= {"classifier_dropout_prob": 0.3, "hidden_act": "gelu"}
    (theirs / "config.json").write_text(json.dumps(values))
    said = convert(str(theirs), layout, str(there))
    assert "; not kept: " in said and "hidden_act gelu (exact" in said
    assert ("classifier_dropout_prob (0.3)" in said) == (layout in ("tf1", "kerashub"))
    model = albert_tf.AlbertForSequenceClassification.from_weights(there)
    assert model.classifier_dropout_prob == (0.1 if layout in ("tf1", "kerashub") else 0.3)
    assert "not kept" not in convert(str(there), layout, str(tmp_path / "again"))


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("AlbertForQuestionAnswering", 0.0),
        ("AlbertForQuestionAnswering", 0.4),
        ("AlbertForQuestionAnsweringV2", 0.4),
        ("AlbertForTokenClassification", 0.4),
        ("AlbertForMultipleChoice", 0.4),
    ],
)
def test_a_heads_dropout_is_its_own_classes(name, own, tmp_path):
    """A classifier that begins with the weights of another head takes the release's rate."""
    of_class = {"num_labels": 3} if name == "AlbertForTokenClassification" else {}
    model = getattr(albert_tf, name)(ONE_LAYER, classifier_dropout_prob=own, **of_class)
    model.save(tmp_path / "model.keras")
    assert "dropout_prob" not in convert(
        str(tmp_path / "model.keras"), "keras", str(tmp_path / "kept")
    )
    again = getattr(albert_tf, name).from_weights(tmp_path / "kept")
    assert again.classifier_dropout_prob == own
    if not of_class and name != "AlbertForMultipleChoice":
        new = albert_tf.AlbertForSequenceClassification.from_weights(
            tmp_path / "kept", num_labels=2
        )
        assert new.classifier_dropout_prob == 0.1


@pytest.mark.parametrize("own", [0.0, 0.4])
def test_a_question_answerers_dropout_is_not_a_classifiers_elsewhere(own, tmp_path):
    model = albert_tf.AlbertForQuestionAnswering(ONE_LAYER, classifier_dropout_prob=own)
    model.save(tmp_path / "model.keras")
    keep = {"architecture": "AlbertForQuestionAnswering", "drop": ["bert/pooler/"]}
    said = convert(str(tmp_path / "model.keras"), "huggingface", str(tmp_path / "theirs"), **keep)
    assert ("not kept: classifier_dropout_prob (0.4)" in said) == (own > 0)
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["classifier_dropout_prob"] == 0.1
    there = albert_tf.AlbertForQuestionAnswering.from_weights(tmp_path / "theirs")
    assert there.classifier_dropout_prob == 0.0


def test_a_runs_dropout_is_its_heads(tmp_path):
    trained = shutil.copytree(HEADS / "classifier", tmp_path / "trained")
    tiny.fine_tuned("mnli", reading=READING, dropout_prob=0.3).write(str(trained))
    convert(str(trained), "huggingface", str(tmp_path / "theirs"))
    assert kind(tmp_path / "theirs")[0] == "AlbertForSequenceClassification"
    for path in (trained, tmp_path / "theirs"):
        model = albert_tf.AlbertForSequenceClassification.from_weights(path)
        assert model.classifier_dropout_prob == 0.3
    (tmp_path / "theirs" / "run.json").unlink()
    model = albert_tf.AlbertForSequenceClassification.from_weights(tmp_path / "theirs")
    assert model.classifier_dropout_prob == 0.3
