"""The models of fine-tuning as keras.Models: fit, evaluate and predict, save and load.

Eager, which is quicker than tracing three functions of each; compiled functions are tested on two
replicas and in the notebook. Not tested here: several GPUs and workers.
"""

import concurrent.futures
import contextlib
import functools
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
from tests.kit import goldens, tiny, tolerances
from tests.kit import pretraining_runs as runs
from tests.model.test_finetuning import without_start

B, S, C = 12, 11, 3
MODELS = ("classes", "regression", "tokens", "choices", "answers", "answers_v2")
FITTED = ["tokens", "answers_v2"]
FITTED += [pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name not in FITTED]


def features(*shape: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    mask = np.arange(shape[-1]) < rng.integers(5, shape[-1] + 1, shape[:-1])[..., None]
    return {
        "input_ids": (rng.integers(5, 53, shape) * mask).astype("int32"),
        "input_mask": mask.astype("int32"),
        "segment_ids": ((np.arange(shape[-1]) > 3) * mask).astype("int32"),
    }


def case(name: str) -> tuple[keras.Model, Any, dict[str, np.ndarray], Any]:
    """Returns a model without dropout, its Keras loss, inputs and labels."""
    rng = np.random.default_rng(6)
    classes, tags = rng.integers(0, C, B), rng.integers(0, C, (B, S))
    numbers = rng.normal(size=(B, 1))
    starts, unanswered = rng.integers(0, 3, B).astype("int32"), rng.integers(0, 2, B)
    spans = {"start_logits": starts, "end_logits": starts + 1}
    given = {"start_log_probs": starts, "end_log_probs": starts + 1}
    nll = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    binary = {"cls_logits": keras.losses.BinaryCrossentropy(from_logits=True)}
    kind, arguments, loss, labels = {
        "classes": ("SequenceClassification", (C, 0.0), nll, classes),
        "regression": ("SequenceClassification", (1, 0.0), "mse", numbers.astype("float32")),
        "tokens": ("TokenClassification", (C, 0.0), nll, tags),
        "choices": ("MultipleChoice", (0.0,), nll, classes),
        "answers": ("QuestionAnswering", (), dict.fromkeys(spans, nll), spans),
        "answers_v2": ("QuestionAnsweringV2", (2, 2, 0.0), dict.fromkeys(given, nll) | binary)
        + ({**given, "cls_logits": unanswered.astype("float32")},),
    }[name]
    inputs = features(B, C, S) if name == "choices" else features(B, S)
    if name == "answers_v2":
        inputs |= {"p_mask": 1 - inputs["input_mask"], "start_positions": starts}
    model_class = getattr(albert_tf, f"AlbertFor{kind}")
    return model_class(tiny.config(num_hidden_layers=1), *arguments), loss, inputs, labels


def compile_and_fit(name: str) -> tuple[keras.Model, list[float], dict[str, Any], Any]:
    """Returns a model after three steps, the losses before each, inputs and labels."""
    keras.utils.set_random_seed(3)  # With some weights three steps are too few.
    model, loss, inputs, labels = case(name)
    model.compile(optimizer=create_optimizer(0.006, 60, 0), loss=loss, run_eagerly=True)
    fitted = model.fit(inputs, labels, batch_size=B, epochs=3, verbose=0, shuffle=False)
    return model, fitted.history["loss"], inputs, labels


@pytest.mark.parametrize("name", FITTED)
def test_a_model_fits_evaluates_predicts_and_comes_back(tmp_path, name):
    model, losses, inputs, labels = compile_and_fit(name)
    after = model.evaluate(inputs, labels, batch_size=B, verbose=0)
    assert np.ravel(after)[0] < losses[0] - 0.1

    to_predict = without_start(inputs)
    predicted = model.predict(to_predict, batch_size=6, verbose=0)
    close = functools.partial(tolerances.assert_close, atol=tolerances.OUTPUT)
    tf.nest.map_structure(close, model(to_predict), predicted)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again) is type(model) and again.get_config() == model.get_config()
    pickled = [pickle.loads(pickle.dumps(model))] if name == "choices" else []
    for other in (again, *pickled):
        found = other.predict(to_predict, batch_size=6, verbose=0)
        tf.nest.map_structure(np.testing.assert_array_equal, found, predicted)
    # The loaded model is compiled, and has the moments of its optimizer.
    found = again.evaluate(inputs, labels, batch_size=B, verbose=0)
    np.testing.assert_allclose(found, after, rtol=0, atol=tolerances.LOSS)
    assert int(again.optimizer.iterations) == 3


@pytest.mark.slow
def test_in_float16_keras_scales_the_loss_and_fits_as_in_float32():
    """By Keras' global policy, for the kind with most heads; three losses are near float32's."""
    found = {}
    try:
        for policy in ("float32", "mixed_float16"):
            keras.config.set_dtype_policy(policy)
            model, found[policy], *_ = compile_and_fit("answers_v2")
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert found["mixed_float16"] == pytest.approx(found["float32"], abs=tolerances.BFLOAT16_LOSS)


def _fit(replicas: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """Returns losses and weights of three epochs; on one replica eagerly."""
    strategy = contextlib.nullcontext()
    if replicas > 1:
        runs.split_cpu(replicas)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)]).scope()
    with strategy:
        keras.utils.set_random_seed(3)
        model, loss, inputs, labels = case("classes")
        how = {"run_eagerly": replicas == 1, "jit_compile": False}
        model.compile(create_optimizer(0.01, 60, 2), loss, **how)
    history = model.fit(inputs, labels, batch_size=6, epochs=3, verbose=0, shuffle=False)
    return history.history["loss"], tiny.weights(model)


def _dropped_out() -> list[list[np.ndarray]]:
    """Returns the logits of the same rows on each of two replicas, of models with dropout."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = []
    for in_encoder, in_head in ((0.5, 0.0), (0.0, 0.5)):
        with strategy.scope():
            config = tiny.config(num_hidden_layers=1, hidden_dropout_prob=in_encoder)
            model = finetuning.AlbertForSequenceClassification(config, C, in_head)
        logits = strategy.run(lambda model=model: model(features(B, S), training=True))
        found.append([x.numpy() for x in strategy.experimental_local_results(logits)])
    return found


@pytest.mark.slow
def test_fit_on_two_replicas_is_fit_on_one_but_each_drops_out_others():
    with concurrent.futures.ProcessPoolExecutor(1, runs.FORK_SERVER) as executor:
        two, dropped_out = executor.submit(_fit, 2), executor.submit(_dropped_out)
        losses, weights = _fit(1)
        two_losses, two_weights = two.result(runs.TIMEOUT_SECONDS)
        for first, second in dropped_out.result(runs.TIMEOUT_SECONDS):
            assert np.abs(first - second).max() > 1e-3
    assert two_losses == pytest.approx(losses, abs=tolerances.TRAJECTORY_LOSS)
    assert weights.keys() == two_weights.keys()
    for name, value in weights.items():
        tolerances.assert_weight(name, two_weights[name], value)


@pytest.mark.parametrize("more", [{"albert.embeddings": False}, {"albert.encoder.ffn": True}, None])
def test_frozen_layers_stay_frozen(tmp_path, more):
    trainable = {} if more is None else {"albert.encoder": False, **more}
    config = goldens.config("base", num_hidden_layers=1)
    model = albert_tf.AlbertForSequenceClassification(config, num_labels=2)
    for name, value in trainable.items():
        for layer in keras.tree.flatten(operator.attrgetter(name)(model)):
            layer.trainable = value
    expected = [variable.trainable for variable in model.weights]
    model.save(tmp_path / "model.keras")
    renamed = {**model.get_config(), "name": "another"}
    made = albert_tf.AlbertForSequenceClassification.from_config(renamed)
    for again in (keras.saving.load_model(tmp_path / "model.keras"), made):
        assert [variable.trainable for variable in again.weights] == expected
        assert len(again.trainable_weights) == len(model.trainable_weights)
    assert renamed.get("frozen") or not trainable
