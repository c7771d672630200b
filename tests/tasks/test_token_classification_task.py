"""Token classification: rows, predictions, files, and entities' scores."""

import importlib.util

import numpy as np
import pytest

from albert_tf.tasks import token_classification
from albert_tf.tasks.conll import TokenExample
from albert_tf.tasks.feature_table import FeatureTable
from tests.kit import tiny, tolerances

CLASSES = ("O", "B-a", "I-a")
LENGTH = 11


@pytest.fixture(scope="module")
def task(tokenizer):
    return task_of(tokenizer)


def task_of(tokenizer=None, classes=CLASSES):
    return tiny.task("token_classification", tokenizer, classes, max_seq_length=LENGTH)


def example(words, labels=None, guid="1"):
    return TokenExample(guid, tuple(words), labels and tuple(labels))


@pytest.fixture(scope="module")
def examples():
    """Words of no, one, several and too many pieces, in sentences of one and of many windows."""
    rng = np.random.default_rng(11)
    words = ["the", "\x01", "Representatives", "unaffable-x1990,", "of", "Z\u00fcrich", "qzx" * 9]
    lengths = [1, 2, 37, 5, 23, 1, 1]
    drawn = [(rng.choice(words, n), rng.integers(0, 3, n).tolist()) for n in lengths]
    made = [example(*pair, str(i)) for i, pair in enumerate(drawn)]
    return [*made, example(["\x01"], [0], "x"), example(["\x01", "\x02", "of"], [0, 0, 2], "y")]


def test_each_word_with_pieces_is_in_one_window_with_its_tag(task, examples, tokenizer):
    rows = list(task.rows(examples, is_training=True))
    assert max(len(row["input_ids"]) for row in rows) == LENGTH
    found = {}
    for row in rows:
        ids = row["input_ids"].tolist()
        assert (ids[0], ids[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
        assert not row["segment_ids"].any() and row["input_mask"].all()
        np.testing.assert_array_equal(row["tag_ids"] > 0, row["word_numbers"] > 0)
        for position in np.flatnonzero(row["word_numbers"]):
            key = int(row["example_index"]), int(row["word_numbers"][position]) - 1
            assert key not in found
            found[key] = int(row["tag_ids"][position]) - 1
            word = tokenizer.encode(examples[key[0]].words[key[1]], LENGTH - 2)
            # The word is whole, unless it is longer than a window.
            assert ids[position : position + len(word)] == word
    keys = ((i, k) for i, each in enumerate(examples) for k in range(len(each.words)))
    keys = [(i, k) for i, k in keys if tokenizer.encode(examples[i].words[k])]
    assert found == {(i, k): examples[i].labels[k] for i, k in keys}


def test_predictions_are_of_all_words_in_order(task, examples):
    """The logits favour the true tag where a word begins, and are random elsewhere."""
    rows = list(task.rows(examples, is_training=False))
    logits = np.full((len(rows), LENGTH, 3), -np.inf, np.float32)
    rng = np.random.default_rng(4)
    for row, out in zip(rows, logits, strict=True):
        length = len(row["tag_ids"])
        out[:length] = rng.normal(size=(length, 3))
        chosen = np.flatnonzero(row["tag_ids"])
        out[chosen] = np.eye(3)[row["tag_ids"][chosen] - 1] * 4
    features = FeatureTable.from_rows(rows)
    # A batch of the longest rows, and one of the others; only first pieces are kept.
    full = np.flatnonzero(features.lengths == LENGTH)
    short = np.flatnonzero(features.lengths < LENGTH)[::-1]
    parts = [(full, logits[full]), (short, logits[short, : LENGTH - 1])]
    outputs = task.collect(features, parts)
    assert outputs.shape == (sum(np.count_nonzero(row["tag_ids"]) for row in rows), 3)
    found = task.predictions(examples, features, outputs)
    words = [pair for each in examples for pair in zip(each.words, each.labels, strict=True)]
    assert found.shape == (len(words), 3)
    share = np.exp(4) / (np.exp(4) + 2)
    for (word, label), row in zip(words, found, strict=True):
        if word in "\x01\x02":
            assert not row.any(), "nothing is known of a word without pieces"
        else:
            np.testing.assert_allclose(row.sum(), 1, atol=1e-12)
            assert row[label] == pytest.approx(share)


def test_the_loss_is_the_mean_over_words(task):
    """Compared with NumPy; padding rows and other positions add nothing, whatever their logits."""
    tags = np.array([[0, 2, 0, 1, 0], [0, 3, 0, 0, 0], [0, 1, 1, 0, 0]], np.int32)
    rng = np.random.default_rng(8)
    logits = rng.normal(size=(3, 5, 3)).astype(np.float32)
    weights = np.array([1, 1, 0], np.float32)
    features = {"input_ids": tags, "tag_ids": tags, "example_weights": weights}
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log([shares[0, 1, 1], shares[0, 3, 0], shares[1, 1, 2]]).sum()
    (total,) = task.loss_sums(logits, features).values()
    (weight,) = task.loss_weights(features).values()
    np.testing.assert_allclose(total, expected, atol=tolerances.OUTPUT)
    assert float(weight) == 3
    logits[tags == 0] += 100 * rng.normal(size=3)
    (again,) = task.loss_sums(logits, features).values()
    np.testing.assert_allclose(again, total, atol=tolerances.OUTPUT)
    (weight,) = task.loss_weights({"input_ids": tags, "tag_ids": tags}).values()
    assert float(weight) == 5


def test_plain_tags_are_compared_by_their_mean_f1(tokenizer, tmp_path):
    plain = task_of(tokenizer, ("low", "cap", "all", "never"))
    examples = [example("abc", [0, 0, 1]), example("def", [0, 2, 1], guid="5")]
    predictions = np.full((6, 4), 0.125)
    predictions[range(6), [0, 1, 1, 0, 0, 1]] = 0.625
    # By hand: low 4 / (3 + 3), cap 4 / (2 + 3), all 0; a tag that never occurs does not count.
    expected = {"macro_f1": (2 / 3 + 4 / 5 + 0) / 3, "accuracy": 4 / 6}
    expected["eval_loss"] = -np.log([0.625] * 4 + [0.125] * 2).mean()
    assert plain.scores(examples, predictions) == pytest.approx(expected)
    assert plain.key_metric == "macro_f1"
    plain.write(str(tmp_path), "dev", examples, predictions)
    files = {name: (tmp_path / f"dev_{name}").read_text().splitlines() for name in FILES}
    assert files == FILES


# The files of "dev".
FILES = {
    "predictions.conll": ["a\tlow\tlow", "b\tlow\tcap", "c\tcap\tcap", ""]
    + ["d\tlow\tlow", "e\tall\tlow", "f\tcap\tcap"],
    "confusion.tsv": ["\tlow\tcap\tall\tnever", "low\t2\t1\t0\t0", "cap\t0\t2\t0\t0"]
    + ["all\t1\t0\t0\t0", "never\t0\t0\t0\t0"],
    "scores_by_type.tsv": ["type\tprecision\trecall\tf1-score\tsupport", "all\t0\t0\t0\t1"]
    + ["cap\t0.666667\t1\t0.8\t2", "low\t0.666667\t0.666667\t0.666667\t3"],
}


def test_a_word_without_pieces_is_outside_and_has_no_loss(tokenizer, tmp_path):
    task = task_of(tokenizer, ("B-a", "O"))
    examples = [example(["In", "\x01", "the"], [1, 0, 1])]
    predictions = np.array([[0.25, 0.75], [0, 0], [0.5, 0.5]])
    scores = task.scores(examples, predictions)
    assert scores["eval_loss"] == pytest.approx(-np.log([0.75, 0.5]).mean())
    assert scores["accuracy"] == pytest.approx(1 / 3)
    task.write(str(tmp_path), "dev", examples, predictions)
    text = (tmp_path / "dev_predictions.conll").read_text()
    assert text == "In\tO\tO\n\x01\tB-a\tO\nthe\tO\tB-a\n"


def test_stored_predictions_score_as_they_did(task, tmp_path):
    """They are stored with 7 digits, so that the smallest are 0."""
    examples = [example(["In", "the"], [0, 1])]
    predictions = np.array([[0.75, 0.25, 0], [1 - 1e-9, 1e-9, 0]])
    task.write(str(tmp_path), "test", examples, predictions)
    mean = task.average([str(tmp_path)], "test", examples)
    assert mean[1, 1] == 0
    for found in (predictions, mean):
        loss = task.scores(examples, found)["eval_loss"]
        assert loss == pytest.approx(-np.log([0.75, 0.5e-7]).mean())


def test_what_is_written_can_be_read_again(task, tmp_path):
    examples = [example(["New York", "a\tb"], guid="3"), example(["\x85"], guid="5")]
    task.write(str(tmp_path), "test", examples, np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]]))
    text = (tmp_path / "predictions.conll").read_text(encoding="utf-8")
    assert text == "New_York\tB-a\na_b\tI-a\n\n\x85\tO\n"
    mean = task.average([str(tmp_path)] * 2, "test", examples)
    assert mean.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    with pytest.raises(ValueError, match="has other examples"):
        task.average([str(tmp_path)], "test", examples[1:])
    assert task.scores(examples, mean) == {}
    assert not (tmp_path / "confusion.tsv").exists()


TAGS = ("O", *(f"{prefix}-{kind}" for prefix in "BEIS" for kind in "ab"))
A, B = (("a", 1, 1 / 2, 2 / 3, 2), ("b", 0, 0, 0, 1))


@pytest.mark.parametrize(
    ("expected", "predicted", "scores", "by_type"),
    [
        # One of three entities is found, one is a word too short, one has another type.
        ("B-a I-a O B-b I-b, B-a O", "B-a I-a O B-b O, B-b B-b",
         (1 / 4, 1 / 3, 2 / 7, 4 / 7), (A, B)),
        # By seqeval's default an entity may begin with I-.
        ("I-a I-a O", "B-a I-a O", (1, 1, 1, 2 / 3), (("a", 1, 1, 1, 1),)),
        ("B-a E-a S-b", "B-a E-a O", (1, 1 / 2, 2 / 3, 2 / 3), (("a", 1, 1, 1, 1), B)),
        ("O O", "O O", (0, 0, 0, 1), ()),
    ],
)  # fmt: skip
def test_whole_entities_count(expected, predicted, scores, by_type):
    """By hand: precision, recall, F1 and accuracy; then by type, with the number of entities."""
    tags = [[s.split() for s in text.split(", ")] for text in (expected, predicted)]
    found = token_classification.score_tags(*tags, TAGS)
    names = ("precision", "recall", "f1", "accuracy")
    assert found == pytest.approx(dict(zip(names, scores, strict=True)))
    assert task_of(classes=TAGS).key_metric == "f1"
    rows = token_classification.scores_by_type(*tags, TAGS)
    assert list(rows) == [name for name, *_ in by_type]
    for name, *values in by_type:
        assert list(rows[name].values()) == pytest.approx(values)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    entities, plain = task_of(), task_of(classes=("low", "cap"))
    with pytest.raises(ImportError, match="'seqeval', which scores entities, is not installed"):
        entities.check_scorable([example(["a"], [0])])
    entities.check_scorable([example(["a"])])
    plain.check_scorable([example(["a"], [0])])
