"""Options of kinds, from JSON: what to_json wrote is read; what is wrong is one line.

Can't see: what kinds answer, which tests/serving compares.
"""

import json
import re

import numpy as np
import pytest

from albert_tf.answers import kind, kinds
from albert_tf.answers.choose import Choose
from albert_tf.answers.classify import Classify
from albert_tf.answers.fill import Fill
from albert_tf.answers.span import BeamSpan, Span, SpanOrNone
from albert_tf.answers.tag import Tag
from albert_tf.conversion import kinds as stored_kinds
from albert_tf.serving import exported_files
from albert_tf.storage.run_record import RunRecord, TaskRecord
from tests import tiny

SPAN = {"max_seq_length": 31, "doc_stride": 7, "max_query_length": 11}
SPAN |= {"max_answer_length": 5, "n_best_size": 3}
# No option has its default.
KINDS = [
    Fill(max_seq_length=31, top_k=3, without=("pooled", "swapped")),
    Classify(labels=("é", "no"), max_seq_length=31, pairs=True, threshold=0.25, doc_stride=7),
    Classify(labels=("a", "b"), max_seq_length=31, multilabel=True, windows="max", doc_stride=7),
    Tag(labels=("O", "B-x"), max_seq_length=31),
    Choose(max_seq_length=31, num_choices=3, max_qa_length=9),
    Span(**SPAN),
    SpanOrNone(**SPAN, null_threshold=-1.5),
    BeamSpan(**SPAN, null_threshold=-1.5, start_n_top=3, end_n_top=2),
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
    # In serving.json, and in run.json.
    exported_files.describe(str(tmp_path), given, tiny.config(), is_quantized=True)
    assert exported_files.read_description(str(tmp_path)) == (given, tiny.config(), True)
    RunRecord({}, {}, task=TaskRecord("a", given.to_json())).write(str(tmp_path))
    record = stored_kinds.find(str(tmp_path))
    assert stored_kinds.kind_of(record) is type(given)
    assert type(given)(**kind.checked_options(type(given), record.kind, "run.json")) == given


LEFT_OUT = object()
WRONG = [
    (Span, {"doc_stride": 0}, "`doc_stride` must be from 1 to 2147483647, got 0"),
    (Span, {"doc_stride": True}, "`doc_stride` must be of the type int, got 'True'"),
    (Span, {"doc_stride": 8.0}, "`doc_stride` must be of the type int, got '8.0'"),
    (Span, {"doc_stride": None}, "`doc_stride` must be of the type int, got 'None'"),
    (Span, {"doc_stride": 2**31}, "`doc_stride` must be from 1 to 2147483647"),
    (Span, {"max_query_length": 28}, "`max_query_length` 28 leaves no room .* at most 27"),
    (Span, {"n_best_size": 10**9}, "`n_best_size` must be from 1 to 1000, got 1000000000"),
    (Span, {"n_best_size": LEFT_OUT}, "lacks n_best_size: export again"),
    (Span, {"max_seq_length": 3}, "`max_seq_length` must be from 4 to"),
    (Span, {"max_seq_length": "31"}, "`max_seq_length` must be of the type int, got '31'"),
    (Span, {"max_seq_length": 32}, r"`max_seq_length` must be from 4 to 31 \(the config's"),
    (Span, {"top_k": 2}, "unknown option 'top_k': answer_v1 has max_seq_length, doc_stride"),
    (Span, {"task": "answer_v3"}, "task.* must be one of fill_mask, classify, tag, choose, answ"),
    (SpanOrNone, {"null_threshold": 10**400}, r"`null_threshold` must be from -1e\+30 to 1e\+30"),
    (SpanOrNone, {"null_threshold": float("nan")}, "`null_threshold` must be from .* got nan"),
    (BeamSpan, {"end_n_top": 32}, "`start_n_top` and `end_n_top` must be at most 31"),
    (Classify, {"threshold": 10**400}, "`threshold` must be from 0 to 1, got 1000"),
    (Classify, {"threshold": float("nan")}, "`threshold` must be from 0 to 1, got nan"),
    (Classify, {"threshold": True}, "`threshold` must be of the type float, got 'True'"),
    (Classify, {"pairs": 1}, "`pairs` must be of the type bool, got '1'"),
    (Classify, {"windows": "max"}, "`windows` reads single texts, not pairs"),
    (Classify, {"windows": "median"}, "`windows` must be mean or max, got 'median'"),
    (Classify, {"labels": ["a", "b", "c"]}, "`threshold` needs two labels .* got 3 labels"),
    (Classify, {"labels": [], "multilabel": True}, "`multilabel` applies only to classifiers"),
    (Classify, {"labels": ["a", "a"]}, "`labels` must be distinct names, none empty"),
    (Classify, {"labels": ["a", None]}, "`labels` must be names, but one is missing"),
    (Classify, {"labels": "ab"}, "'labels' is a list"),
    (Choose, {"num_choices": 1}, "`num_choices` must be from 2 to 1000, got 1"),
    (Choose, {"max_qa_length": 0}, "`max_qa_length` must be from 1 to"),
    (Fill, {"top_k": 54}, "`top_k` must be from 1 to 53, got 54"),
]


@pytest.mark.parametrize(("cls", "changes", "message"), WRONG)
def test_what_is_wrong_is_one_line_with_its_file(cls, changes, message, tmp_path):
    given = next(each for each in KINDS if type(each) is cls)
    exported_files.describe(str(tmp_path), given, tiny.config(), is_quantized=False)
    path = tmp_path / exported_files.DESCRIPTION_FILE
    values = json.loads(path.read_text())
    changed = {**values["kind"], **changes}
    values["kind"] = {n: value for n, value in changed.items() if value is not LEFT_OUT}
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=f"serving.json.*{message}") as error:
        exported_files.read_description(str(tmp_path))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


# Without those that other options, or the config, limit.
LIMITED = re.compile(r"` must be (of the type|from \S+ to [^35])")
OF_ONE_OPTION = [each for each in WRONG if LIMITED.search(each[2])]


@pytest.mark.parametrize(("cls", "changes", "message"), OF_ONE_OPTION)
def test_a_part_is_checked_as_the_whole(cls, changes, message):
    """A run's record may lack options, and have others."""
    with pytest.raises(ValueError, match=f"^run.json: {message}"):
        kind.checked_options(cls, {**changes, "others": 1}, "run.json")


def test_softmax_and_sigmoid_of_any_size():
    logits = np.array([[1e4, 0.0, -1e4]])
    np.testing.assert_array_equal(kind.softmax(logits), [[1, 0, 0]])
    np.testing.assert_array_equal(kind.sigmoid(logits), [[1, 0.5, 0]])
    small = np.array([[0.5, -1.0]])
    expected = np.exp(small) / np.exp(small).sum()
    np.testing.assert_allclose(kind.softmax(small), expected, rtol=1e-12)
    np.testing.assert_allclose(kind.sigmoid(small), 1 / (1 + np.exp(-small)), rtol=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({0: "bad", 1: "good"}, "in the order of their ids, not a dictionary"),
        ({"bad": 0, "good": 1}, "in the order of their ids, not a dictionary"),
        (["bad", None], "one is missing"),
        (["bad", "\ud83d"], "at character 0 is an unpaired surrogate"),
        ([1.0, float("nan")], "one is missing"),
        ([1, "1"], "must be distinct names, none empty, got '1', '1'"),
        (["a", ""], "must be distinct names, none empty, got 'a', ''"),
        (["a", "b", "c"], "the model has 2 classes: give 2 labels, a name for each, not 3"),
    ],
)
def test_labels_are_a_list_of_names(given, message):
    with pytest.raises(ValueError, match=message):
        kind.class_names(given, 2)
