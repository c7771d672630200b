"""Scores of predicted tags over a whole set, and what they are made of."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import numpy as np

from albert_tf.tasks.metrics import ratio
from albert_tf.tasks.tags import OUTSIDE, are_entities

# Tags of sentences.
Tags = Sequence[Sequence[str]]
_OF_ENTITIES = ("f1", "precision", "recall")
# In seqeval's report, beside the types.
_MEANS = ("micro avg", "macro avg", "weighted avg")


def check_installed(classes: Sequence[str]) -> None:
    """Checks that the package that scores such tags is installed.

    Raises:
      ImportError: If it is not installed.
    """
    if are_entities(classes) and importlib.util.find_spec("seqeval") is None:
        raise ImportError(
            "the package 'seqeval', which scores entities, is not installed: pip install "
            "'albert_tf[tokens]' (or pip install seqeval)"
        )


def key_metric(classes: Sequence[str]) -> str:
    """Returns the metric by which checkpoints are compared."""
    return "f1" if are_entities(classes) else "macro_f1"


def metric_names(classes: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of what `scores` returns."""
    return (*(_OF_ENTITIES if are_entities(classes) else ("macro_f1",)), "accuracy")


def scores(expected: Tags, predicted: Tags, classes: Sequence[str]) -> dict[str, float]:
    """Scores tags.

    Args:
      expected: The true tags.
      predicted: The predicted ones, as many.
      classes: All tags.

    Returns:
      For entities `f1`, `precision` and `recall` of whole ones, as seqeval computes them by
      default; for plain tags `macro_f1`, the mean over those that occur. For both the `accuracy` of
      words.
    """
    words = confusion(expected, predicted, classes)
    accuracy = {"accuracy": float(np.trace(words) / words.sum())}
    if not are_entities(classes):
        rows = by_type(expected, predicted, classes)
        return {"macro_f1": float(np.mean([row["f1-score"] for row in rows.values()])), **accuracy}
    # Not at the top: plain tags do without it.
    from seqeval.metrics import f1_score, precision_score, recall_score

    metrics = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
    lists = _lists(expected, predicted)
    return {
        name: float(score(*lists, zero_division=0)) for name, score in metrics.items()
    } | accuracy


def by_type(expected: Tags, predicted: Tags, classes: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns `precision`, `recall`, `f1-score` and `support` of each type of entity or plain tag.

    Tags that neither occur nor are predicted are left out.
    """
    if are_entities(classes):
        from seqeval.metrics import classification_report

        lists = _lists(expected, predicted)
        if all(tag == OUTSIDE for tags in lists for sentence in tags for tag in sentence):
            return {}  # It warns.
        rows = classification_report(*lists, output_dict=True, zero_division=0)
        return {name: row for name, row in rows.items() if name not in _MEANS}
    words = confusion(expected, predicted, classes)
    return {
        tag: {
            "precision": ratio(words[i, i], words[:, i].sum()),
            "recall": ratio(words[i, i], words[i].sum()),
            "f1-score": ratio(2 * words[i, i], words[i].sum() + words[:, i].sum()),
            "support": int(words[i].sum()),
        }
        for i, tag in enumerate(classes)
        if words[i].sum() + words[:, i].sum()
    }


def confusion(expected: Tags, predicted: Tags, classes: Sequence[str]) -> np.ndarray:
    """Counts words, `<int64>[C, C]`: in the row of their true tag, the column of the predicted."""
    ids = {tag: i for i, tag in enumerate(classes)}
    rows, columns = (
        np.array([ids[tag] for sentence in tags for tag in sentence], np.int64)
        for tags in (expected, predicted)
    )
    counts = np.bincount(rows * len(ids) + columns, minlength=len(ids) ** 2)
    return counts.reshape(len(ids), len(ids))


def _lists(*tags: Tags) -> list[list[list[str]]]:
    return [[list(sentence) for sentence in each] for each in tags]
