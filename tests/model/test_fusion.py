"""Fused chains give what the plain ones give, gradients too. Not tested here: speed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from albert_tf.model import dropout
from albert_tf.model.fusion import fused
from albert_tf.training.adamw import AdamW


def _chain(x, y, power):
    return ops.tanh(x * y) ** power


def _value_and_gradients(function, tensors, signature=None, **keywords):
    @tf.function(input_signature=signature)
    def run(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors, **keywords)
        return result, tape.gradient(result, tensors)

    return [value.numpy() for value in tf.nest.flatten(run(*tensors))]


def _tensors():
    rng = np.random.default_rng(5)
    return tuple(tf.constant(rng.standard_normal((2, 7)), tf.float32) for _ in range(2))


@pytest.mark.usefixtures("every_chain_fused")
def test_a_fused_chain_and_its_gradients_are_the_plain_ones():
    """Also where shapes are not static, and where the chain is recomputed."""
    expected = _value_and_gradients(_chain, _tensors(), power=3)
    recomputed = keras.remat(lambda x, y: fused(_chain)(x, y, power=3))
    for actual in (
        _value_and_gradients(fused(_chain), _tensors(), power=3),
        _value_and_gradients(fused(_chain), _tensors(), [tf.TensorSpec([None, 7])] * 2, power=3),
        _value_and_gradients(recomputed, _tensors()),
    ):
        np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.usefixtures("every_chain_fused")
def test_a_gradient_may_be_given_as_one_of_the_result():
    def chain(x, scale):
        return ops.exp(x * scale)

    x = _tensors()[:1]
    expected = _value_and_gradients(chain, x, scale=0.5)
    by_result = fused(chain, lambda y, upstream, scale: [upstream * y * scale])
    actual = _value_and_gradients(by_result, x, scale=0.5)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize(("rows", "is_fused"), [(9362, False), (9363, True)])
def test_a_chain_is_fused_where_it_is_long(rows, is_fused):
    graph_of = tf.function(lambda x, y: fused(_chain)(x, y, power=3)).get_concrete_function
    graph = graph_of(*[tf.TensorSpec([rows, 7])] * 2).graph
    assert any("PartitionedCall" in op.type for op in graph.get_operations()) == is_fused


@pytest.mark.usefixtures("every_chain_fused")
def test_eagerly_a_chain_is_left_as_it_is():
    with tf.GradientTape() as tape:
        x, y = _tensors()
        tape.watch(x)
        result = fused(_chain)(x, y, power=3)
    np.testing.assert_array_equal(result, _chain(x, y, 3))
    assert tape.gradient(result, x) is not None


@pytest.mark.usefixtures("every_chain_fused")
def test_the_backward_pass_of_a_fused_chain_drops_what_the_forward_pass_dropped():
    chain = fused(lambda x, rate, seed: dropout.apply_dropout(x, rate, seed))
    x = tf.fill([11, 13], 2.0)
    seed = tf.constant([17, 19])
    value, gradient = _value_and_gradients(lambda x: chain(x, rate=0.5, seed=seed), (x,))
    assert 0 < np.count_nonzero(value) < value.size
    np.testing.assert_array_equal(gradient, value / 2.0)


def test_a_step_of_a_large_weight_is_compiled_and_the_same():
    """Twenty weights of 4,000 elements are updated one by one, or as one of 80,000, compiled."""
    rng = np.random.default_rng(7)
    start, grad = rng.standard_normal((2, 20, 4000)).astype(np.float32)
    compiled_calls = []

    def train(weights, grads):
        variables = [keras.Variable(weight, name="kernel") for weight in weights]
        adamw = AdamW(0.1, global_clipnorm=1.0)
        adamw.build(variables)

        @tf.function
        def step():
            adamw.apply([tf.constant(grad) for grad in grads], variables)

        graph = step.get_concrete_function().graph
        compiled_calls.append(sum("PartitionedCall" in op.type for op in graph.get_operations()))
        for _ in range(3):
            step()
        return np.concatenate([variable.numpy().ravel() for variable in variables])

    np.testing.assert_allclose(train([start], [grad]), train(start, grad), atol=1e-6)
    assert compiled_calls == [2, 0]  # The norm's sum and the update; nothing.
