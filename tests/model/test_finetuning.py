"""The models of fine-tuning: the release's outputs, losses and gradients; and as keras.Models.

The latter eagerly, which is quicker than to trace three functions of each; what is compiled is seen
on two replicas and in the notebook. Can't see: several GPUs and workers.
"""

import concurrent.futures
import contextlib
import json
import operator
import pathlib
import pickle
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import conversion
from albert_tf.model import finetuning
from albert_tf.tasks import losses
from albert_tf.training.optimizers import create_optimizer
from tests import goldens, tiny, tolerances
from tests import pretraining_runs as runs

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


B, S, C = 12, 11, 3
MODELS = ("classes", "regression", "tokens", "choices", "answers", "answers_v2")


def features(*shape: int) -> dict[str, np.ndarray]:
    """Returns inputs of rows of 5 to S positions."""
    rng = np.random.default_rng(5)
    mask = np.arange(shape[-1]) < rng.integers(5, shape[-1] + 1, shape[:-1])[..., None]
    return {
        "input_ids": (rng.integers(5, 53, shape) * mask).astype("int32"),
        "input_mask": mask.astype("int32"),
        "segment_ids": ((np.arange(shape[-1]) > 3) * mask).astype("int32"),
    }


def case(name: str) -> tuple[keras.Model, Any, dict[str, np.ndarray], Any]:
    """Returns a model without dropout, its Keras loss, inputs and labels."""
    config = tiny.config(num_hidden_layers=1)
    rng = np.random.default_rng(6)
    nll = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if name == "choices":
        model = finetuning.AlbertForMultipleChoice(config, 0.0)
        return model, nll, features(B, C, S), rng.integers(0, C, B)
    inputs = features(B, S)
    if name == "classes":
        model = finetuning.AlbertForSequenceClassification(config, C, 0.0)
        return model, nll, inputs, rng.integers(0, C, B)
    if name == "regression":
        model = finetuning.AlbertForSequenceClassification(config, 1, 0.0)
        return model, "mean_squared_error", inputs, rng.normal(size=(B, 1)).astype("float32")
    if name == "tokens":
        model = finetuning.AlbertForTokenClassification(config, C, 0.0)
        return model, nll, inputs, rng.integers(0, C, (B, S))
    starts = rng.integers(0, 3, B).astype("int32")
    if name == "answers":
        labels = {"start_logits": starts, "end_logits": starts + 1}
        model = finetuning.AlbertForQuestionAnswering(config)
        return model, dict.fromkeys(labels, nll), inputs, labels
    inputs |= {"p_mask": 1 - inputs["input_mask"], "start_positions": starts}
    model = finetuning.AlbertForQuestionAnsweringV2(config, 2, 2, 0.0)
    labels = {"start_log_probs": starts, "end_log_probs": starts + 1}
    loss = {
        **dict.fromkeys(labels, nll),
        "cls_logits": keras.losses.BinaryCrossentropy(from_logits=True),
    }
    return model, loss, inputs, {**labels, "cls_logits": rng.integers(0, 2, B).astype("float32")}


def optimizer() -> keras.optimizers.Optimizer:
    return create_optimizer(0.01, 60, 2)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_fits_evaluates_predicts_and_comes_back(tmp_path, name):
    keras.utils.set_random_seed(3)  # With some weights four epochs are too few.
    model, loss, inputs, labels = case(name)
    model.compile(optimizer=optimizer(), loss=loss, run_eagerly=True)
    before = model.evaluate(inputs, labels, batch_size=6, verbose=0)
    model.fit(inputs, labels, batch_size=6, epochs=4, verbose=0, shuffle=False)
    after = model.evaluate(inputs, labels, batch_size=6, verbose=0)
    assert np.ravel(after)[0] < np.ravel(before)[0] - 0.1

    to_predict = without_start(inputs)
    predicted = model.predict(to_predict, batch_size=6, verbose=0)
    tf.nest.map_structure(
        lambda batched, whole: np.testing.assert_allclose(
            batched, whole, rtol=0, atol=tolerances.OUTPUT
        ),
        predicted,
        model(to_predict),
    )
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again) is type(model) and again.get_config() == model.get_config()
    tf.nest.map_structure(
        np.testing.assert_array_equal, again.predict(to_predict, batch_size=6, verbose=0), predicted
    )
    pickled = pickle.loads(pickle.dumps(model)).predict(to_predict, batch_size=6, verbose=0)
    tf.nest.map_structure(np.testing.assert_array_equal, pickled, predicted)
    # It is compiled, with the moments of its optimizer.
    assert np.ravel(again.evaluate(inputs, labels, batch_size=6, verbose=0)) == pytest.approx(
        np.ravel(after), abs=tolerances.LOSS
    )
    assert int(again.optimizer.iterations) == 8


@pytest.mark.parametrize("name", MODELS)
def test_in_float16_keras_scales_the_loss_and_fits_as_in_float32(name):
    """Its global policy; the losses of two epochs are near those in float32."""
    found = {}
    try:
        for policy in ("float32", "mixed_float16"):
            keras.config.set_dtype_policy(policy)
            keras.utils.set_random_seed(3)
            model, loss, inputs, labels = case(name)
            model.compile(optimizer=optimizer(), loss=loss, run_eagerly=True)
            fitted = model.fit(inputs, labels, batch_size=6, epochs=2, verbose=0, shuffle=False)
            found[policy] = fitted.history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert found["mixed_float16"] == pytest.approx(found["float32"], abs=tolerances.BFLOAT16_LOSS)


@pytest.mark.parametrize(
    "loss", ["sparse_categorical_crossentropy", keras.losses.BinaryCrossentropy()]
)
def test_a_loss_of_probabilities_is_refused(loss):
    """What it makes of logits is no loss, and training goes on without a word."""
    model, _, inputs, labels = case("classes")
    model.compile("sgd", loss)
    with pytest.raises(ValueError, match="returns logits, but its loss takes probabilities"):
        model.fit(inputs, labels)


def test_habits_of_other_libraries_are_answered_in_one_line():
    pandas = pytest.importorskip("pandas")
    model, _, inputs, _ = case("classes")
    row = {name: value[0] for name, value in inputs.items()}
    for call in (model, model.predict):
        with pytest.raises(ValueError, match="^expected input_ids .*, got the shape .*axes$"):
            call(row)
        for texts in (["a text"], pandas.Series(["a text"]), np.array(["a text"])):
            form = type(texts).__name__
            with pytest.raises(TypeError, match=f"^expected a dictionary .* of texts, not {form}$"):
                call(texts)
    lists = {name: value.tolist() for name, value in inputs.items()}
    np.testing.assert_array_equal(model(lists), model(inputs))


def _fit(replicas: int) -> tuple[list[float], dict[str, np.ndarray], np.ndarray]:
    """Returns losses, weights and predictions of three epochs; on one replica eagerly."""
    strategy = contextlib.nullcontext()
    if replicas > 1:
        runs.split_cpu(replicas)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)]).scope()
    with strategy:
        keras.utils.set_random_seed(3)
        model, loss, inputs, labels = case("classes")
        model.compile(
            optimizer=optimizer(), loss=loss, run_eagerly=replicas == 1, jit_compile=False
        )
    history = model.fit(inputs, labels, batch_size=6, epochs=3, verbose=0, shuffle=False)
    logits = model.predict(inputs, batch_size=6, verbose=0)
    weights = tiny.weights(model)
    return history.history["loss"], weights, logits


def _dropped_out() -> list[list[np.ndarray]]:
    """Returns the logits of the same rows on each of two replicas, of models that drop out."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    rates = {"hidden_dropout_prob": 0.5}, {"classifier_dropout_prob": 0.5}
    found = []
    for in_encoder, in_head in ((rates[0], {"classifier_dropout_prob": 0.0}), ({}, rates[1])):
        with strategy.scope():
            config = tiny.config(num_hidden_layers=1, **in_encoder)
            model = finetuning.AlbertForSequenceClassification(config, C, **in_head)

        @tf.function(autograph=False)
        def run(model=model):
            return strategy.run(lambda: model(features(B, S), training=True))

        found.append([x.numpy() for x in strategy.experimental_local_results(run())])
    return found


def test_fit_on_two_replicas_is_fit_on_one_but_each_drops_out_others():
    with concurrent.futures.ProcessPoolExecutor(1, runs.FORK_SERVER) as executor:
        two, dropped_out = executor.submit(_fit, 2), executor.submit(_dropped_out)
        losses, weights, logits = _fit(1)
        two_losses, two_weights, two_logits = two.result(runs.TIMEOUT_SECONDS)
        for first, second in dropped_out.result(runs.TIMEOUT_SECONDS):
            assert np.abs(first - second).max() > 1e-3
    assert two_losses == pytest.approx(losses, abs=tolerances.TRAJECTORY_LOSS)
    np.testing.assert_allclose(two_logits, logits, rtol=0, atol=tolerances.OUTPUT)
    assert weights.keys() == two_weights.keys()
    for name, value in weights.items():
        tolerances.assert_weight(name, two_weights[name], value)


@pytest.mark.parametrize("variant", ["classifier", "race", "squad_v2"])
def test_names_that_no_model_has_are_refused(variant):
    """Those of other libraries, and misspelt ones; labels may be there, see above."""
    model, whole = build(variant), inputs(variant)
    theirs = ["attention_mask", "token_type_ids", "token_ids", "position_ids"]
    for name in ("mask", "masks", "input_masks", "attention_masks", "segment_id", *theirs):
        features = {**whole, name: whole["input_mask"]}
        if name not in ("input_masks", "segment_id", *theirs):
            del features["input_mask"]
        with pytest.raises(ValueError, match=f"expected inputs among input_ids.* got.* {name}"):
            model(features)
    packed = {**whole, "cls_position": whole["input_ids"][..., :1]}
    if variant == "classifier":
        with pytest.raises(ValueError, match="got cls_position: rename them"):
            model(packed)


@pytest.mark.parametrize(
    ("kind", "shapes", "message"),
    [
        ("AlbertForPreTraining", [(2, 4)], r"masked_lm_positions <int32>\[B, P\] .*: add it"),
        ("AlbertForQuestionAnsweringV2", [(2, 4)], r"p_mask <int32>\[B, S\] .*: add it"),
        ("AlbertForMultipleChoice", [(2, 4)], r"input_ids <int32>\[B, C, S\], got the shape"),
        ("AlbertForMultipleChoice", [(2, 3, 4), (2, 4)], r"input_mask <int32>\[B, C, S\], got"),
        ("AlbertModel", [(2, 4), (2, 1, 4)], r"input_mask <int32>\[B, S\], got the shape \(2, 1"),
    ],
)
def test_inputs_that_lack_or_have_other_axes_are_named(kind, shapes, message):
    model = getattr(albert_tf, kind)(goldens.config("base", num_hidden_layers=1))
    arrays = [np.ones(shape, "int32") for shape in shapes]
    with pytest.raises(ValueError, match=f"expected {message}"):
        model(dict(zip(("input_ids", "input_mask"), arrays, strict=False)))


@pytest.mark.parametrize(
    "trainable",
    [
        {"albert": False},
        {"albert.embeddings": False, "albert.encoder": False},
        {"albert.encoder": False, "albert.encoder.ffn": True},
        {},
    ],
)
def test_frozen_layers_stay_frozen(tmp_path, trainable):
    config = goldens.config("base", num_hidden_layers=1)
    model = albert_tf.AlbertForSequenceClassification(config, num_labels=2)
    for name, value in trainable.items():
        for layer in keras.tree.flatten(operator.attrgetter(name)(model)):
            layer.trainable = value
    expected = [variable.trainable for variable in model.weights]
    model.save(tmp_path / "model.keras")
    renamed = {**model.get_config(), "name": "another"}
    for again in (
        keras.saving.load_model(tmp_path / "model.keras"),
        albert_tf.AlbertForSequenceClassification.from_config(renamed),
    ):
        assert [variable.trainable for variable in again.weights] == expected
        assert len(again.trainable_weights) == len(model.trainable_weights)
    assert renamed.get("frozen") or not trainable
