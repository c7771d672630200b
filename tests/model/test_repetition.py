"""A loop gives the same results as its blocks in sequence, and more turns don't make it larger.

Not tested here: speed and memory (docs/performance.md). Other backends: test_backends.py.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import albert_tf
from albert_tf.model.encoder import loop
from tests.kit import tiny, tolerances

X = np.random.default_rng(31).normal(size=(2, 3)).astype("float32")
W = np.random.default_rng(37).normal(size=(3, 3)).astype("float32")


def _call(block, x, number):
    return block(x, number)


def _plain(apply, blocks, x, first, times):
    results = []
    for number in range(times * len(blocks)):
        x = apply(blocks[number % len(blocks)], x, first + number)
        results.append(x)
    return results


def _results_and_gradients(function, mode, turns):
    def run(x, w):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([x, w])
            blocks = [
                lambda x, number: ops.tanh(ops.matmul(x, w)) + ops.cast(number, "float32") / 3,
                lambda x, number: ops.sin(x * w[0]),
            ]
            results = function(_call, blocks, x, 3, turns)
            last, all_of_them = tf.reduce_sum(results[-1]), tf.add_n(results)
        return results, tape.gradient(last, [x, w]), tape.gradient(all_of_them, [x, w])

    if mode != "eager":
        run = tf.function(run, jit_compile=mode == "xla")
    return run(tf.constant(X), tf.constant(W))


@pytest.mark.parametrize(("mode", "turns"), [("eager", 1), ("eager", 5), ("graph", 5), ("xla", 5)])
def test_results_and_gradients_are_those_of_the_blocks_in_turn(mode, turns):
    expected = _results_and_gradients(_plain, "eager", turns)
    actual = _results_and_gradients(loop, mode, turns)
    assert len(actual[0]) == 2 * turns
    # A few float32 roundings of numbers of about 10.
    close = functools.partial(tolerances.assert_close, atol=1e-5)
    tf.nest.map_structure(close, actual, expected)


def test_results_keep_the_shape_that_is_known():
    """Even if a block's output has a less known shape than the loop's first x."""

    @tf.function
    def shapes(x):
        forget = tf.function(lambda x: x, input_signature=[tf.TensorSpec([None, None], tf.float32)])
        return [result.shape.as_list() for result in loop(_call, [lambda x, _: forget(x)], x, 0, 3)]

    assert [[int(n) for n in shape] for shape in shapes(tf.constant(X))] == [[2, 3]] * 3


RATES = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
# Shapes that are unknown until the graph runs: chains of operations are then not fused, which
# takes a tenth of the time.
SHAPES = [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([2], tf.int32)]
INPUT_IDS = np.random.default_rng(41).integers(53, size=(2, 7)).astype("int32")


def _encode(model, input_ids, seed):
    with tf.GradientTape() as tape:
        outputs = model({"input_ids": input_ids}, training=True, dropout_seed=seed)
        loss = tf.reduce_sum(outputs["sequence_output"] ** 3)
    gradients = tape.gradient(loss, [v.value for v in model.encoder.trainable_variables])
    return outputs["all_encoder_layers"], gradients


LAYOUTS = [{"num_hidden_layers": 3, "inner_group_num": 2}]
LAYOUTS += [{"num_hidden_layers": 4, "num_hidden_groups": 2}]


RECOMPUTED = pytest.param(LAYOUTS[0], True, marks=pytest.mark.slow)


@pytest.mark.parametrize(("layout", "recompute"), [RECOMPUTED, (LAYOUTS[1], False)])
def test_the_model_draws_the_masks_of_its_layers_unrolled(monkeypatch, layout, recompute):
    monkeypatch.setattr("albert_tf.model.encoder.MOST_UNROLLED_LAYERS", 0)
    model = albert_tf.AlbertModel(tiny.config(**RATES, **layout), recompute=recompute)

    inputs = tf.constant(INPUT_IDS), tf.constant([3, 5])
    encode = tf.function(functools.partial(_encode, model), input_signature=SHAPES)
    layers, gradients = encode(*inputs)
    monkeypatch.setattr("albert_tf.model.encoder.loop", _plain)
    # Eagerly, which is quicker than tracing all layers.
    plain_layers, plain_gradients = _encode(model, *inputs)
    for actual, expected in zip(layers, plain_layers, strict=True):
        # Rounding errors of six blocks: TensorFlow rearranges a graph. With other masks, the
        # numbers would differ by as much as their own size, about 2.
        np.testing.assert_allclose(actual, expected, rtol=0, atol=3e-6)
    scale = max(float(np.abs(gradient).max()) for gradient in plain_gradients)
    for actual, expected in zip(gradients, plain_gradients, strict=True):
        tolerances.assert_close(actual, expected, tolerances.RECOMPUTED_RELATIVE * scale)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
def test_a_deeper_model_is_no_larger_program(recompute):
    def operations(layers):
        config = tiny.config(**RATES if recompute else {}, num_hidden_layers=layers)
        model = albert_tf.AlbertModel(config, recompute=recompute)

        def run(input_ids, seed):
            if recompute:  # With gradients, and dropout, which recomputation repeats.
                return _encode(model, input_ids, seed)
            return model({"input_ids": input_ids})

        graph = tf.function(run, SHAPES).get_concrete_function().graph.as_graph_def()
        return len(graph.node) + sum(len(f.node_def) for f in graph.library.function)

    # Only the list of the layers' outputs grows, and nothing is computed from it.
    first_loop = 3 if recompute else albert_tf.model.encoder.MOST_UNROLLED_LAYERS + 1
    assert operations(48) <= 1.05 * operations(first_loop)
