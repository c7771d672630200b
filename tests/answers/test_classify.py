"""Windows on a long text, and what a classifier's outputs on them mean."""

import numpy as np
import pytest

from albert_tf.answers.classify import Classify
from albert_tf.answers.span import Span, SpanOrNone

LONG = "the cat sat on the mat. " * 6


def test_windows_overlap_and_leave_nothing_out(tokenizer):
    ids, stride, room = tokenizer.encode(LONG), 4, 10
    kind = Classify(windows="mean", doc_stride=stride, max_seq_length=room + 2)
    rows = list(kind.rows(tokenizer, LONG))
    assert len(rows) == 1 + -(-(len(ids) - room) // stride)
    for number, row in enumerate(rows):
        pieces = ids[number * stride : number * stride + room]
        assert row["input_ids"].tolist() == [tokenizer.cls_id, *pieces, tokenizer.sep_id]
        assert set(row["segment_ids"]) == {0} and set(row["input_mask"]) == {1}
    assert ids[-1] in rows[-1]["input_ids"]


def test_a_threshold_decides_as_soon_as_it_is_reached():
    shares = np.array([[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]])
    named = {"labels": ("no", "yes")}
    assert Classify(**named).chosen(shares) == ["no", "yes", "no"]
    assert Classify(**named, threshold=0.25).chosen(shares) == ["yes", "yes", "yes"]
    assert Classify(**named, threshold=0.75).chosen(shares) == ["no", "yes", "no"]
    several = Classify(**named, multilabel=True)
    assert several.chosen(shares) == ["no", "yes", "no|yes"]
    assert several.replace(threshold=0.6).chosen(shares) == ["no", "yes", ""]


def test_a_threshold_is_taken_where_there_is_one():
    two, three = Classify(labels=("no", "yes")), Classify(labels=("a", "b", "c"))
    several = three.replace(multilabel=True)
    assert [kind.with_threshold(0.3).threshold for kind in (two, several)] == [0.3, 0.3]
    assert three.with_threshold(0.3) == three and two.with_threshold(None) == two
    assert SpanOrNone().with_threshold(0.3).null_threshold == 0.3
    assert SpanOrNone(null_threshold=2.0).with_threshold(None).null_threshold == 2
    assert Span().with_threshold(0.3) == Span()


def test_one_output_has_no_name():
    assert Classify.names_of(["no", 1], 2) == ("no", "1")
    assert Classify.names_of([], 1) == ()
    with pytest.raises(ValueError, match="no classes"):
        Classify.names_of(["no"], 1)
