"""TFLite and ONNX files against the model that they were made of.

Not seen here: how far the weights in 8 bits of a trained model drift, which export prints.
"""

from __future__ import annotations

import sys
import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import export
from albert_tf.model import encoder
from albert_tf.serving import other_formats
from tests import goldens, tolerances
from tests.tiny import randomise


@pytest.fixture(scope="module")
def served(vocabulary):
    # More layers than are unrolled: the converters must take the loop, too.
    config = goldens.config(
        "base",
        vocab_size=vocabulary.tokenizer.vocab_size,
        num_hidden_layers=encoder.MOST_UNROLLED_LAYERS + 1,
    )
    model = randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=3))
    return export.Classifier(model, vocabulary, ("a", "b", "c"))


def features(batch, length):
    random = np.random.default_rng(length)
    return {
        "input_ids": random.integers(0, 6000, (batch, length), np.int32),
        "input_mask": (np.arange(length) < [[length - 2]] * batch).astype(np.int32),
        "segment_ids": random.integers(0, 2, (batch, length), np.int32),
    }


def largest_difference(served, run):
    differences = []
    for shape in ((1, 5), (3, 17)):
        batch = features(*shape)
        found = run(batch)
        expected = served.numbers({name: tf.constant(value) for name, value in batch.items()})
        differences.append(np.abs(found - expected["logits"]).max())
    return max(differences)


@pytest.mark.parametrize(
    ("name", "tolerance"), [("tflite", tolerances.OUTPUT), ("tflite_int8", tolerances.INT8_OUTPUT)]
)
def test_tflite(served, tmp_path, name, tolerance):
    drift = other_formats.save(served, tmp_path / "model", name)
    path = tmp_path / "model" / other_formats.FORMATS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = tf.lite.Interpreter(str(path)).get_signature_runner()
    difference = largest_difference(served, lambda batch: runner(**batch)["logits"])
    assert difference < tolerance
    assert drift.largest < tolerance
    assert drift.spread > 0.1
    if name == "tflite_int8":
        # A quarter of the weights' bytes, and the graph.
        assert difference > tolerances.OUTPUT, "the weights are not quantised"
        weights = sum(weight.shape.num_elements() for weight in served.weights)
        assert path.stat().st_size < 2 * weights
    assert (tmp_path / "model" / "en_small.model").exists()


def test_the_drift_of_answers_leaves_out_where_there_can_be_none(tmp_path, vocabulary, config):
    # More starts and ends than a short window has.
    model = randomise(albert_tf.AlbertForQuestionAnsweringV2(config, start_n_top=7, end_n_top=7))
    served = export.QuestionAnswerer(model, vocabulary, max_seq_length=32, max_query_length=8)
    drift = other_formats.save(served, tmp_path / "model", "tflite")
    assert drift.largest < tolerances.OUTPUT
    assert 0.1 < drift.spread < 100


def test_numbers_that_are_not_finite_leave_nothing(tmp_path, served, monkeypatch):
    def run(features):
        whole = features["input_mask"].all(axis=1, keepdims=True)
        return {"logits": np.where(whole, np.zeros(3, "f"), np.nan)}

    runner = types.SimpleNamespace(run=run)
    monkeypatch.setattr(other_formats, "_tflite", lambda function, is_int8: b"")
    monkeypatch.setattr(other_formats, "runtime_loader", lambda is_onnx: lambda content: runner)
    with pytest.raises(ValueError, match="the converted model's outputs are NaN .*logits"):
        other_formats.save(served, tmp_path / "model", "tflite")
    assert not (tmp_path / "model").exists()


@pytest.mark.peers
def test_onnx(served, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    onnx = pytest.importorskip("onnx")
    drift = other_formats.save(served, tmp_path / "model", "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model" / "model.onnx"))
    difference = largest_difference(served, lambda batch: session.run(["logits"], batch)[0])
    assert difference < tolerances.OUTPUT
    assert drift.largest < tolerances.OUTPUT
    for tensor in session.get_inputs():
        assert tensor.shape == ["batch", "length"], tensor.name
    assert [output.shape for output in session.get_outputs()] == [["batch", 3]]
    # One of the embeddings, two in the body of the loop, two in the last layer.
    names = operations(onnx.load(tmp_path / "model" / "model.onnx").graph)
    assert (names.count("LayerNormalization"), names.count("Reciprocal")) == (5, 0)


def operations(graph):
    inner = [each.g for node in graph.node for each in node.attribute if each.HasField("g")]
    return [node.op_type for node in graph.node] + sum(map(operations, inner), [])


@pytest.mark.peers
def test_onnx_int8(served, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    drift = other_formats.save(served, tmp_path / "model", "onnx_int8")
    path = tmp_path / "model" / other_formats.FORMATS["onnx_int8"]
    session = onnxruntime.InferenceSession(str(path))
    difference = largest_difference(served, lambda batch: session.run(["logits"], batch)[0])
    assert tolerances.OUTPUT < difference < tolerances.INT8_OUTPUT
    assert tolerances.OUTPUT < drift.largest < tolerances.INT8_OUTPUT
    # In a loop, some weights also stay in 32 bits.
    weights = sum(weight.shape.num_elements() for weight in served.weights)
    assert path.stat().st_size < 3.5 * weights


def test_a_taken_directory_is_refused(served, tmp_path):
    (tmp_path / "kept").touch()
    with pytest.raises(ValueError, match="already exists"):
        other_formats.save(served, tmp_path, "tflite")


def test_an_unknown_format_is_refused(served, tmp_path):
    with pytest.raises(ValueError, match="one of tflite, tflite_int8, onnx, onnx_int8, not 'pb'"):
        other_formats.save(served, tmp_path / "model", "pb")


@pytest.mark.parametrize("package", ["onnxruntime", "tf2onnx"])
def test_a_missing_package_is_named(monkeypatch, package):
    for name in ("onnxruntime", "tf2onnx"):
        monkeypatch.setitem(sys.modules, name, None if name == package else sys)
    with pytest.raises(ValueError, match=rf"{package}.* pip install 'albert_tf\[onnx\]'"):
        other_formats.check_format("onnx_int8")
