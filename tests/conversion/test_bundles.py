"""Bundles: those of the release and of TF-Hub, and of albert_zh."""

import dataclasses
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import conversion
from albert_tf.conversion.convert import convert
from albert_tf.storage import checkpoint
from albert_tf.text import vocabulary
from tests.kit import goldens, tolerances

CONFIG = goldens.config("base")
QUERY_KEY_VALUE = ("query", "key", "value")


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
    values, hidden, heads = stored(), CONFIG.hidden_size, CONFIG.num_attention_heads
    block, attention = "encoder/transformer/group_0/inner_group_0", "transformer/self_attention"
    variables = {
        "word_embeddings/embeddings": values["bert/embeddings/word_embeddings"],
        "type_embeddings/embeddings": values["bert/embeddings/token_type_embeddings"],
        "position_embedding/embeddings": values["bert/embeddings/position_embeddings"],
    }
    for theirs, ours, *names in (
        *((f"{attention}/{part}", f"{block}/attention_1/self/{part}") for part in QUERY_KEY_VALUE),
        (f"{attention}/attention_output", f"{block}/attention_1/output/dense"),
        ("embedding_projection", "encoder/embedding_hidden_mapping_in"),
        ("transformer/intermediate", f"{block}/ffn_1/intermediate/dense"),
        ("transformer/output", f"{block}/ffn_1/intermediate/output/dense"),
        ("pooler_transform", "pooler/dense"),
        ("embeddings/layer_norm", "embeddings/LayerNorm", "gamma", "beta"),
        ("transformer/self_attention_layer_norm", f"{block}/LayerNorm", "gamma", "beta"),
        ("transformer/output_layer_norm", f"{block}/LayerNorm_1", "gamma", "beta"),
    ):
        for name in names or ("kernel", "bias"):
            variables[f"{theirs}/{name}"] = values[f"bert/{ours}/{name}"]
    # Attention heads have an axis of their own.
    for part in QUERY_KEY_VALUE:
        for name, shape in (("kernel", (hidden, heads, -1)), ("bias", (heads, -1))):
            path = f"{attention}/{part}/{name}"
            variables[path] = variables[path].reshape(shape)
    path = f"{attention}/attention_output/kernel"
    variables[path] = variables[path].reshape(heads, -1, hidden)
    return variables


def test_a_module_of_the_model_garden(tmp_path):
    module = tf.Module()
    module.encoder = [tf.Variable(value, name=name) for name, value in garden_variables().items()]
    module.same = list(module.encoder)  # One variable can be reached by several paths.
    tf.saved_model.save(module, str(tmp_path / "saved"))
    assert_loads_whole(tmp_path / "saved", albert_tf.AlbertModel(CONFIG))


def test_a_saved_model_of_two_encoders(tmp_path):
    module = tf.Module()
    module.towers = [tf.Variable([value], name="pooler_transform/bias") for value in (1.0, 2.0)]
    tf.saved_model.save(module, str(tmp_path / "saved"))
    with pytest.raises(ValueError, match="contains two variables named bert/pooler/dense/bias:"):
        albert_tf.load_weights(albert_tf.AlbertModel(CONFIG), tmp_path / "saved")


LAYER = "bert/encoder/layer_shared"
TABLE = "bert/embeddings/word_embeddings"
BLOCK = "bert/encoder/transformer/group_0/inner_group_0"


@pytest.fixture(scope="module")
def folder() -> pathlib.Path:
    return goldens.FOLDER.parent / "albert_zh"


@pytest.fixture
def copy(folder, tmp_path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(folder, tmp_path / "albert_zh"))


def load(path) -> albert_tf.AlbertForPreTraining:
    model = albert_tf.AlbertForPreTraining(albert_tf.load_config(path))
    report = albert_tf.load_weights(model, path)
    assert report.missing == report.unused == ()
    return model


def log_probs(logits) -> np.ndarray:
    logits = np.asarray(logits, np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def assert_theirs(model, folder) -> None:
    """Outputs are those of albert_zh's own code."""
    outputs = {
        name: np.asarray(value)
        for name, value in model(goldens.arrays(folder / "inputs.npz")).items()
    }
    outputs["masked_lm_log_probs"] = log_probs(outputs["masked_lm_logits"])
    outputs["sentence_order_log_probs"] = log_probs(outputs["sentence_order_logits"])
    expected = goldens.arrays(folder / "outputs.npz")
    assert set(expected) <= set(outputs)
    for name, value in expected.items():
        difference = np.abs(outputs[name] - value).max()
        assert difference < tolerances.PEER_OUTPUT, (name, difference)


@pytest.mark.parametrize("name", ["", "albert_model.ckpt", "albert_model.ckpt.index"])
def test_it_computes_what_theirs_does(folder, name, caplog):
    caplog.set_level("INFO", logger="absl")
    assert_theirs(load(folder / name), folder)
    assert "E = H = 24): training updates all of its 44 x 24 numbers" in caplog.text


def test_the_config_is_that_of_the_folded_model(folder):
    theirs = albert_tf.AlbertConfig.from_json_file(folder / "albert_config_tiny.json")
    assert theirs.embedding_size == 8
    assert albert_tf.load_config(folder) == dataclasses.replace(theirs, embedding_size=24)


def test_its_vocabulary_gives_its_ids(folder):
    tokenizer = vocabulary.find(str(folder)).tokenizer
    ids = goldens.arrays(folder / "inputs.npz")["input_ids"]
    for row, texts in zip(ids, json.loads((folder / "texts.json").read_text()), strict=True):
        encoded = [tokenizer.cls_id]
        for text in texts:
            encoded += [*tokenizer.encode(text), tokenizer.sep_id]
        assert encoded == row[: len(encoded)].tolist()
        assert not row[len(encoded) :].any()


@pytest.mark.parametrize("layout", ["tf1", "huggingface", "keras"])
def test_it_converts(folder, layout, tmp_path):
    convert(str(folder), layout, str(tmp_path / layout))
    assert_theirs(load(tmp_path / layout), folder)
    assert vocabulary.find(str(tmp_path / layout)).tokenizer.vocab_size == 44


def test_a_classifier_keeps_its_head(copy):
    """As their run_classifier.py saves it, with Adam's moments."""
    tensors = checkpoint.read(str(copy))
    tensors = {name: value for name, value in tensors.items() if name.startswith("bert/")}
    head = np.arange(72, dtype=np.float32).reshape(3, 24)
    tensors |= {"output_weights": head, "output_bias": np.ones(3, np.float32)}
    tensors |= {"output_weights/adam_m": head, "output_weights/adam_v": head}
    checkpoint.save(str(copy), 9, tensors, keep_max=1)
    model = albert_tf.AlbertForSequenceClassification(albert_tf.load_config(copy), num_labels=3)
    report = albert_tf.load_weights(model, copy)
    assert report.missing == report.unused == ()
    np.testing.assert_array_equal(model.get_weights()[-2], head)


def test_normalisation_before_sublayers_is_refused(copy):
    file = copy / "albert_config_tiny.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "ln_type": "preln"}))
    with pytest.raises(ValueError, match="albert_config_tiny.json: .*ln_type must be 'postln'"):
        albert_tf.load_config(copy)


def test_one_config_is_found_and_of_several_none(copy):
    shutil.copy(copy / "albert_config_tiny.json", copy / "albert_config_tiny_g.json")
    with pytest.raises(ValueError, match=r"albert_config_tiny.json, albert_config_tiny_g.json\)"):
        albert_tf.load_config(copy)
    (copy / "albert_config_tiny.json").rename(copy / "albert_config.json")
    assert albert_tf.load_config(copy).embedding_size == 24
    for config in copy.glob("albert_config*.json"):
        config.unlink()
    with pytest.raises(FileNotFoundError, match="no albert_config.json"):
        albert_tf.load_config(copy)


def test_a_model_that_is_not_folded_is_told_its_width(folder):
    theirs = albert_tf.AlbertConfig.from_json_file(folder / "albert_config_tiny.json")
    with pytest.raises(ValueError, match="belongs to it, whose embedding_size is 24"):
        albert_tf.load_weights(albert_tf.AlbertModel(theirs), folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{TABLE}_2": None}, rf"{TABLE} \[44, 8\] can't be multiplied by .* \[0\]"),
        ({TABLE: None}, r"\[0\] can't be multiplied by .* \[8, 24\]"),
        ({f"{TABLE}_2": (9, 24)}, r"\[44, 8\] can't be multiplied by .* \[9, 24\]"),
        ({f"{TABLE}_2": (8, 24, 1)}, r"can't be multiplied by .* \[8, 24, 1\]"),
        ({f"{BLOCK}/LayerNorm/beta": (24,)}, "under albert_zh's names and under the release's"),
        ({f"{LAYER}/output/LayerNorm/beta": None}, "lacks bert/.*/LayerNorm_1/beta"),
        ({f"{LAYER}/intermediate_1/dense/bias": (48,)}, "has, unlike the model, .*_1/dense/bias"),
    ],
)
def test_what_does_not_fit_is_one_line(copy, changes, message):
    config = albert_tf.load_config(copy)
    tensors = checkpoint.read(str(copy))
    for name, shape in changes.items():
        tensors.pop(name, None)
        if shape:
            tensors[name] = np.zeros(shape, np.float32)
    checkpoint.save(str(copy), 9, tensors, keep_max=1)
    with pytest.raises(ValueError, match=message) as raised:
        albert_tf.load_weights(albert_tf.AlbertModel(config), copy)
    assert "\n" not in str(raised.value)
