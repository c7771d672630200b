"""Gradients in bfloat16 have float32's size on JAX, whose sums over rows would lose ones.

Can't see: GPUs, TPUs; TensorFlow, which sums in float32 by itself.
"""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import albert_tf
from tests.kit import jax_process, tiny

ROWS, LENGTH = 64, 64
HEADS = {
    "pretraining": albert_tf.AlbertForPreTraining,
    "tokens": functools.partial(albert_tf.AlbertForTokenClassification, num_labels=3),
    "answers": albert_tf.AlbertForQuestionAnswering,
}


def gradients(head: str, dtype: str) -> dict[str, np.ndarray]:
    """Returns the gradients of the sum of all outputs: all rows have the same sign."""
    import jax

    keras.utils.set_random_seed(3)
    config = tiny.config(max_position_embeddings=LENGTH, num_hidden_layers=1)
    model = tiny.randomise(HEADS[head](config, dtype=dtype))
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (ROWS, LENGTH)).astype("int32")
    features = {"input_ids": ids, "segment_ids": (ids > 30).astype("int32")}
    features |= {"masked_lm_positions": ids[:, :9]} if head == "pretraining" else {}
    variables = model.trainable_variables

    def total(values):
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            outputs = model(features, training=False)
        first = [output[..., 0] for output in jax.tree.leaves(outputs)]
        return sum(ops.sum(ops.cast(output, "float32")) for output in first)

    found = jax.jit(jax.grad(total))([variable.value for variable in variables])
    return {v.path: np.asarray(x, "float64") for v, x in zip(variables, found, strict=True)}


def compare(head: str) -> None:
    expected, found = gradients(head, "float32"), gradients(head, "mixed_bfloat16")
    largest = max(np.linalg.norm(value) for value in expected.values())
    compared = 0
    for name, value in expected.items():
        # That of the keys' bias is 0, but for rounding.
        if np.linalg.norm(value) > 1e-5 * largest:
            size = np.vdot(found[name], value) / np.vdot(value, value)
            assert abs(size - 1) < 0.015, (name, size)
            compared += 1
    assert compared > 20


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_gradients_in_bfloat16_are_as_large_as_in_float32(head):
    pytest.importorskip("jax")
    jax_process.finish(jax_process.start(compare, head))


def add_up() -> None:
    import jax

    from albert_tf.model.layers import plus_bias

    def total(bias):
        x = ops.zeros((ROWS, LENGTH, 5), "bfloat16")
        return ops.sum(ops.cast(plus_bias(x, bias), "float32"))

    gradient = jax.grad(total)(ops.zeros((5,), "float32"))
    assert gradient.dtype == "float32" and np.all(gradient == ROWS * LENGTH)


def test_a_bias_counts_all_rows():
    pytest.importorskip("jax")
    jax_process.finish(jax_process.start(add_up))
