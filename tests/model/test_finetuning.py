"""The models of fine-tuning: the release's outputs, losses and gradients."""

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
from tests import goldens, tiny, tolerances

FOLDER = pathlib.Path(__file__).parents[1] / "golden" / "heads"
CLASSIFIERS = {"classifier": 3, "cola": 2, "stsb": 1}
VARIANTS = (*CLASSIFIERS, "race", "squad_v1", "squad_v2")
CHOICES = 4


def info(variant: str) -> dict:
    return json.loads((FOLDER / variant / "info.json").read_text())


def config(variant: str) -> albert_tf.AlbertConfig:
    return albert_tf.AlbertConfig.from_json_file(FOLDER / variant / "albert_config.json")


def build(variant: str, **kwargs) -> keras.Model:
    model_class, own = {
        "race": (finetuning.AlbertForMultipleChoice, {}),
        "squad_v1": (finetuning.AlbertForQuestionAnswering, {}),
        "squad_v2": (finetuning.AlbertForQuestionAnsweringV2, {"start_n_top": 4, "end_n_top": 3}),
    }.get(variant) or (
        finetuning.AlbertForSequenceClassification,
        {"num_labels": CLASSIFIERS[variant]},
    )
    return model_class(config(variant), **own, **kwargs)


def pretrained(variant: str, **kwargs) -> keras.Model:
    model = build(variant, **kwargs)
    report = albert_tf.load_weights(model, str(FOLDER / variant / "model.ckpt-best"))
    assert report.missing == report.unused == ()
    return model


def inputs(variant: str) -> dict[str, np.ndarray]:
    stored = goldens.arrays(FOLDER / variant / "inputs.npz")
    if variant == "race":
        for name in ("input_ids", "input_mask", "segment_ids"):
            stored[name] = stored[name].reshape(len(stored[name]), CHOICES, -1)
    return stored


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


def check_log_probs(actual, expected):
    """Masked positions, at about -1e30, have a relative tolerance; the others an absolute one."""
    check(actual, expected, rtol=tolerances.MASKED_RELATIVE)


@pytest.mark.parametrize("variant", [*CLASSIFIERS, "race"])
def test_classes_are_scored_as_the_release_scores_them(variant):
    logits = pretrained(variant)(inputs(variant)).numpy()
    expected = goldens.arrays(FOLDER / variant / "outputs.npz")
    if variant == "stsb":
        check(logits, expected["probabilities"])
        check(logits[:, 0], expected["logits"])
        return
    check(logits, expected["logits"])
    check(tf.nn.softmax(logits), expected["probabilities"])
    np.testing.assert_array_equal(logits.argmax(-1), expected["predictions"])


def test_spans_are_scored_as_the_release_scores_them():
    outputs = pretrained("squad_v1")(inputs("squad_v1"))
    expected = goldens.arrays(FOLDER / "squad_v1" / "outputs.npz")
    for name in ("start_logits", "end_logits"):
        check(outputs[name], expected[name])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "xla"])
def test_the_beam_is_the_releases(compiled):
    """Its last row has fewer positions than the beam is wide, so that starts tie at -1e30."""
    model = pretrained("squad_v2")
    call = tf.function(model, jit_compile=True) if compiled else model
    outputs = call(without_start(inputs("squad_v2")))
    expected = goldens.arrays(FOLDER / "squad_v2" / "outputs_predict.npz")
    assert set(outputs) == set(expected)
    check(outputs["cls_logits"], expected["cls_logits"])
    for side in ("start", "end"):
        index, log_probs = f"{side}_top_index", f"{side}_top_log_probs"
        np.testing.assert_array_equal(outputs[index], expected[index])
        check_log_probs(outputs[log_probs], expected[log_probs])


@pytest.mark.parametrize("known", [True, False])
def test_rows_may_be_shorter_than_the_beam(known):
    """Then they get what they get with padding."""
    model = finetuning.AlbertForQuestionAnsweringV2(config("squad_v2"), start_n_top=6, end_n_top=2)
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


def test_ends_given_the_true_start_are_the_releases():
    outputs = pretrained("squad_v2")(inputs("squad_v2"))
    expected = goldens.arrays(FOLDER / "squad_v2" / "outputs_train.npz")
    check(outputs["cls_logits"], expected["cls_logits"])
    for name in ("start_log_probs", "end_log_probs"):
        check_log_probs(outputs[name], expected[name])


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_gradients_are_the_releases(variant):
    model, features = pretrained(variant, classifier_dropout_prob=0.0), inputs(variant)
    named = conversion.named_weights(model)
    with tf.GradientTape() as tape:
        each = example_losses(variant, model(features, training=True), features)
        total = tf.add_n([tf.reduce_mean(loss) for loss in each.values()])
    gradients = tape.gradient(total, {name: variable.value for name, variable in named.items()})

    stored = info(variant)
    if variant.startswith("squad"):
        check(total, stored["losses"].pop("total_loss"), tolerances.LOSS)
        assert set(each) == set(stored["losses"])
        for name, loss in each.items():
            check(2 * tf.reduce_mean(loss), stored["losses"][name], tolerances.LOSS)
    else:
        check(total, stored["loss"], tolerances.LOSS)
        expected = goldens.arrays(FOLDER / variant / "outputs.npz")["per_example_loss"]
        check(each["loss"], expected, tolerances.OUTPUT)
    absent = {name for name, gradient in gradients.items() if gradient is None}
    assert absent == set(stored["variables_with_no_gradient"])
    expected = goldens.arrays(FOLDER / variant / "grads.npz")
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
    """The config's own two are 0 here, so that only the head can drop."""
    model, features = pretrained(variant, classifier_dropout_prob=0.5), inputs(variant)
    name = "cls_logits" if variant == "squad_v2" else "start_logits"

    def logits(model, training, seed=None):
        outputs = model(features, training=training, dropout_seed=seed)
        return np.asarray(outputs[name] if isinstance(outputs, dict) else outputs)

    seeds = [tf.constant([3, step]) for step in (0, 0, 1)]
    same, again, other = (logits(model, True, seed) for seed in seeds)
    np.testing.assert_array_equal(same, again)
    assert np.abs(same - other).max() > 1e-3
    # Without a seed the model draws one itself; without training none at all.
    assert np.abs(logits(model, True) - logits(model, True)).max() > 1e-3
    np.testing.assert_array_equal(logits(model, False), logits(model, False, seeds[0]))
    undropped = pretrained(variant, classifier_dropout_prob=0.0)
    np.testing.assert_array_equal(logits(undropped, True, seeds[0]), logits(model, False))


def test_only_the_answerability_drops_in_v2():
    model, features = pretrained("squad_v2", classifier_dropout_prob=0.5), inputs("squad_v2")
    dropped, plain = model(features, training=True), model(features)
    for name in ("start_log_probs", "end_log_probs"):
        np.testing.assert_array_equal(dropped[name], plain[name])


def test_the_heads_seed_is_none_of_the_encoders():
    model = build("cola", classifier_dropout_prob=0.5)
    seed = tf.constant([11, 7])
    _, of_head = model.encode(inputs("cola"), True, seed)
    depth = model.config.num_hidden_layers
    of_blocks = [(11 + site, 7) for site in range(1 + 3 * depth)]
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
    """A normal cut at two deviations: none beyond, and some near, with 32 weights or more."""
    keras.utils.set_random_seed(5)
    model = build(variant)
    assert model.config.initializer_range == 0.2
    (weights,) = (v.numpy() for v in model.weights if v.path.endswith(path))
    largest = np.abs(weights).max()
    assert stddev < largest <= 2 * stddev


@pytest.mark.parametrize("rate", [1.0, -0.1, "0.1"])
def test_a_rate_outside_its_range_is_refused(rate):
    with pytest.raises(ValueError, match=r"classifier_dropout_prob` must be in \[0, 1\)"):
        build("cola", classifier_dropout_prob=rate)


@pytest.mark.parametrize("count", [0, "2", 2.0, True, None])
def test_a_number_of_classes_is_an_integer(count):
    with pytest.raises(ValueError, match=f"`num_labels` must be an integer of .* 1, not {count!r}"):
        albert_tf.AlbertForTokenClassification("albert_tiny", num_labels=count)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("input_ids", -1, "input_ids must be from 0 to 30, but one is -1"),
        ("input_ids", 31, "input_ids must be from 0 to 30, but one is 31"),
        ("segment_ids", 2, "segment_ids must be from 0 to 1, but one is 2"),
    ],
)
def test_ids_out_of_range_are_named(name, wrong, message):
    model = albert_tf.AlbertForSequenceClassification(tiny.config(vocab_size=31), 2)
    features = {"input_ids": np.array([[2, 7, 3]]), "segment_ids": np.array([[0, 1, 1]])}
    model.compile("sgd", keras.losses.MeanSquaredError(), jit_compile=False)
    assert model.predict(features, verbose=0).shape == (1, 2)
    features[name][0, 1] = wrong
    for use in (model, model.predict, lambda x: model.fit(x, np.ones((1, 2)))):
        with pytest.raises(ValueError, match=message):
            use(features)


def test_tokens_are_classified_by_the_same_head():
    model = finetuning.AlbertForTokenClassification(config("classifier"), 3)
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
