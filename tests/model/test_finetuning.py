"""The models of fine-tuning: the release's outputs, losses and gradients."""

import functools
import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import conversion
from albert_tf.model import finetuning
from albert_tf.tasks import losses
from tests.kit import goldens, tolerances

FOLDER = pathlib.Path(__file__).parents[1] / "golden" / "heads"
# Variants of the release's models, with our classes and their arguments.
CLASSIFIERS = [("classifier", 3), ("cola", 2), ("stsb", 1)]
VARIANTS: dict[str, tuple[type[finetuning.FineTunedModel], dict[str, int]]] = {
    **{n: (finetuning.AlbertForSequenceClassification, {"num_labels": c}) for n, c in CLASSIFIERS},
    "race": (finetuning.AlbertForMultipleChoice, {}),
    "squad_v1": (finetuning.AlbertForQuestionAnswering, {}),
    "squad_v2": (finetuning.AlbertForQuestionAnsweringV2, {"start_n_top": 4, "end_n_top": 3}),
}
CHOICES = 4


def build(variant: str, **kwargs) -> keras.Model:
    model_class, own = VARIANTS[variant]
    return model_class(FOLDER / variant / "albert_config.json", **own, **kwargs)


def pretrained(variant: str, **kwargs) -> keras.Model:
    model = build(variant, **kwargs)
    report = albert_tf.load_weights(model, str(FOLDER / variant / "model.ckpt-best"))
    assert report.missing == report.unused == ()
    return model


def stored(variant: str, file: str = "outputs") -> dict[str, np.ndarray]:
    return goldens.arrays(FOLDER / variant / f"{file}.npz")


def inputs(variant: str) -> dict[str, np.ndarray]:
    features = stored(variant, "inputs")
    if variant == "race":
        for name in ("input_ids", "input_mask", "segment_ids"):
            features[name] = features[name].reshape(len(features[name]), CHOICES, -1)
    return features


def without_start(features: dict) -> dict:
    return {name: value for name, value in features.items() if name != "start_positions"}


def example_losses(variant: str, outputs, features) -> dict:
    """Returns the losses `[B]` whose means sum to the release's total loss."""
    if variant.startswith("squad"):
        each = losses.span_losses(outputs, features)
        if variant == "squad_v2":
            each["regression_loss"] = losses.answerability_loss(outputs, features)
        return each
    name = "regression_loss" if variant == "stsb" else "classification_loss"
    return {"loss": getattr(losses, name)(features["label_ids"], outputs)}


def check(actual, expected, atol=tolerances.OUTPUT, rtol=0.0, **kwargs):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=rtol, atol=atol, **kwargs)


# Masked positions, at about -1e30, have a relative tolerance; the others an absolute one.
check_log_probs = functools.partial(check, rtol=tolerances.MASKED_RELATIVE)


def check_outputs(variant: str, outputs) -> None:
    expected = stored(variant, "outputs_train" if variant == "squad_v2" else "outputs")
    if variant.startswith("squad"):
        for name, value in outputs.items():
            compare = check_log_probs if name.endswith("log_probs") else check
            compare(value, expected[name])
        return
    logits = outputs.numpy()
    if variant == "stsb":
        check(logits, expected["probabilities"])
        check(logits[:, 0], expected["logits"])
        return
    check(logits, expected["logits"])
    check(tf.nn.softmax(logits), expected["probabilities"])
    np.testing.assert_array_equal(logits.argmax(-1), expected["predictions"])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "xla"])
def test_the_beam_is_the_releases(compiled):
    """Its last row has fewer positions than the beam is wide, so that starts tie at -1e30."""
    model = pretrained("squad_v2")
    call = tf.function(model, jit_compile=True) if compiled else model
    outputs = call(without_start(inputs("squad_v2")))
    expected = stored("squad_v2", "outputs_predict")
    assert set(outputs) == set(expected)
    check(outputs["cls_logits"], expected["cls_logits"])
    for side in ("start", "end"):
        index, log_probs = f"{side}_top_index", f"{side}_top_log_probs"
        np.testing.assert_array_equal(outputs[index], expected[index])
        check_log_probs(outputs[log_probs], expected[log_probs])


@pytest.mark.parametrize("known", [True, False])
def test_rows_may_be_shorter_than_the_beam(known):
    """The results are then those with padding."""
    config = FOLDER / "squad_v2" / "albert_config.json"
    model = finetuning.AlbertForQuestionAnsweringV2(config, start_n_top=6, end_n_top=2)
    rows = {name: np.ones((2, 4), "int32") for name in ("input_ids", "input_mask", "segment_ids")}
    rows["p_mask"] = np.array([[0, 1, 0, 0]] * 2, "int32")
    padded = {name: np.pad(value, [[0, 0], [0, 2]]) for name, value in rows.items()}
    padded["p_mask"][:, 4:] = 1
    call = model
    if not known:
        specs = {name: tf.TensorSpec([None, None], tf.int32) for name in rows}
        call = tf.function(model, input_signature=[specs], autograph=False)
    outputs, expected = call(rows), model(padded)
    assert outputs["end_top_index"].shape == (2, 12)
    for name, values in expected.items():  # Three starts are possible, each with two ends.
        real = 6 if name.startswith("end") else 3
        check(outputs[name][..., :real], values[..., :real])


@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_losses_and_gradients_are_the_releases(variant):
    model, features = pretrained(variant, classifier_dropout_prob=0.0), inputs(variant)
    named = conversion.named_weights(model)
    with tf.GradientTape() as tape:
        outputs = model(features, training=True)
        each = example_losses(variant, outputs, features)
        total = tf.add_n([tf.reduce_mean(loss) for loss in each.values()])
    gradients = tape.gradient(total, {name: variable.value for name, variable in named.items()})

    check_outputs(variant, outputs)
    info = json.loads((FOLDER / variant / "info.json").read_text())
    if variant.startswith("squad"):
        check(total, info["losses"].pop("total_loss"), tolerances.LOSS)
        assert set(each) == set(info["losses"])
        for name, loss in each.items():
            check(2 * tf.reduce_mean(loss), info["losses"][name], tolerances.LOSS)
    else:
        check(total, info["loss"], tolerances.LOSS)
        expected = stored(variant)["per_example_loss"]
        check(each["loss"], expected, tolerances.OUTPUT)
    absent = {name for name, gradient in gradients.items() if gradient is None}
    assert absent == set(info["variables_with_no_gradient"])
    expected = stored(variant, "grads")
    assert set(expected) == set(named) - absent
    largest = max(np.abs(gradient).max() for gradient in expected.values())
    for name, gradient in expected.items():
        actual = tf.convert_to_tensor(gradients[name])
        check(actual, gradient, tolerances.HEAD_GRADIENT_RELATIVE * largest, err_msg=name)


def test_a_position_beyond_the_sequence_costs_nothing():
    log_probs = np.log(np.array([[0.2, 0.3, 0.5]] * 4, "float32"))
    actual = losses.position_loss(np.array([1, 3, -1, 2], "int32"), log_probs)
    check(actual, [-np.log(0.3), 0, 0, -np.log(0.5)], tolerances.LOSS)


@pytest.mark.parametrize("variant", ["cola", "race", "squad_v1", "squad_v2"])
def test_the_heads_dropout_is_a_setting_and_a_function_of_its_seed(variant):
    """The config's two dropout rates are 0 here, so that only the head can drop."""
    model, features = pretrained(variant, classifier_dropout_prob=0.5), inputs(variant)
    name = "cls_logits" if variant == "squad_v2" else "start_logits"

    def outputs(training, seed=None):
        found = model(features, training=training, dropout_seed=seed)
        return found if isinstance(found, dict) else {name: found}

    seeds = [tf.constant([3, step]) for step in (0, 0, 1)]
    same, again, other = (outputs(True, seed) for seed in seeds)
    np.testing.assert_array_equal(same[name], again[name])
    assert np.abs(same[name] - other[name]).max() > 1e-3
    plain = outputs(False, seeds[0])
    assert np.abs(same[name] - plain[name]).max() > 1e-3
    if variant == "squad_v2":  # Only the answerability has dropout.
        np.testing.assert_array_equal(same["end_log_probs"], plain["end_log_probs"])
    if variant == "cola":
        # Without a seed the model draws one itself; at a rate of 0 nothing drops.
        assert np.abs(outputs(True)[name] - outputs(True)[name]).max() > 1e-3
        model = pretrained(variant, classifier_dropout_prob=0.0)
        np.testing.assert_array_equal(outputs(True, seeds[0])[name], plain[name])
        # The head's seed differs from all of the encoder's.
        _, of_head = build("cola", classifier_dropout_prob=0.5).encode(features, True, seeds[2])
        of_blocks = [(3 + site, 1) for site in range(1 + 3 * model.config.num_hidden_layers)]
        assert tuple(of_head.numpy()) not in of_blocks


@pytest.mark.parametrize(
    ("variant", "path", "stddev"),
    [
        ("classifier", "classifier/output_weights", 0.02),
        ("race", "classifier/output_weights", 0.02),
        ("squad_v1", "span/output_weights", 0.02),
        ("squad_v2", "conditional_span/end_0_kernel", 0.2),
        ("squad_v2", "answerability/dense_0_kernel", 0.2),
    ],
)
def test_initial_weights_are_of_the_releases_spread(variant, path, stddev):
    """A normal truncated at two standard deviations: of 32 or more weights, some exceed one."""
    keras.utils.set_random_seed(5)
    model = build(variant)
    assert model.config.initializer_range == 0.2
    (weights,) = (v.numpy() for v in model.weights if v.path.endswith(path))
    largest = np.abs(weights).max()
    assert stddev < largest <= 2 * stddev


def test_tokens_are_classified_by_the_same_head():
    model = finetuning.AlbertForTokenClassification(FOLDER / "classifier" / "albert_config.json", 3)
    assert (model.name, model.reads_pooler) == ("albert_for_token_classification", False)
    albert_tf.load_weights(model, str(FOLDER / "classifier" / "model.ckpt-best"))
    features = inputs("classifier")
    sequence = model.albert(features)["sequence_output"].numpy()
    named = conversion.named_weights(model)
    expected = sequence @ named["output_weights"].numpy().T + named["output_bias"].numpy()
    check(model(features), expected)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_the_bits_are_near_float32(dtype):
    for variant in ("classifier", "squad_v2"):
        features = inputs(variant)
        plain = pretrained(variant)(features)
        cast = pretrained(variant, dtype=dtype)(features)
        if variant == "squad_v2":
            plain, cast = plain["cls_logits"], cast["cls_logits"]
        assert cast.dtype == tf.float32
        check(cast, plain, tolerances.BFLOAT16_OUTPUT)
