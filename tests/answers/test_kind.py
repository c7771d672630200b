"""Options of kinds, from JSON: what to_json wrote is read; what is wrong is one line.

Not tested here: what kinds answer, which tests/serving compares.
"""

import json

import numpy as np
import pytest

from albert_tf.answers import kind, kinds
from albert_tf.answers.choose import Choose
from albert_tf.answers.classify import Classify
from albert_tf.answers.embed import Embed
from albert_tf.answers.fill import Fill
from albert_tf.answers.span import BeamSpan, Span, SpanOrNone
from albert_tf.answers.tag import Tag
from albert_tf.conversion import kinds as stored_kinds
from albert_tf.serving import exported_files
from albert_tf.storage.run_record import RunRecord, TaskRecord
from tests.kit import tiny

SPAN = {"max_seq_length": 31, "doc_stride": 7, "max_query_length": 11}
SPAN |= {"max_answer_length": 5, "n_best_size": 3}
# Each option has a value other than its default at least once.
KINDS = [
    Fill(max_seq_length=31, top_k=3, without=("pooled", "swapped")),
    Classify(labels=("é", "no"), max_seq_length=31, pairs=True, threshold=0.25, doc_stride=7),
    Classify(labels=("a", "b"), max_seq_length=31, multilabel=True, windows="max", doc_stride=7),
    Tag(labels=("O", "B-x"), max_seq_length=31),
    Choose(max_seq_length=31, num_choices=3, max_qa_length=9),
    Span(**SPAN),
    SpanOrNone(**SPAN, null_threshold=-1.5),
    BeamSpan(**SPAN, null_threshold=-1.5, start_n_top=3, end_n_top=2),
    Embed(
        pooling="max",
        dense_units=9,
        dense_activation="relu",
        dimensions=7,
        normalize=True,
        similarity="dot",
        query_prompt="q: ",
        document_prompt="d: ",
        default_prompt="query",
        max_seq_length=31,
    ),
]


def test_no_option_is_left_out():
    for cls in kinds.KINDS:
        made = [each for each in KINDS if type(each) is cls]
        for name, field in cls.option_fields().items():
            assert any(getattr(each, name) != field.default for each in made), (cls, name)


@pytest.mark.parametrize("given", KINDS, ids=lambda given: type(given).__name__)
def test_each_option_survives_its_json(given, tmp_path):
    values = json.loads(json.dumps(given.to_json()))
    assert kinds.read(values, "file") == given
    # The same in serving.json and in run.json.
    about = exported_files.About("A model.", (("a text",), ("another",)))
    exported_files.describe(str(tmp_path), given, tiny.config(), True, [1], about)
    found = exported_files.read_description(str(tmp_path))
    assert found == (given, tiny.config(), True, (1,), about)
    RunRecord({}, {}, task=TaskRecord("a", given.to_json())).write(str(tmp_path))
    record = stored_kinds.find(str(tmp_path))
    assert stored_kinds.kind_of(record) is type(given)
    assert type(given)(**kind.checked_options(type(given), record.kind, "run.json")) == given


LEFT_OUT = object()
NAN, HUGE = float("nan"), 10**400
# Values that an option can never have, and values that another option or the config forbids.
WRONG_ALONE = [
    (Span, "doc_stride", (0, True, 8.0, None, 2**31)),
    (Span, "n_best_size", (1001,)),
    (Span, "max_seq_length", (3, "31")),
    (SpanOrNone, "null_threshold", (HUGE, NAN)),
    (Classify, "threshold", (HUGE, NAN, True)),
    (Classify, "pairs", (1,)),
    (Classify, "windows", ("median",)),
    (Choose, "num_choices", (1,)),
    (Choose, "max_qa_length", (0,)),
    (Fill, "top_k", (0, 1001)),
]
WRONG_TOGETHER = [
    (Span, "n_best_size", (LEFT_OUT,)),
    (Span, "max_query_length", (28,)),
    (Span, "max_seq_length", (32,)),
    (Span, "top_k", (2,)),
    (Span, "task", ("answer_v3",)),
    (BeamSpan, "end_n_top", (32,)),
    (Classify, "windows", ("max",)),
    (Classify, "labels", (["a", "b", "c"], [], ["a", "a"], ["a", None], "ab")),
    (Fill, "top_k", (54,)),
]


def each_value(table):
    return [(cls, name, value) for cls, name, values in table for value in values]


@pytest.mark.parametrize(("cls", "name", "value"), each_value(WRONG_ALONE + WRONG_TOGETHER))
def test_what_is_wrong_is_one_line_with_its_file(cls, name, value, tmp_path):
    given = next(each for each in KINDS if type(each) is cls)
    exported_files.describe(str(tmp_path), given, tiny.config(), is_quantized=False)
    path = tmp_path / exported_files.DESCRIPTION_FILE
    values = json.loads(path.read_text())
    values["kind"][name] = value
    if value is LEFT_OUT:
        del values["kind"][name]
    path.write_text(json.dumps(values))
    # An empty list of labels is an error of the threshold, which needs two labels.
    field = "threshold" if value == [] else name
    with pytest.raises(ValueError, match=f"serving.json.*{field}") as error:
        exported_files.read_description(str(tmp_path))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    "about", [{}, {"description": "a"}, {"description": 1, "examples": []}, {"examples": [[1]]}]
)
def test_what_is_told_of_a_model_are_texts(about, tmp_path):
    exported_files.describe(str(tmp_path), KINDS[0], tiny.config(), is_quantized=False)
    path = tmp_path / exported_files.DESCRIPTION_FILE
    if "examples" in about:
        about = {"description": "a", **about}
    path.write_text(json.dumps({**json.loads(path.read_text()), "about": about}))
    with pytest.raises(ValueError, match="serving.json: about must have"):
        exported_files.read_description(str(tmp_path))


@pytest.mark.parametrize(("cls", "name", "value"), each_value(WRONG_ALONE))
def test_an_option_is_checked_by_itself(cls, name, value):
    """A run's record may lack options, and have unknown ones."""
    with pytest.raises(ValueError, match=f"^run.json: `{name}`"):
        kind.checked_options(cls, {name: value, "others": 1}, "run.json")


def test_a_regression_has_no_labels_to_choose_from():
    with pytest.raises(ValueError, match="`multilabel`"):
        Classify(multilabel=True)


def test_softmax_and_sigmoid_of_any_size():
    logits = np.array([[1e4, 0.0, -1e4]])
    np.testing.assert_array_equal(kind.softmax(logits), [[1, 0, 0]])
    np.testing.assert_array_equal(kind.sigmoid(logits), [[1, 0.5, 0]])
    small = np.array([[0.5, -1.0]])
    expected = np.exp(small) / np.exp(small).sum()
    np.testing.assert_allclose(kind.softmax(small), expected, rtol=1e-12)
    np.testing.assert_allclose(kind.sigmoid(small), 1 / (1 + np.exp(-small)), rtol=1e-12)


@pytest.mark.parametrize(
    ("given", "noun"),
    [
        ({0: "bad", 1: "good"}, "dictionary"),
        ({"bad": 0, "good": 1}, "dictionary"),
        (["bad", None], "missing"),
        (["bad", "\ud83d"], "surrogate"),
        ([1.0, NAN], "missing"),
        ([1, "1"], "distinct.* '1', '1'"),
        (["a", ""], "distinct.* ''"),
        (["a", "b", "c"], "2 labels.* 3"),
    ],
)
def test_labels_are_a_list_of_names(given, noun):
    with pytest.raises(ValueError, match=noun):
        kind.class_names(given, 2)
