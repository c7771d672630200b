"""Features that Keras users expect: from_weights, a config by name, summary, export."""

import logging
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from tests.kit import goldens, tiny, tolerances

MODELS = {
    albert_tf.AlbertModel: {},
    albert_tf.AlbertForPreTraining: {},
    albert_tf.AlbertForSequenceClassification: {"num_labels": 3},
    albert_tf.AlbertForTokenClassification: {"num_labels": 3},
    albert_tf.AlbertForMultipleChoice: {},
    albert_tf.AlbertForQuestionAnswering: {},
    albert_tf.AlbertForQuestionAnsweringV2: {},
}
BASE = str(goldens.FOLDER / "base")


@pytest.mark.parametrize("model_class", MODELS, ids=lambda model: model.__name__)
def test_every_model_is_built_from_weights(model_class, caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        model = model_class.from_weights(BASE, **MODELS[model_class])
    assert model.config == albert_tf.load_config(BASE)
    encoder = model if model_class is albert_tf.AlbertModel else model.albert
    expected = albert_tf.AlbertModel(model.config)
    albert_tf.load_weights(expected, BASE)
    for ours, theirs in zip(encoder.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # The release's tiny checkpoint has the heads of pre-training.
    trained = model_class in (albert_tf.AlbertModel, albert_tf.AlbertForPreTraining)
    assert ("randomly initialised, so train it first" in caplog.text) != trained


def test_a_stored_classifier_says_its_number_of_classes(tmp_path):
    model = albert_tf.AlbertForSequenceClassification(tiny.config(), num_labels=5)
    model.save(tmp_path / "model.keras")
    found = albert_tf.AlbertForSequenceClassification.from_weights(tmp_path / "model.keras")
    assert found.num_labels == 5
    np.testing.assert_array_equal(found.classifier.output_weights, model.classifier.output_weights)
    given = {"num_labels": 2, "dtype": "mixed_bfloat16"}
    other = type(model).from_weights(tmp_path / "model.keras", **given)
    assert other.num_labels == 2 and other.compute_dtype == "bfloat16"
    with pytest.raises(ValueError, match="has no classifier: set `num_lab"):
        albert_tf.AlbertForSequenceClassification.from_weights(BASE)


def test_a_config_may_be_named_or_a_file(tmp_path):
    named = albert_tf.AlbertModel("albert_tiny").config
    assert named == albert_tf.AlbertConfig.from_json_file("albert_tiny")
    (tmp_path / "albert_config.json").write_text(named.to_json())
    assert albert_tf.AlbertModel(tmp_path / "albert_config.json").config == named
    with pytest.raises(FileNotFoundError, match="nor is it the name of a model: known names are"):
        albert_tf.AlbertModel("albert_medium")


@pytest.mark.parametrize("model_class", MODELS, ids=lambda model: model.__name__)
def test_summary_shows_shapes(model_class, capsys):
    model = model_class(tiny.config(), **MODELS[model_class])
    model.summary()
    text = capsys.readouterr().out
    assert "?" not in text
    assert "(None, None, " in text
    if "num_labels" in MODELS[model_class]:
        assert ("(None, None, 3)" if model.reads_pooler is False else "(None, 3)") in text


# Inputs that change what a model returns.
MORE = {
    albert_tf.AlbertModel: {"cls_positions": (4, 3), "positions": (4, 5)},
    albert_tf.AlbertForPreTraining: {"cls_positions": (4, 3)},
    albert_tf.AlbertForSequenceClassification: {"cls_positions": (4, 3)},
    albert_tf.AlbertForQuestionAnsweringV2: {"start_positions": (4,)},
}


@pytest.mark.parametrize(
    ("model_class", "more"),
    [*((model_class, {}) for model_class in MODELS), *MORE.items()],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(value),
)
def test_symbolic_outputs_are_as_computed(model_class, more):
    config = tiny.config(num_hidden_layers=1)
    model = model_class(config, dtype="mixed_bfloat16", **MODELS[model_class])
    symbolic = model.symbolic_inputs()
    arrays = {name: np.ones((2, 4, 8)[-x.ndim :], "int32") for name, x in symbolic.items()}
    for name, shape in more.items():
        symbolic[name] = keras.Input(batch_shape=(None,) * len(shape), dtype="int32")
        arrays[name] = np.zeros(shape, "int32")

    def call(inputs):
        named = {name: inputs[name] for name in ("positions",) if name in inputs}
        return model({name: x for name, x in inputs.items() if name not in named}, **named)

    def check(described, computed):
        assert described.dtype == keras.backend.standardize_dtype(computed.dtype)
        # Sizes that depend on the batch are unknown.
        shapes = zip(described.shape, computed.shape, strict=True)
        assert all(size == actual or size is None for size, actual in shapes)

    tf.nest.map_structure(check, call(symbolic), call(arrays))


def assert_same_outputs(found, expected):
    expected = expected if isinstance(expected, dict) else {"output_0": expected}
    assert set(found) == set(expected) - {"all_encoder_layers"}
    for name, value in found.items():
        tolerances.assert_close(value, expected[name], 2e-6, name)


def test_export_needs_no_call_before(tmp_path):
    model = albert_tf.AlbertForQuestionAnsweringV2(tiny.config(num_hidden_layers=1))
    model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "exported")).signatures["serving_default"]
    ids = tf.constant(np.random.default_rng(1).integers(0, 2, (2, 8)), tf.int32)
    inputs = dict.fromkeys(served.structured_input_signature[1], ids)
    assert set(inputs) == {"input_ids", "input_mask", "segment_ids", "p_mask"}
    assert_same_outputs(served(**inputs), model(inputs))


class Around(keras.Model):
    def __init__(self, model):
        super().__init__()
        self.inner, self.dense = model, keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(self.inner(inputs)["pooled_output"])


@pytest.fixture(scope="module")
def arrays():
    ids = np.random.default_rng(3).integers(0, 2, (2, 5), np.int32)
    return {"input_ids": ids + 5, "input_mask": np.sort(ids)[:, ::-1], "segment_ids": ids}


@pytest.mark.parametrize("around", [None, Around])
def test_tensorflow_saves_a_model_and_what_holds_it(around, arrays, tmp_path):
    model = albert_tf.AlbertModel(tiny.config(num_hidden_layers=1))
    model = around(model) if around else model
    expected = model(arrays)
    tf.saved_model.save(model, str(tmp_path / "saved"))
    served = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    specs = served.structured_input_signature[1]
    # Inputs may have other names and types, but the same order.
    rows = zip(sorted(arrays), sorted(specs), strict=True)
    found = served(**{name: tf.cast(arrays[ours], specs[name].dtype) for ours, name in rows})
    if not around:
        assert set(specs) == set(arrays) and {x.dtype for x in specs.values()} == {tf.int32}
        assert_same_outputs(found, expected)
    else:
        np.testing.assert_allclose(*found.values(), expected, rtol=0, atol=2e-6)


def run_tflite(content, arrays):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tf.lite.Interpreter(model_content=content).get_signature_runner()(**arrays)


def test_tflite_takes_a_model(arrays):
    model = albert_tf.AlbertForSequenceClassification(tiny.config(num_hidden_layers=1), 3)
    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    assert_same_outputs(run_tflite(content, arrays), model(arrays))


@pytest.mark.skipif(
    tuple(map(int, keras.__version__.split(".")[:2])) < (3, 13),
    reason="Keras for Python 3.10 has no such format",
)
def test_a_list_of_outputs_is_left_out_of_tflite(tmp_path, arrays):
    model = albert_tf.AlbertModel(tiny.config(num_hidden_layers=1))
    model.export(tmp_path / "model.tflite", format="litert", verbose=False)
    found = run_tflite((tmp_path / "model.tflite").read_bytes(), arrays)
    assert_same_outputs(found, model(arrays))


@pytest.mark.peers
def test_onnx_takes_a_model(arrays, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    model = albert_tf.AlbertForSequenceClassification(tiny.config(num_hidden_layers=1), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras prepares tf2onnx for NumPy 2.
        model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    np.testing.assert_allclose(session.run(None, arrays)[0], model(arrays), rtol=0, atol=2e-6)


class Halved(albert_tf.AlbertForSequenceClassification):
    def call(self, inputs, **arguments):
        return {"half": super().call(inputs, **arguments)[:, :2]}


class Priced(albert_tf.AlbertForSequenceClassification):
    def call(self, inputs, **arguments):
        return inputs["price"] * super().call({"input_ids": inputs["input_ids"]}, **arguments)


def test_a_class_of_ones_own_may_return_something_else_and_take_fractions():
    config = tiny.config(num_hidden_layers=1)
    halved, priced = Halved(config, num_labels=4), Priced(config, num_labels=2)
    assert halved(halved.symbolic_inputs())["half"].shape == (None, 2)
    ids = np.array([[2, 7, 3]])
    whole, half = (priced({"input_ids": ids, "price": np.array([[p]])}) for p in (1.0, 0.5))
    np.testing.assert_allclose(whole, 2 * half, rtol=1e-6)
