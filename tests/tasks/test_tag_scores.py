from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from seqeval import metrics as seqeval

from albert_tf.tasks import token_classification

CLASSES = {
    "BIO": ("O", "B-a", "B-b", "I-a", "I-b"),
    "BIOES": ("O", "B-a", "B-b", "E-a", "E-b", "I-a", "I-b", "S-a", "S-b"),
}


@pytest.mark.parametrize("scheme", CLASSES)
def test_entities_are_scored_as_by_seqeval(scheme):
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 11, 53)
    expected, predicted = (
        [rng.choice(CLASSES[scheme], n).tolist() for n in lengths] for _ in range(2)
    )
    for row, other in zip(predicted[::2], expected[::2], strict=True):
        row[:7] = other[:7]
    found = token_classification.score_tags(expected, predicted, CLASSES[scheme])
    assert found["f1"] == seqeval.f1_score(expected, predicted)
    assert found["precision"] == seqeval.precision_score(expected, predicted)
    assert found["recall"] == seqeval.recall_score(expected, predicted)
    assert found["accuracy"] == pytest.approx(seqeval.accuracy_score(expected, predicted))
    assert 0.1 < found["f1"] < 0.9 and token_classification.tag_key_metric(CLASSES[scheme]) == "f1"
    by_type = token_classification.scores_by_type(expected, predicted, CLASSES[scheme])
    report = seqeval.classification_report(expected, predicted, output_dict=True)
    assert by_type == {name: report[name] for name in ("a", "b")}


def test_whole_entities_count():
    """By hand: of three, one is found, one is a word too short, one of another type."""
    expected = [["B-a", "I-a", "O", "B-b", "I-b"], ["B-a"]]
    predicted = [["B-a", "I-a", "O", "B-b", "O"], ["B-b"]]
    found = token_classification.score_tags(expected, predicted, CLASSES["BIO"])
    assert found == {"f1": 1 / 3, "precision": 1 / 3, "recall": 1 / 3, "accuracy": 4 / 6}


def test_without_any_entity():
    found = token_classification.score_tags([["O", "O"]], [["O", "O"]], CLASSES["BIO"])
    assert found == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 1}
    assert token_classification.scores_by_type([["O"]], [["O"]], CLASSES["BIO"]) == {}


def test_plain_tags():
    classes = ("low", "cap", "all", "never")
    expected = [["low", "low", "cap"], ["low", "all", "cap"]]
    predicted = [["low", "cap", "cap"], ["low", "low", "cap"]]
    # F1: low 4 / (3 + 3), cap 4 / (2 + 3), all 0; what never occurs does not count.
    found = token_classification.score_tags(expected, predicted, classes)
    assert found == {"macro_f1": pytest.approx((2 / 3 + 4 / 5 + 0) / 3), "accuracy": 4 / 6}
    assert token_classification.tag_key_metric(classes) == "macro_f1"
    by_type = token_classification.scores_by_type(expected, predicted, classes)
    assert by_type["cap"] == {"precision": 2 / 3, "recall": 1, "f1-score": 4 / 5, "support": 2}
    assert by_type["all"] == {"precision": 0, "recall": 0, "f1-score": 0, "support": 1}
    assert list(by_type) == ["low", "cap", "all"]
    confusion = token_classification.confusion_matrix(expected, predicted, classes)
    assert confusion.tolist() == [[2, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="'seqeval', which scores entities, is not installed"):
        token_classification.check_seqeval(CLASSES["BIO"])
    token_classification.check_seqeval(("low", "cap"))
