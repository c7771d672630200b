"""A loop that is left after some layers answers as a model of so few does.

Can't see: what it costs; that is measured by hand.
"""

import numpy as np
import pytest

import albert_tf
from albert_tf.serving import exported_files, other_formats
from research.experiments import exit_times
from tests import tiny, tolerances

FEATURES = {
    "input_ids": np.array([[2, 5, 9, 3], [2, 7, 3, 0]], np.int32),
    "input_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.int32),
    "segment_ids": np.array([[0, 0, 0, 0], [0, 1, 1, 0]], np.int32),
}


def classifier(depth):
    """The same weights at any depth."""
    config = tiny.config(num_hidden_layers=depth)
    return tiny.randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=2))


def answer(run, layers):
    return np.asarray(run({**FEATURES, "layers": np.array(layers, np.int32)})["logits"])


@pytest.fixture(scope="module")
def model():
    return classifier(5)


@pytest.fixture(scope="module")
def expected():
    """The logits after each of five layers."""
    return [np.asarray(classifier(depth)(FEATURES)) for depth in range(1, 6)]


def test_a_loop_that_is_left_after_some_layers(model, expected):
    find = exit_times.leaving(model)
    for layers in range(1, 6):
        found = answer(lambda given: find(**given), layers)
        tolerances.assert_close(found, expected[layers - 1], tolerances.OUTPUT)


def test_it_is_left_when_all_texts_are_sure(model, expected):
    surest = np.array([np.exp(x).max(axis=1) / np.exp(x).sum(axis=1) for x in expected])
    # After the first layer one text is, after the second both are.
    confidence = surest[0].mean()
    assert surest[0].min() < confidence - 1e-4 and confidence < surest[1].min()
    find = exit_times.leaving(model, confidence)
    tolerances.assert_close(answer(lambda x: find(**x), 5), expected[1], tolerances.OUTPUT)


@pytest.mark.peers
def test_the_loop_in_onnx(model, expected):
    pytest.importorskip("tf2onnx")
    content = other_formats.to_onnx(exit_times.leaving(model), is_int8=False)
    run = exported_files.runtime_loader(True)(content).run
    for layers in (1, 3, 5):
        tolerances.assert_close(answer(run, layers), expected[layers - 1], tolerances.OUTPUT)
