import keras
import numpy as np
import pytest
from keras import ops

import albert_tf
from tests.kit import goldens, tolerances

LOSSES = {
    name: keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for name in ("masked_lm_logits", "sentence_order_logits")
}
MODEL_INPUTS = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")


def log_probs(logits) -> np.ndarray:
    probs = ops.convert_to_numpy(ops.log_softmax(logits, axis=-1))
    return probs.reshape(-1, probs.shape[-1])


def check_log_probs(variant: str, outputs: dict, atol: float = tolerances.OUTPUT) -> None:
    for head in ("masked_lm", "sentence_order"):
        expected = goldens.outputs(variant)[f"{head}_log_probs"]
        found = log_probs(outputs[f"{head}_logits"])
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_log_probabilities_are_the_releases(variant):
    model, inputs = goldens.pretrained(variant), goldens.inputs(variant)
    outputs = model(inputs)
    batch, slots = inputs["masked_lm_positions"].shape
    assert outputs["masked_lm_logits"].shape == (batch, slots, model.config.vocab_size)
    assert outputs["sentence_order_logits"].shape == (batch, 2)
    check_log_probs(variant, outputs)


def test_encoder_outputs_are_handed_on():
    model, inputs = goldens.pretrained("base"), goldens.inputs("base")
    outputs, encoded = model(inputs), model.albert(inputs)
    assert set(outputs) == {*encoded, *LOSSES}
    # Not to the bit: for [CLS] alone, the products of the last block have other shapes.
    found, expected = outputs["pooled_output"], encoded["pooled_output"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerances.SUBLAYER)


def fit_data() -> tuple[dict, dict, dict]:
    inputs = goldens.inputs("base")
    labels = inputs["masked_lm_ids"], inputs["sentence_order_labels"]
    weights = inputs["masked_lm_weights"], np.ones(len(inputs["input_ids"]), "float32")
    of_heads = (dict(zip(LOSSES, values, strict=True)) for values in (labels, weights))
    return {name: inputs[name] for name in MODEL_INPUTS}, *of_heads


def test_fit_learns_a_batch_by_heart():
    """Eagerly; see test_train_step.py for compiled steps."""
    model = goldens.pretrained("base", num_hidden_layers=1, hidden_dropout_prob=0.1)
    model.compile(keras.optimizers.Adam(2e-2), LOSSES, run_eagerly=True)
    inputs, labels, weights = fit_data()
    arguments = {"sample_weight": weights, "batch_size": 4, "verbose": 0}
    history = model.fit(inputs, labels, epochs=15, **arguments).history
    for name in ("loss", "masked_lm_logits_loss", "sentence_order_logits_loss"):
        assert history[name][-1] < history[name][0] / 3, name
    evaluated = model.evaluate(inputs, labels, return_dict=True, **arguments)
    assert evaluated["loss"] < history["loss"][0] / 3


def test_predict_under_xla_gives_what_the_release_does():
    model, (inputs, _, _) = goldens.pretrained("base"), fit_data()
    model.compile(jit_compile=True)
    # Batches of one shape, because XLA compiles for each shape anew.
    check_log_probs("base", model.predict(inputs, batch_size=2, verbose=0))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_saved_model_comes_back_the_same(tmp_path, dtype):
    model = goldens.pretrained("groups2_inner2", recompute=True, dtype=dtype)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(again, albert_tf.AlbertForPreTraining)
    assert again.config == model.config
    assert again.recompute
    assert again.dtype_policy.name == dtype
    inputs = goldens.inputs("groups2_inner2")
    outputs, outputs_again = model(inputs), again(inputs)
    for name in LOSSES:
        assert keras.backend.standardize_dtype(outputs[name].dtype) == "float32"
        np.testing.assert_array_equal(outputs[name], outputs_again[name])
    limit = tolerances.OUTPUT if dtype == "float32" else tolerances.BFLOAT16_OUTPUT
    check_log_probs("groups2_inner2", outputs, limit)
