"""Exported multiple choice against the model that it was made of."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import export
from albert_tf.tasks import sequence_features
from tests import tolerances
from tests.tiny import randomise

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
        ({"max_qa_length": 62}, "`max_qa_length` must be from 1 to 61 for sequences of 64"),
    ],
)
def test_what_leaves_no_choice_or_room_is_refused(model, vocabulary, arguments, message):
    with pytest.raises(ValueError, match=message):
        export.Chooser(model, vocabulary, **arguments)
