"""TF-Hub modules and SavedModels."""

from __future__ import annotations

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import conversion
from albert_tf.conversion.convert import convert
from albert_tf.storage import checkpoint
from tests import goldens

CONFIG = goldens.config("base")


def stored() -> dict[str, np.ndarray]:
    return checkpoint.read(goldens.checkpoint("base"))


def assert_loads_whole(path, model) -> None:
    """Every weight of the model, to the bit that of the release's checkpoint."""
    report = albert_tf.load_weights(model, path)
    assert report.missing == report.unused == ()
    expected = stored()
    for name, variable in conversion.named_weights(model).items():
        assert variable.numpy().tobytes() == expected[name].tobytes(), name


def test_the_releases_tf_hub_module(golden, tmp_path):
    """It was exported from the same checkpoint."""
    module = shutil.copytree(golden / "tfhub", tmp_path / "tfhub")
    assert_loads_whole(module, albert_tf.AlbertForPreTraining(CONFIG))
    assert albert_tf.load_config(module) == CONFIG

    shutil.copy(golden / "spm" / "en_small.model", module / "assets" / "30k-clean.model")
    with pytest.raises(ValueError, match="30k-clean.model has 6000 pieces, but the model's"):
        convert(str(module), "tf1", str(tmp_path / "tf1"))
    assert not (tmp_path / "tf1").exists()


def test_a_saved_model_of_keras(tmp_path):
    model = albert_tf.AlbertForPreTraining(CONFIG)
    albert_tf.load_weights(model, goldens.checkpoint("base"))
    archive = keras.export.ExportArchive()
    archive.track(model)
    ids = keras.InputSpec(dtype="int32", shape=(None, 7))
    archive.add_endpoint("pooled", lambda x: model.albert({"input_ids": x})["pooled_output"], [ids])
    archive.write_out(tmp_path / "saved", verbose=False)
    with pytest.raises(FileNotFoundError, match="there is no albert_config.json"):
        albert_tf.load_config(tmp_path / "saved")
    assert_loads_whole(tmp_path / "saved", albert_tf.AlbertForPreTraining(CONFIG))


def garden_variables() -> dict[str, np.ndarray]:
    """Returns the encoder's weights as the Model Garden's encoder names and shapes them."""
    heads, size = CONFIG.num_attention_heads, CONFIG.hidden_size // CONFIG.num_attention_heads
    values = stored()

    def take(name, *shape):
        value = values[f"bert/{name}"]
        return value.reshape(shape) if shape else value

    block = "encoder/transformer/group_0/inner_group_0"
    variables = {
        "word_embeddings/embeddings": take("embeddings/word_embeddings"),
        "type_embeddings/embeddings": take("embeddings/token_type_embeddings"),
        "position_embedding/embeddings": take("embeddings/position_embeddings"),
    }
    for part in ("query", "key", "value"):
        layer = f"transformer/self_attention/{part}"
        kernel, bias = (f"{block}/attention_1/self/{part}/{kind}" for kind in ("kernel", "bias"))
        variables[f"{layer}/kernel"] = take(kernel, CONFIG.hidden_size, heads, size)
        variables[f"{layer}/bias"] = take(bias, heads, size)
    layer, output = "transformer/self_attention/attention_output", f"{block}/attention_1/output"
    variables[f"{layer}/kernel"] = take(f"{output}/dense/kernel", heads, size, CONFIG.hidden_size)
    variables[f"{layer}/bias"] = take(f"{output}/dense/bias")
    for theirs, ours in (
        ("embedding_projection", "encoder/embedding_hidden_mapping_in"),
        ("transformer/intermediate", f"{block}/ffn_1/intermediate/dense"),
        ("transformer/output", f"{block}/ffn_1/intermediate/output/dense"),
        ("pooler_transform", "pooler/dense"),
    ):
        variables |= {f"{theirs}/{kind}": take(f"{ours}/{kind}") for kind in ("kernel", "bias")}
    for theirs, ours in (
        ("embeddings/layer_norm", "embeddings/LayerNorm"),
        ("transformer/self_attention_layer_norm", f"{block}/LayerNorm"),
        ("transformer/output_layer_norm", f"{block}/LayerNorm_1"),
    ):
        variables |= {f"{theirs}/{kind}": take(f"{ours}/{kind}") for kind in ("gamma", "beta")}
    return variables


def test_a_module_of_the_model_garden(tmp_path):
    module = tf.Module()
    module.encoder = [tf.Variable(value, name=name) for name, value in garden_variables().items()]
    module.same = list(module.encoder)  # Objects hold one variable in several ways.
    tf.saved_model.save(module, str(tmp_path / "saved"))
    assert_loads_whole(tmp_path / "saved", albert_tf.AlbertModel(CONFIG))


def test_a_saved_model_of_two_encoders(tmp_path):
    module = tf.Module()
    module.towers = [tf.Variable([value], name="pooler_transform/bias") for value in (1.0, 2.0)]
    tf.saved_model.save(module, str(tmp_path / "saved"))
    with pytest.raises(ValueError, match="contains two variables named bert/pooler/dense/bias:"):
        albert_tf.load_weights(albert_tf.AlbertModel(CONFIG), tmp_path / "saved")
