"""Packed rows: each example gets the release's numbers, as it does when it is alone.

The release's four examples (one with a hole in its mask) are packed by hand, without
generator/examples.py. Not tested here: dropout, whose masks differ in packed rows.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf import conversion
from albert_tf.tasks.pretraining import PretrainingTask
from tests.kit import goldens, tolerances
from tests.kit.tolerances import assert_close

pytestmark = pytest.mark.usefixtures("every_chain_fused")


def check_log_probs(outputs, variant: str, atol: float) -> None:
    expected = goldens.outputs(variant)
    weights = goldens.inputs(variant)["masked_lm_weights"]
    piece_log_probs = expected["masked_lm_log_probs"].reshape(*weights.shape, -1)
    for row, members in enumerate(goldens.ROWS):
        predictions = 0
        for slot, example in enumerate(members):
            order = keras.ops.log_softmax(outputs["sentence_order_logits"][row, slot])
            assert_close(order, expected["sentence_order_log_probs"][example], atol)
            count = int(weights[example].sum())
            pieces = outputs["masked_lm_logits"][row, predictions : predictions + count]
            pieces = keras.ops.log_softmax(pieces, axis=-1)
            assert_close(pieces, piece_log_probs[example, :count], atol)
            predictions += count


@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_outputs_are_those_of_the_examples_alone(variant):
    outputs = goldens.pretrained(variant)(goldens.packed(goldens.inputs(variant)))
    assert outputs["sentence_order_logits"].shape == (len(goldens.ROWS), goldens.SLOTS, 2)
    check_log_probs(outputs, variant, tolerances.OUTPUT)


def test_int64_positions_do_as_well_where_the_length_is_unknown():
    model, packed = goldens.pretrained("base"), goldens.packed(goldens.inputs("base"))
    wide = {name: value.astype("int64") for name, value in packed.items() if "weights" not in name}
    specs = {name: tf.TensorSpec([None, None], tf.int64) for name in wide}
    call = tf.function(model, input_signature=[specs], autograph=False)
    outputs = call({name: tf.constant(value) for name, value in wide.items()})
    check_log_probs(outputs, "base", tolerances.OUTPUT)


@pytest.mark.parametrize("by_xla", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_all_numbers_are_those_of_the_examples_alone(by_xla):
    """Under XLA with recomputation, in a loop."""
    model = goldens.pretrained("base", recompute=by_xla)
    task = PretrainingTask(model.config)
    variables = {name: v.value for name, v in conversion.named_weights(model).items()}
    features = goldens.packed(goldens.inputs("base"))

    def forward_and_backward():
        with tf.GradientTape() as tape:
            outputs = model(features, training=True)
            sums = task.loss_sums(outputs, features)
            weights = task.loss_weights(features)
            losses = dict(zip(task.loss_names, task.losses(sums, weights), strict=True))
            total = tf.add_n(list(losses.values()))
        gradients = tape.gradient(total, variables)
        heads = {name: outputs[name] for name in ("masked_lm_logits", "sentence_order_logits")}
        return heads, losses, {name: tf.convert_to_tensor(g) for name, g in gradients.items()}

    if by_xla:
        forward_and_backward = tf.function(forward_and_backward, jit_compile=True)
    outputs, losses, gradients = forward_and_backward()
    check_log_probs(outputs, "base", tolerances.OUTPUT)
    expected = goldens.outputs("base")
    for name, loss in losses.items():
        assert_close(loss, expected[name], tolerances.LOSS)
    expected = goldens.arrays(goldens.FOLDER / "base" / "grads.npz")
    assert set(gradients) == set(expected)
    for name, gradient in gradients.items():
        assert_close(gradient, expected[name], tolerances.GRADIENT, name)


@pytest.mark.parametrize("filled", [False, True])
def test_metrics_count_examples_and_neither_slots_nor_rows_that_fill_up_a_batch(filled):
    model, inputs = goldens.pretrained("base"), goldens.inputs("base")
    task, packed = PretrainingTask(model.config), goldens.packed(inputs)
    if filled:
        packed["example_weights"] = np.array([1, 0], "float32")
        inputs = {name: value[list(goldens.ROWS[0])] for name, value in inputs.items()}
    alone, together = task.metrics(model(inputs), inputs), task.metrics(model(packed), packed)
    assert float(together["sentence_order_accuracy"][1]) == (3 if filled else 4)
    for name, (total, weight) in together.items():
        # The sums have 15 terms of about 7, hence the wider tolerance.
        assert_close(total, alone[name][0], 10 * tolerances.LOSS, name)
        assert_close(weight, alone[name][1], 0, name)
