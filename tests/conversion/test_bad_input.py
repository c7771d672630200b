"""What is damaged, or does not belong together, is named; nothing is loaded or written."""

import json
import pathlib
import shutil
import sys

import h5py
import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import albert_tf
from albert_tf import conversion
from albert_tf.cli import convert as command
from albert_tf.conversion import huggingface, layouts
from albert_tf.conversion.convert import convert
from albert_tf.storage import checkpoint
from tests import goldens
from tests.conversion.untrusted import assert_refused, encoder
from tests.tiny import run_main

WEIGHTS = {
    "tf1": "model.ckpt-best.data-00000-of-00001",
    "huggingface": "model.safetensors",
    "kerashub": "model.weights.h5",
    "keras": "model.keras",
}
CONFIGS = {"tf1": "albert_config.json", "huggingface": "config.json", "kerashub": "config.json"}


def change_config(folder, layout, **changes):
    file = folder / CONFIGS[layout]
    values = json.loads(file.read_text())
    (values["config"] if layout == "kerashub" else values).update(changes)
    file.write_text(json.dumps(values))


def test_a_directory_of_something_else_says_what_was_looked_for(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"x")
    (tmp_path / "config.json").write_text('{"model": "albert"}')
    with pytest.raises(FileNotFoundError) as error:
        albert_tf.load_weights(encoder(), tmp_path)
    for looked_for in (
        "config.json with model_type albert",
        "config.json with registered_name keras_hub>AlbertBackbone",
        "saved_model.pb",
        "model.ckpt-best.index",
        ".keras or .weights.h5",
    ):
        assert looked_for in str(error.value)


def test_onnx_files_need_their_packages(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    given = ["--from=nowhere", "--to=huggingface", f"--output_dir={tmp_path}", "--onnx"]
    with pytest.raises(SystemExit, match=r"^error: --onnx needs .*'albert_tf\[onnx\]'"):
        run_main(command.main, given)


def test_two_models_in_one_directory(copy_of):
    folder = copy_of("huggingface")
    shutil.copy(copy_of("keras") / "model.keras", folder)
    with pytest.raises(ValueError, match="contains several models .*Hugging Face.*; .*Keras"):
        albert_tf.load_weights(encoder(), folder)


@pytest.mark.parametrize("layout", WEIGHTS)
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_truncated_weights(layout, kept, copy_of):
    folder = copy_of(layout)
    file = folder / WEIGHTS[layout]
    file.write_bytes(file.read_bytes()[: int(kept * file.stat().st_size)])
    assert_refused(folder, f"({WEIGHTS[layout]}|model.ckpt-best) is damaged")


@pytest.mark.parametrize("layout", ["huggingface", "kerashub"])
def test_a_layout_without_its_weights(layout, copy_of):
    folder = copy_of(layout)
    (folder / WEIGHTS[layout]).unlink()
    with pytest.raises(FileNotFoundError, match=f"contains no weights: expected {WEIGHTS[layout]}"):
        albert_tf.load_weights(encoder(), folder)


def test_an_index_of_shards_that_are_not_there(copy_of):
    folder = copy_of("huggingface")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(names)}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    save_file({name: tensors[name] for name in names[::2]}, folder / "model-0.safetensors")
    assert_refused(folder, "model-1.safetensors is damaged .No such file")
    save_file({name: tensors[name] for name in names[3::2]}, folder / "model-1.safetensors")
    assert_refused(folder, f"lacks {names[1]}, which model.safetensors.index.json names")
    save_file({name: tensors[name] for name in names[1::2]}, folder / "model-1.safetensors")
    assert albert_tf.load_weights(encoder(), folder).missing == ()
    index.write_text("{}")
    assert_refused(folder, "weight_map must be an object")


def test_weights_that_are_no_numbers_with_a_point(copy_of):
    folder = copy_of("huggingface")
    tensors = load_file(folder / "model.safetensors")
    tensors["pooler.weight"] = tensors["pooler.weight"].astype(np.int8)
    save_file(tensors, folder / "model.safetensors")
    assert_refused(folder, r"weights that are not floating-point: albert.pooler.weight \(int8\)")


def poison(folder: pathlib.Path, layout: str, value: float) -> str:
    """Puts a value into the pooler's bias; returns its name there."""
    if layout == "tf1":
        tensors, name = checkpoint.read(str(folder)), "bert/pooler/dense/bias"
        tensors[name][3] = value
        checkpoint.write(str(folder / "model.ckpt-best"), tensors)
        return name
    if layout == "huggingface":
        tensors = load_file(folder / "model.safetensors")
        tensors["pooler.bias"][3] = value
        save_file(tensors, folder / "model.safetensors")
        return "albert.pooler.bias"
    if layout == "kerashub":
        with h5py.File(folder / "model.weights.h5", "r+") as file:
            file["layers/dense_1/vars/1"][3] = value
        return "layers/dense_1/vars/1"
    model = keras.saving.load_model(folder / "model.keras")
    bias = conversion.named_weights(model)["bert/pooler/dense/bias"]
    bias.assign(np.full(bias.shape, value))
    model.save(folder / "model.keras")
    return "bert/pooler/dense/bias"


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("layout", ["tf1", "huggingface", "kerashub", "keras"])
def test_weights_that_are_not_finite(layout, value, copy_of):
    folder = copy_of(layout)
    name = poison(folder, layout, value)
    assert_refused(folder, f"has NaN or infinite numbers in {name}: copy it again")


def test_weights_beyond_float32(copy_of):
    folder = copy_of("huggingface")
    tensors = load_file(folder / "model.safetensors")
    tensors["pooler.bias"] = np.full(32, 1e300)
    save_file(tensors, folder / "model.safetensors")
    assert_refused(folder, "has NaN or infinite numbers in albert.pooler.bias: ")


@pytest.mark.parametrize(
    ("layout", "key", "value"),
    [
        ("tf1", "num_attention_heads", 2),
        ("tf1", "hidden_act", "relu"),
        ("huggingface", "num_hidden_layers", 7),
        ("huggingface", "hidden_act", "relu"),
        ("kerashub", "num_heads", 2),
    ],
)
def test_a_config_that_contradicts_the_model(layout, key, value, copy_of):
    """What no shape shows."""
    folder = copy_of(layout)
    change_config(folder, layout, **{key: value})
    with pytest.raises(ValueError, match="contradicts the model's") as error:
        albert_tf.load_weights(encoder(), folder)
    assert f" {value} there, " in str(error.value)


def test_a_config_that_is_not_readable_may_be_replaced(copy_of, caplog):
    folder = copy_of("tf1")
    (folder / CONFIGS["tf1"]).write_text("{")
    with pytest.raises(ValueError, match="albert_config.json is not JSON"):
        albert_tf.load_weights(encoder(), folder)
    assert albert_tf.load_weights(encoder(), folder, replace_config=True).missing == ()
    assert "not compared with the model's: " in caplog.text
    shutil.copy(goldens.FOLDER / "base" / CONFIGS["tf1"], folder)
    change_config(folder, "tf1", num_attention_heads=2)
    with pytest.raises(ValueError, match="contradicts the model's"):
        albert_tf.load_weights(encoder(), folder, replace_config=True)


@pytest.mark.parametrize(
    ("layout", "key", "value", "message"),
    [
        ("tf1", "vocab_size", 98, r"word_embeddings \[1000, 16\], not \[98, 16\]"),
        ("huggingface", "intermediate_size", 128, r"ffn_1/.*kernel \[32, 64\], not \[32, 128\]"),
        ("kerashub", "num_segments", 3, r"token_type_embeddings \[2, 16\], not \[3, 16\]"),
        ("huggingface", "num_hidden_groups", 2, r"lacks .*/group_1/"),
        ("huggingface", "embedding_size", 32, r"has unknown bert/encoder/embedding_hidden_mapping"),
    ],
)
def test_a_config_that_contradicts_the_weights(layout, key, value, message, copy_of, tmp_path):
    folder = copy_of(layout)
    change_config(folder, layout, **{key: value})
    with pytest.raises(ValueError, match=f"does not fit its config: it .*{message}"):
        convert(str(folder), "keras", str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()


def test_a_named_config_that_contradicts_the_one_beside_the_weights(copy_of, tmp_path):
    named = tmp_path / "named.json"
    folder = copy_of("tf1")
    shutil.copy(folder / CONFIGS["tf1"], named)
    change_config(folder, "tf1", num_attention_heads=2)
    with pytest.raises(ValueError, match="num_attention_heads 2 there, 4 here"):
        convert(str(folder), "keras", str(tmp_path / "target"), albert_config_file=str(named))
    (folder / CONFIGS["tf1"]).write_text("{")
    convert(str(folder), "keras", str(tmp_path / "target"), albert_config_file=str(named))
    assert albert_tf.load_config(tmp_path / "target").num_attention_heads == 4


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("huggingface", {"model_type": "bert"}, "model_type must be 'albert', not 'bert'"),
        ("huggingface", {"layer_norm_eps": 1e-5}, "layer_norm_eps must be 1e-12, not 1e-05"),
        ("huggingface", {"hidden_act": "swish"}, "hidden_act must be one of .*, not 'swish'"),
        ("huggingface", {"hidden_act": ["gelu"]}, r"hidden_act must be one of .*, not \['gelu'\]"),
        ("huggingface", {"vocab_size": "97"}, "vocab_size must be a positive integer, not '97'"),
        ("huggingface", {"quantization_config": {}}, "quantization_config must be None"),
        ("kerashub", {"dropout": None}, "dropout_prob must be a finite number, not None"),
        ("kerashub", {"num_layers": 0}, "num_hidden_layers must be a positive integer, not 0"),
        ("tf1", {"surprise": 1}, r"unknown ALBERT config keys \['surprise'\]"),
    ],
)
def test_configs_of_what_is_not_built_here(layout, changes, message, copy_of):
    folder = copy_of(layout)
    change_config(folder, layout, **changes)
    with pytest.raises(ValueError, match=f"{CONFIGS[layout]}.*{message}"):
        albert_tf.load_config(folder)


@pytest.mark.parametrize("layout", WEIGHTS)
def test_a_vocabulary_of_another_size(layout, copy_of, golden, tmp_path):
    target, vocabulary = tmp_path / "target", golden / "spm" / "en_small.model"
    with pytest.raises(ValueError, match=r"has 6000 pieces, but the model's vocab_"):
        convert(str(copy_of("tf1")), layout, str(target), spm_model_file=str(vocabulary))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tf1"]


THEIRS, AS = "--to=huggingface", "--architecture=AlbertFor"


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("encoder/base", ["--to=kerashub"], "no place for cls/seq_relationship/ .* set --drop=cls"),
        ("heads/squad_v2", [THEIRS], "the heads of squad_v2 .*: train with"),
        ("heads/squad_v2", [THEIRS, f"{AS}QuestionAnswering"], "leave out heads of .* with --drop"),
        ("heads/squad_v2", [THEIRS, "--drop=answer_class/"], "exactly end_logits/, start_logits/"),
        ("heads/squad_v1", [THEIRS], "QuestionAnswering has no place for bert/pooler/"),
        ("heads/classifier", [THEIRS, f"{AS}MaskedLM"], "no place for output_, bert/pooler/ of"),
        ("heads/classifier", [THEIRS, f"{AS}MultipleChoice"], "one output per choice, but .* 3"),
        ("encoder/groups3", ["--to=tf1", "--albert_config_file=none"], "none does not exist"),
        ("encoder/nowhere", ["--to=tf1"], "there is no checkpoint"),
    ],
)
def test_the_command_says_one_line_and_writes_nothing(source, arguments, message, golden, tmp_path):
    source = f"--from={golden / source}"
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        run_main(command.main, [source, *arguments, f"--output_dir={tmp_path / 'target'}"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_weights_of_a_type_that_is_not_read(kind, tmp_path):
    path = tmp_path / "model.safetensors"
    header = json.dumps({"a": {"dtype": kind, "shape": [4], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ValueError, match="model.safetensors has weights of a type that is not"):
        huggingface.read_safetensors(str(path))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("albert/albert-base-v2", "Hugging Face Hub is hf://albert/albert-base-v2$"),
        ("hf:albert/albert-base-v2", "Hugging Face Hub is hf://albert/albert-base-v2$"),
        ("albert-base-v2", "beside it; the release's is hf://albert/albert-base-v2$"),
        ("albert_xxlarge_v1", "the release's is hf://albert/albert-xxlarge-v1$"),
        ("albert_tiny", "with albert_tiny.index beside it$"),
        ("nowhere", "there is no checkpoint nowhere: expected a directory, a"),
        ("out/model.ckpt-8", "with model.ckpt-8.index beside it$"),
        ("out", r"out contains several models of Keras .a.keras, b.keras.: give one of its files$"),
    ],
)
def test_a_path_to_no_model_says_what_to_give(path, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for name in ("a.keras", "b.keras"):
        (tmp_path / "out" / name).write_text("{}")
    with pytest.raises(FileNotFoundError, match=message):
        layouts.find(path)
