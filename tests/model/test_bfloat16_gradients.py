"""Gradients in bfloat16 are as large as in float32, although bfloat16 sums over rows lose ones.

Not tested here: GPUs and TPUs.
"""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import albert_tf
from tests.kit import jax_process, tiny

# Head, rows and their length; packed rows hold two examples each.
CASES = [
    ("pretraining", 64, 64),
    ("tokens", 64, 64),
    ("answers", 64, 64),
    ("packed", 8, 512),
]
HEADS = {
    "pretraining": albert_tf.AlbertForPreTraining,
    "packed": albert_tf.AlbertForPreTraining,
    "tokens": functools.partial(albert_tf.AlbertForTokenClassification, num_labels=3),
    "answers": albert_tf.AlbertForQuestionAnswering,
}


def gradients(head: str, rows: int, length: int, dtype: str) -> dict[str, np.ndarray]:
    """Returns the gradients of the sum of all outputs: all rows have the same sign."""
    keras.utils.set_random_seed(3)
    config = tiny.config(max_position_embeddings=length, num_hidden_layers=1)
    model = tiny.randomise(HEADS[head](config, dtype=dtype))
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (rows, length)).astype("int32")
    features = {"input_ids": ids, "segment_ids": (ids > 30).astype("int32")}
    features |= {"masked_lm_positions": ids[:, :9]} if head in ("pretraining", "packed") else {}
    if head == "packed":
        features["cls_positions"] = np.full((rows, 2), (0, length // 2), "int32")
    variables = model.trainable_variables

    def total(values):
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            outputs = model(features, training=False)
        first = [output[..., 0] for output in keras.tree.flatten(outputs)]
        return sum(ops.sum(ops.cast(output, "float32")) for output in first)

    values = [variable.value for variable in variables]
    if keras.backend.backend() == "jax":
        import jax

        found = jax.jit(jax.grad(total))(values)
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = total(values)
        found = [tf.convert_to_tensor(x) for x in tape.gradient(loss, values)]
    return {v.path: np.asarray(x, "float64") for v, x in zip(variables, found, strict=True)}


def truncation() -> float:
    """Returns by what share products are too small: TensorFlow truncates them on some
    processors, such as those without AVX-512 (findings/tensorflow_bfloat16_products.sh)."""
    a, b = (ops.cast(x, "bfloat16") for x in np.random.default_rng(1).uniform(1, 2, (2, 64, 64)))
    exact = np.asarray(ops.cast(a, "float32")) @ np.asarray(ops.cast(b, "float32"))
    return max(0.0, 1 - float(np.mean(np.asarray(ops.cast(a @ b, "float32")) / exact)))


def compare(head: str, rows: int, length: int) -> None:
    # A gradient passes through up to ten products, one after the other.
    most = 0.015 + 10 * truncation()
    assert most < 0.06
    dtypes = "float32", "mixed_bfloat16"
    expected, found = (gradients(head, int(rows), int(length), dtype) for dtype in dtypes)
    largest = max(np.linalg.norm(value) for value in expected.values())
    compared = 0
    for name, value in expected.items():
        # The gradient of the keys' bias is 0, except for rounding.
        if np.linalg.norm(value) > 1e-5 * largest:
            size = np.vdot(found[name], value) / np.vdot(value, value)
            assert abs(size - 1) < most, (name, size)
            compared += 1
    assert compared > 20


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_gradients_on_jax_are_as_large_as_in_float32(case):
    pytest.importorskip("jax")
    jax_process.finish(jax_process.start(compare, *case))


@pytest.mark.slow
def test_gradients_on_tensorflow_are_as_large_as_in_float32():
    compare(*CASES[0])


def add_up() -> None:
    import jax

    from albert_tf.model.layers import plus_bias

    def total(bias):
        x = ops.zeros((64, 64, 5), "bfloat16")
        return ops.sum(ops.cast(plus_bias(x, bias), "float32"))

    gradient = jax.grad(total)(ops.zeros((5,), "float32"))
    assert gradient.dtype == "float32" and np.all(gradient == 64 * 64)


def test_a_bias_counts_all_rows():
    pytest.importorskip("jax")
    jax_process.finish(jax_process.start(add_up))
