"""Windows on texts that are too long: their pieces, and what is predicted for the text."""

from __future__ import annotations

import numpy as np
import pytest

from albert_tf.tasks import feature_table
from albert_tf.tasks.classification import MultiLabelTask, SequenceClassificationTask, TextWindows
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.glue import TextExample

LENGTH, STRIDE = 12, 4
LONG = "the cat sat on the mat. " * 6


def task_of(tokenizer, combination, classes=("a", "b"), **kwargs):
    windows = TextWindows(combination, STRIDE) if combination else None
    return SequenceClassificationTask(None, tokenizer, LENGTH, classes, windows=windows, **kwargs)


def test_windows_overlap_and_leave_nothing_out(tokenizer):
    ids = tokenizer.encode(LONG)
    rows = list(TextWindows("mean", STRIDE).features(tokenizer, LONG, LENGTH))
    room = LENGTH - 2
    assert len(rows) == 1 + -(-(len(ids) - room) // STRIDE)
    for number, row in enumerate(rows):
        pieces = ids[number * STRIDE : number * STRIDE + room]
        assert row["input_ids"].tolist() == [tokenizer.cls_id, *pieces, tokenizer.sep_id]
        assert set(row["segment_ids"]) == {0} and set(row["input_mask"]) == {1}
    assert ids[-1] in rows[-1]["input_ids"]


@pytest.mark.parametrize("text", ["", "a cat", "the cat sat on the"])
def test_a_text_that_fits_is_the_same_as_without_windows(tokenizer, text):
    example = TextExample("2", text, None, 1)
    (plain,) = task_of(tokenizer, None).rows([example], True)
    (row,) = task_of(tokenizer, "max").rows([example], True)
    assert row.pop("example_index") == 0
    assert {name: value.tolist() for name, value in row.items()} == {
        name: value.tolist() for name, value in plain.items()
    }


def test_predictions_are_a_texts_own(tokenizer):
    """Of three texts, the second has several windows; the others have one."""
    examples = [TextExample(str(i), text, None, 1) for i, text in enumerate(("a", LONG, "b"))]
    tasks = {name: task_of(tokenizer, name) for name in ("mean", "max")}
    features = FeatureTable.from_rows(tasks["mean"].rows(examples, True))
    index = features.scalars["example_index"]
    assert index[0] == 0 and index[-1] == 2 and np.sum(index == 1) > 3
    assert features.scalars["label_ids"].tolist() == [1] * len(index)
    logits = np.random.default_rng(0).normal(0, 2, (len(index), 2))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for name, task in tasks.items():
        combine = getattr(np, name)
        expected = [combine(shares[index == i], axis=0) for i in range(3)]
        found = task.predictions(examples, features, logits)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        regression = task_of(tokenizer, name, ())
        found = regression.predictions(examples, features, logits[:, :1])
        expected = [combine(logits[index == i, :1], axis=0) for i in range(3)]
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    several = MultiLabelTask(None, tokenizer, 12, ("a", "b"), windows=TextWindows("max", STRIDE))
    found = several.predictions(examples, features, logits)
    sigmoid = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(found[1], sigmoid[index == 1].max(axis=0), rtol=1e-12)


def test_features_are_stored_for_each_stride_and_not_for_each_combination(tokenizer, tmp_path):
    examples = [TextExample("1", LONG, None, 0)]

    def files_after(task) -> int:
        feature_table.load_or_make_features(
            examples, lambda each: task.rows(each, True), task.settings, str(tmp_path / "f")
        )
        return len(list(tmp_path.iterdir()))

    counts = [files_after(task_of(tokenizer, name)) for name in (None, "mean", "max")]
    other = task_of(tokenizer, "mean")
    other.windows = TextWindows("mean", STRIDE + 1)
    assert [*counts, files_after(other)] == [1, 2, 2, 3]
    assert "window_doc_stride" not in task_of(tokenizer, None).settings
