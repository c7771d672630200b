"""Weights of classes: what flags ask for, and the loss against Keras' `class_weight`."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.tasks import classification
from albert_tf.tasks.classification import SequenceClassificationTask
from tests import goldens
from tests.tiny import randomise

CLASSES = ("a", "b=c", "d")
WEIGHTS = {0: 0.25, 1: 3.0, 2: 1.5}


def test_balanced_weights_are_inverse_to_the_counts():
    found = classification.parse_class_weights("balanced", CLASSES, [0, 0, 0, 1, 2, 2])
    np.testing.assert_allclose(found, [6 / 9, 6 / 3, 6 / 6])
    # A class without examples changes nothing for the others.
    found = classification.parse_class_weights("balanced", CLASSES, [0, 0, 0, 2])
    np.testing.assert_allclose(found[[0, 2]], [4 / 6, 4 / 2])


def test_named_weights():
    assert classification.parse_class_weights("d=2, b=c=.5", CLASSES, [0]).tolist() == [
        1.0,
        0.5,
        2.0,
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("e=1", "`class_weights` must be balanced, or list each of a, b=c, d at most once, as"),
        ("a=1,a=2", "got 'a=2'"),
        ("2.5", "got '2.5'"),
        ("a=1,", "got ''"),
        ("a=none", "`class_weights`: the weight of a must be positive, got 'none'"),
        ("a=0", "must be positive, got '0'"),
        ("d=nan", "must be positive, got 'nan'"),
        ("d=inf", "must be positive, got 'inf'"),
    ],
)
def test_what_is_no_weight_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        classification.parse_class_weights(text, CLASSES, [0, 1, 2])


def test_the_loss_and_its_gradient_are_those_of_keras_class_weight():
    config = goldens.config("base", num_hidden_layers=1)
    model = albert_tf.AlbertForSequenceClassification(config, 3, classifier_dropout_prob=0.0)
    randomise(model)
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 1000, (6, 9)).astype(np.int32)
    inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": 0 * ids}
    labels = np.array([0, 1, 2, 2, 0, 0], np.int32)

    task = SequenceClassificationTask(None, None, 9, CLASSES)
    task.class_weights = np.array(list(WEIGHTS.values()), np.float32)
    features = {**inputs, "label_ids": labels}
    with tf.GradientTape() as tape:
        logits = model(inputs, training=False)
        (total,) = task.loss_sums(logits, features).values()
        (weight,) = task.loss_weights(features).values()
        loss = total / weight
    gradient = tape.gradient(loss, model.classifier.trainable_variables[0].value)
    before = np.array(model.classifier.trainable_variables[0])

    model.compile(
        optimizer=keras.optimizers.SGD(1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    theirs = model.train_on_batch(inputs, labels, class_weight=WEIGHTS)
    np.testing.assert_allclose(loss, theirs, rtol=1e-6)
    after = np.array(model.classifier.trainable_variables[0])
    np.testing.assert_allclose(gradient, before - after, atol=1e-6)
    unweighted = model.test_on_batch(inputs, labels)
    assert abs(float(unweighted) - float(theirs)) > 1e-3
