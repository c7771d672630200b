"""Stored and fitted models as served ones: for what they were trained, and for nothing else."""

import json
import pathlib

import keras
import numpy as np
import pytest

import albert_tf
from albert_tf.conversion import kinds, labels
from albert_tf.conversion.convert import convert
from albert_tf.conversion.stored import Stored
from albert_tf.serving import served_tasks
from albert_tf.serving.settings import TASKS_OF
from albert_tf.storage.run_record import RunRecord, TaskRecord
from albert_tf.tasks.registry import TASKS, TaskSettings
from tests import tiny
from tests.tiny import randomise

LABELS = ("art", "law", "war")


@pytest.fixture
def store(config, vocabulary, tmp_path):
    """Returns what stores a model with its config, its vocabulary and its run's record."""

    def write(num_labels: int, run: RunRecord | None) -> pathlib.Path:
        # The head's weights have the same names and shapes, whatever it is for.
        model = randomise(albert_tf.AlbertForSequenceClassification(config, num_labels))
        folder = tmp_path / "trained"
        tiny.store(folder, model, LABELS[:num_labels] if num_labels > 1 else ())
        (folder / "spm.model").write_bytes(pathlib.Path(vocabulary.path).read_bytes())
        if run:
            run.write(str(folder))
        return folder

    return write


# A run's class, its problem_type, and what its model serves.
RIGHT = [
    (kinds.CLASSIFIER, kinds.SINGLE_LABEL, "classify"),
    (kinds.CLASSIFIER, "regression", "classify"),
    ("AlbertForMultipleChoice", "", "choose"),
    ("AlbertForTokenClassification", "", "tag"),
]


@pytest.mark.parametrize("layout", ["tf1", "huggingface"])
@pytest.mark.parametrize(("architecture", "problem_type", "right"), RIGHT)
def test_only_what_it_was_trained_for_is_served(
    architecture, problem_type, right, layout, store, tmp_path
):
    """One output would do for each of the three."""
    run = RunRecord({}, {}, task=TaskRecord("a", architecture, problem_type))
    folder, there = store(1, run), tmp_path / "there"
    drop = ["bert/pooler/"] if right == "tag" else []
    convert(str(folder), layout, str(there), drop=drop)
    for task in ("classify", "tag", "choose", "fill_mask"):
        if task != right:
            message = f"there is trained for {right}, not for {task}: set `task` to {right}"
            with pytest.raises(ValueError, match=message):
                served_tasks.serve(task, Stored(str(there)), {})
    options = {"labels": ["O"]} if right == "tag" else {"max_seq_length": 16}
    options |= {"max_qa_length": 9} if right == "choose" else {}
    assert served_tasks.serve(right, Stored(str(there)), options).task == right


@pytest.mark.parametrize("layout", ["tf1", "huggingface"])
def test_texts_are_read_and_labelled_as_in_the_run(layout, store, tmp_path):
    options = {"max_seq_length": 16, "pairs": True, "num_choices": 3}
    run = tiny.fine_tuned("multilabel", kinds.MULTI_LABEL, reading=options)
    convert(str(store(3, run)), layout, str(tmp_path / "there"))
    served = served_tasks.serve("classify", Stored(str(tmp_path / "there")), {})
    assert (served.max_seq_length, served.text_names) == (16, ("text_a", "text_b"))
    assert served.multilabel and served.labels == LABELS
    # What is asked for comes first.
    asked = {"max_seq_length": 12, "multilabel": False}
    served = served_tasks.serve("classify", Stored(str(tmp_path / "there")), asked)
    assert (served.max_seq_length, served.multilabel) == (12, False)


def test_given_labels_replace_those_beside_the_weights(store):
    folder = store(3, tiny.fine_tuned("mrpc", kinds.SINGLE_LABEL))
    labels.write(str(folder), ("no", "yes"))
    options = {"max_seq_length": 16}
    with pytest.raises(ValueError, match="expected 3 labels beside the weights"):
        served_tasks.serve("classify", Stored(str(folder)), options)
    served = served_tasks.serve("classify", Stored(str(folder)), {**options, "labels": list("abc")})
    assert list(served.labels) == list("abc")


def test_labels_in_another_order_than_stored_are_refused(store):
    folder = store(3, None)
    options = {"max_seq_length": 16, "labels": ("war", "law", "art")}
    with pytest.raises(ValueError, match="order art, law, war, .*: leave `labels` out"):
        served_tasks.serve("classify", Stored(str(folder)), options)
    # The rows of the head follow the classes of a task.
    served = served_tasks.serve("classify", Stored(str(folder)), options, options["labels"])
    assert served.labels == options["labels"]


@pytest.mark.parametrize(
    ("problem_type", "outputs"), [(kinds.REGRESSION, 3), (kinds.MULTI_LABEL, 1)]
)
def test_a_problem_type_of_another_head_is_refused(problem_type, outputs, store):
    folder = store(outputs, tiny.fine_tuned("a", problem_type))
    with pytest.raises(
        ValueError, match=f"problem_type of .* is {problem_type}, .* outputs?, not {outputs}: c"
    ):
        served_tasks.serve("classify", Stored(str(folder)), {"max_seq_length": 16})


def test_a_damaged_record_is_refused(store):
    run = tiny.fine_tuned("mrpc", reading={"max_seq_length": "16"})
    with pytest.raises(ValueError, match="run.json beside .*trained: .*max_seq_length"):
        served_tasks.serve("classify", Stored(str(store(3, run))), {})


class Own(albert_tf.AlbertForSequenceClassification):
    """As one with a train_step of its own."""


@pytest.fixture
def preprocess(vocabulary):
    return albert_tf.Preprocessor(vocabulary, 16)


def model_of(num_labels: int, kind: type = albert_tf.AlbertForSequenceClassification):
    config = tiny.config(num_hidden_layers=1, vocab_size=6000, max_position_embeddings=16)
    return kind(config, num_labels=num_labels)


def test_labels_and_lengths_are_those_of_the_preprocessor(vocabulary):
    lengths = {"max_qa_length": 7, "max_query_length": 6, "doc_stride": 5}
    preprocess = albert_tf.Preprocessor(vocabulary, 15, ("war", "art", "law"), **lengths)
    config = tiny.config(num_hidden_layers=1, vocab_size=6000)
    lengths["max_seq_length"] = 15
    for model in (
        model_of(3),
        model_of(3, albert_tf.AlbertForTokenClassification),
        albert_tf.AlbertForMultipleChoice(config),
        albert_tf.AlbertForQuestionAnswering(config),
        albert_tf.AlbertForQuestionAnsweringV2(config),
        albert_tf.AlbertForPreTraining(config),
    ):
        served = served_tasks.serve_fitted(model, preprocess, {})
        own = {name: n for name, n in lengths.items() if hasattr(served, name)}
        assert {name: getattr(served, name) for name in own} == own
        assert served.labels == (preprocess.labels if served.takes_labels else ())


def test_a_subclass_is_served(preprocess):
    served = served_tasks.serve_fitted(model_of(3, Own), preprocess, {})
    assert served.task == "classify" and served.labels == ("0", "1", "2")
    with pytest.raises(ValueError, match="Sequential can't be exported to take raw text, only Al"):
        served_tasks.serve_fitted(keras.Sequential(), preprocess, {})


def test_longer_endings_are_cut_to_the_length(vocabulary):
    config = tiny.config(num_hidden_layers=1, vocab_size=6000, max_position_embeddings=16)
    preprocess = albert_tf.Preprocessor(vocabulary, 16, max_qa_length=128)
    served = served_tasks.serve_fitted(albert_tf.AlbertForMultipleChoice(config), preprocess, {})
    assert served.task == "choose" and served.max_qa_length == 13


def test_the_file_of_a_subclass_names_the_way_out(tmp_path):
    model = model_of(3, Own)
    model.save(tmp_path / "own.keras")
    with pytest.raises(ValueError, match="not 0: of a class of your own call `save_weights`, and"):
        albert_tf.load_config(tmp_path / "own.keras")
    model.save_weights(tmp_path / "own.weights.h5")
    ours = model_of(3)
    report = albert_tf.load_weights(ours, tmp_path / "own.weights.h5")
    assert report.missing == report.unused == ()
    np.testing.assert_array_equal(ours.classifier.output_weights, model.classifier.output_weights)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (keras.losses.BinaryCrossentropy(from_logits=True), True),
        (keras.losses.BinaryFocalCrossentropy(from_logits=True), True),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), False),
        (None, False),
    ],
)
def test_the_loss_tells_whether_a_text_has_several_labels(loss, expected, preprocess):
    model = model_of(2)
    model.compile("sgd", loss)
    assert served_tasks.serve_fitted(model, preprocess, {}).multilabel is expected
    assert not served_tasks.serve_fitted(model, preprocess, {"multilabel": False}).multilabel


def test_labels_of_a_regression_are_refused(preprocess):
    named = albert_tf.Preprocessor(preprocess.vocabulary, 16, ("bad", "good"))
    model = model_of(1)
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="has labels .bad, good., but the model has one output"):
        served_tasks.serve_fitted(model, named, {})
    assert not served_tasks.serve_fitted(model, preprocess, {}).labels


def test_other_backends_are_refused(preprocess, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="made on TensorFlow, but Keras runs on jax: save model"):
        albert_tf.export_saved_model(None, preprocess, tmp_path / "served")
    assert not (tmp_path / "served").exists()


@pytest.mark.parametrize("name", TASKS)
def test_each_task_says_what_serves_it_and_how(name):
    files = {"choice_columns": ("a", "b")} if name == "choice" else {}
    settings = TaskSettings(task_name=name, **files)
    classes = ("a", "b") if settings.row.find_classes else None
    task = settings.row.make(settings, None, None, classes)
    model_class, _ = served_tasks.SERVED[task.served_as]
    assert task.model_class is model_class
    known = {option for option, tasks in TASKS_OF.items() if task.served_as in tasks}
    assert set(task.serving_options(0.5)) <= known
    assert json.loads(json.dumps(task.record(name))) == task.record(name)
