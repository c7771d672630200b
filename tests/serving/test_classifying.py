"""Classifiers of raw text: thresholds, several labels, windows; multiple choice."""

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import export
from albert_tf.serving import predict, served_models
from albert_tf.tasks import metrics, sequence_features
from albert_tf.tasks.classification import SequenceClassificationTask, TextWindows
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.glue import TextExample
from tests import tolerances
from tests.tiny import randomise

TEXTS = ("The capital, 1990, yes.", "", "word " * 90)
LABELS = ("art", "law", "war")


@pytest.fixture(scope="module")
def regression(config):
    return randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=1))


def probabilities_of(model, vocabulary, text):
    features = sequence_features.pair_features(vocabulary.tokenizer, text, None, 64)
    return metrics.sigmoid(model({name: value[None] for name, value in features.items()}))[0]


@pytest.mark.parametrize("threshold", [None, 0.0])
def test_a_text_has_each_label_that_reaches_the_threshold(classifier, vocabulary, threshold):
    """Eagerly; traced in test_scores.py."""
    served = export.Classifier(classifier, vocabulary, LABELS, multilabel=True, threshold=threshold)
    answered = served.answer_texts(text=tf.constant(TEXTS))
    found = {name: value.numpy() for name, value in answered.items()}
    assert ("threshold" in found) == (threshold is not None)
    for row, text in enumerate(TEXTS):
        expected = probabilities_of(classifier, vocabulary, text)
        np.testing.assert_allclose(found["probabilities"][row], expected, atol=tolerances.OUTPUT)
        least = 0.5 if threshold is None else threshold
        names = [name for name, share in zip(LABELS, expected, strict=True) if share >= least]
        answer = predict.MAKERS["labels"]({name: value[row] for name, value in found.items()})
        assert answer["label"] == "|".join(names)
        assert list(answer["probabilities"]) == list(LABELS)
        assert answer.said.startswith(("|".join(names) or "no label") + " (art 0.")


def test_a_probability_at_the_threshold_is_enough(config, vocabulary):
    model = albert_tf.AlbertForSequenceClassification(config, num_labels=2)
    model.set_weights([np.zeros(value.shape) for value in model.get_weights()])
    served = export.Classifier(model, vocabulary, ("no", "yes"), threshold=0.5)
    answered = served.answer_texts(text=tf.constant(["a cat"]))
    assert answered["probabilities"].numpy().tolist() == [[0.5, 0.5]]
    assert answered["label"][0] == b"yes"


def test_what_has_no_labels_has_not_several(regression, vocabulary):
    with pytest.raises(ValueError, match="`multilabel` applies only to classifiers, but the mod"):
        export.Classifier(regression, vocabulary, multilabel=True)


@pytest.mark.parametrize("combination", ["mean", "max"])
def test_windows_on_long_texts_are_those_of_python(
    classifier, regression, vocabulary, combination, monkeypatch
):
    """Also when only a few are scored at a time."""
    texts = [*TEXTS, "Ünï 中文 \u00ad 1,990 ﬁne, " * 40, "The end."]
    cut = TextWindows(combination, doc_stride=7)
    options = {"windows": combination, "doc_stride": 7, "max_seq_length": 20}
    monkeypatch.setattr(served_models, "_POSITIONS_AT_ONCE", 60)
    for kind, labels in ((classifier, LABELS), (regression, ())):
        served = export.Classifier(kind, vocabulary, labels, **options)
        # One of the four as it is served; the others eagerly, which is quicker than to trace.
        traced = kind is classifier and combination == "mean"
        answer = served.text_signature() if traced else served.answer_texts
        found = answer(text=tf.constant(texts))
        task = SequenceClassificationTask(None, vocabulary.tokenizer, 20, labels, windows=cut)
        examples = [TextExample(str(i), text, None, None) for i, text in enumerate(texts)]
        rows = list(task.rows(examples, is_training=False))
        assert len(rows) > 10 * len(texts)
        table = FeatureTable.from_rows(rows)
        padded = [
            sequence_features.pad_features({name: row[name] for name in task.inputs}, 20)
            for row in rows
        ]
        outputs = kind({name: np.stack([row[name] for row in padded]) for name in task.inputs})
        expected = task.predictions(examples, table, outputs)
        if labels:
            assert "logits" not in found
            names = [label.decode() for label in found["label"].numpy()]
            assert names == task.answers(expected)
            found, expected = found["probabilities"], expected
        else:
            found, expected = found["score"], expected[:, 0]
        np.testing.assert_allclose(found, expected, atol=tolerances.OUTPUT)


@pytest.mark.parametrize(
    "options", [{"windows": "median"}, {"windows": "max", "pairs": True}, {"doc_stride": 0}]
)
def test_windows_that_do_not_do(classifier, vocabulary, options):
    with pytest.raises(ValueError, match="`windows` must be mean or max, for single texts, with a"):
        export.Classifier(classifier, vocabulary, LABELS, **{"windows": "mean", **options})


CONTEXTS = ("A short one.", "word " * 80)
ENDINGS = (("yes", "yes " + "no " * 40 + "perhaps", ""), ("Which? This.", "Which? That.", "None"))


@pytest.fixture(scope="module")
def model(config):
    return randomise(albert_tf.AlbertForMultipleChoice(config))


def test_all_signatures_choose_as_the_model_does(model, vocabulary):
    served = export.Chooser(model, vocabulary, num_choices=3, max_qa_length=9, max_seq_length=31)
    signatures = served.signatures()
    texts = signatures["serving_default"](
        context=tf.constant(CONTEXTS), endings=tf.constant(ENDINGS)
    )
    serialized = []
    for row, (context, endings) in enumerate(zip(CONTEXTS, ENDINGS, strict=True)):
        features = sequence_features.choice_features(vocabulary.tokenizer, context, endings, 31, 9)
        logits = np.array(model({name: value[None] for name, value in features.items()}))[0]
        np.testing.assert_allclose(texts["logits"][row], logits, atol=tolerances.OUTPUT)
        assert texts["choice"][row] == logits.argmax()
        np.testing.assert_allclose(np.sum(texts["probabilities"][row]), 1, atol=tolerances.OUTPUT)
        example = tf.train.Example()
        for name, value in features.items():
            example.features.feature[name].int64_list.value.extend(value.ravel().tolist())
        serialized.append(example.SerializeToString())
    # Of different lengths, each with its choices one after the other.
    answers = signatures["examples"](examples=tf.constant(serialized))
    np.testing.assert_allclose(answers["logits"], texts["logits"], atol=tolerances.OUTPUT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_choices": 1, "max_qa_length": 9}, "`num_choices` must be at least 2, got 1"),
        ({"max_qa_length": 0}, "`max_qa_length` must be at least 1, got 0"),
    ],
)
def test_what_leaves_no_choice_or_room_is_refused(model, vocabulary, arguments, message):
    with pytest.raises(ValueError, match=message):
        export.Chooser(model, vocabulary, **arguments)
