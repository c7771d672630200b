"""The models of fine-tuning as keras.Models: fit, evaluate and predict, and inputs that are wrong.

Eagerly, which is quicker than to trace three functions of each; what is compiled is seen on two
replicas and in the notebook. Can't see: several GPUs and workers.
"""

import concurrent.futures
import contextlib
import operator
import pickle
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.model import finetuning
from albert_tf.training.optimizers import create_optimizer
from tests import goldens, tiny, tolerances
from tests import pretraining_runs as runs
from tests.model.test_finetuning import build, inputs, without_start

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
