"""Damaged files, and files that do not belong together, are named; nothing is loaded or written."""

import dataclasses
import json
import shutil
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import albert_tf
from albert_tf.cli import convert as command
from albert_tf.conversion import arrays, layouts
from albert_tf.conversion.convert import _WRITERS, convert
from albert_tf.conversion.stored_model import ModelLocation, read
from tests.conversion.untrusted import CONFIGS, assert_refused, change_config, encoder
from tests.kit import goldens
from tests.kit.tiny import run_main

WEIGHTS = {"tf1": "model.ckpt-best.data-00000-of-00001", "huggingface": "model.safetensors"}
WEIGHTS |= {"kerashub": "model.weights.h5", "keras": "model.keras"}

# --- changes of a directory; each is called with it and its layout -----------------------------


def config(**changes):
    return lambda folder, layout: change_config(folder, layout, **changes)


def cut(kept):
    def change(folder, layout):
        file = folder / WEIGHTS[layout]
        file.write_bytes(file.read_bytes()[: int(kept * file.stat().st_size)])

    return change


def bias(change_values):
    """Changes the values of the pooler's bias, using the writer of the layout."""

    def change(folder, layout):
        source, name = read(ModelLocation(str(folder))), "bert/pooler/dense/bias"
        weights = {**source.weights, name: change_values(source.weights[name])}
        theirs = {"architecture": "AlbertModel", "license": None}
        options = theirs if layout == "huggingface" else {}
        _WRITERS[layout](str(folder), dataclasses.replace(source, weights=weights), **options)

    return change


def third(value):
    return bias(lambda values: np.where(np.arange(32) == 3, np.float32(value), values))


@pytest.mark.parametrize(
    ("layout", "change", "message"),
    [
        *((layout, cut(k), "is damaged") for layout in WEIGHTS for k in (0.0, 0.5, 0.99)),
        *((layout, third(np.nan), "NaN .* in .*(bias|vars/1)") for layout in WEIGHTS),
        *((layout, third(-np.inf), "infinite .* in .*(bias|vars/1)") for layout in WEIGHTS),
        ("huggingface", bias(lambda _: np.full(32, 1e300)), "infinite .* in albert.pooler.bias"),
        ("huggingface", bias(lambda _: np.ones(32, np.int8)), r"albert.pooler.bias \(int8\)"),
        ("huggingface", config(model_type="bert"), "model_type"),
        ("huggingface", config(layer_norm_eps=1e-5), "layer_norm_eps must be 1e-12"),
        ("huggingface", config(hidden_act="swish"), "hidden_act"),
        ("huggingface", config(hidden_act=["gelu"]), "hidden_act"),
        ("huggingface", config(vocab_size="97"), "vocab_size"),
        ("huggingface", config(quantization_config={}), "quantization_config"),
        ("kerashub", config(dropout=None), "dropout_prob"),
        ("kerashub", config(num_layers=0), "num_hidden_layers"),
        ("tf1", config(surprise=1), "surprise"),
    ],
)
def test_what_is_neither_loaded_nor_converted(layout, change, message, copy_of):
    folder = copy_of(layout)
    change(folder, layout)
    assert_refused(folder, message)


@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ("tf1", {"num_attention_heads": 2}),
        ("tf1", {"hidden_act": "relu"}),
        ("huggingface", {"num_hidden_layers": 7}),
        ("huggingface", {"hidden_act": "relu"}),
        ("kerashub", {"num_heads": 2}),
    ],
)
def test_a_config_that_contradicts_the_model(layout, changes, copy_of):
    """None of these values affects the shape of a weight."""
    config(**changes)(folder := copy_of(layout), layout)
    (value,) = changes.values()
    with pytest.raises(ValueError, match=rf"contradicts the model's \(.* {value} there, "):
        albert_tf.load_weights(encoder(), folder)


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("tf1", {"vocab_size": 98}, r"word_embeddings \[1000, 16\], not \[98, 16\]"),
        ("huggingface", {"intermediate_size": 128}, r"kernel \[32, 64\], not \[32, 128\]"),
        ("kerashub", {"num_segments": 3}, r"token_type_embeddings \[2, 16\], not \[3, 16\]"),
        ("huggingface", {"num_hidden_groups": 2}, "lacks .*/group_1/"),
        ("huggingface", {"embedding_size": 32}, "has unknown .*embedding_hidden_mapping"),
    ],
)
def test_a_config_that_contradicts_the_weights(layout, changes, message, copy_of, tmp_path):
    config(**changes)(folder := copy_of(layout), layout)
    with pytest.raises(ValueError, match=message):
        convert(str(folder), "keras", str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()


def test_a_config_that_is_not_readable_may_be_replaced(copy_of, caplog):
    folder = copy_of("tf1")
    (folder / CONFIGS["tf1"]).write_text("{")
    with pytest.raises(ValueError, match=f"{CONFIGS['tf1']} is not JSON"):
        albert_tf.load_weights(encoder(), folder)
    assert albert_tf.load_weights(encoder(), folder, replace_config=True).missing == ()
    assert "not compared with the model's: " in caplog.text
    shutil.copy(goldens.FOLDER / "base" / CONFIGS["tf1"], folder)
    config(num_attention_heads=2)(folder, "tf1")
    with pytest.raises(ValueError, match="contradicts the model's"):
        albert_tf.load_weights(encoder(), folder, replace_config=True)


def test_a_named_config_that_contradicts_the_one_beside_the_weights(copy_of, tmp_path):
    named, folder = tmp_path / "named.json", copy_of("tf1")
    shutil.copy(folder / CONFIGS["tf1"], named)
    config(num_attention_heads=2)(folder, "tf1")
    with pytest.raises(ValueError, match="num_attention_heads 2 there, 4 here"):
        convert(str(folder), "keras", str(tmp_path / "target"), albert_config_file=str(named))
    (folder / CONFIGS["tf1"]).write_text("{")
    convert(str(folder), "keras", str(tmp_path / "target"), albert_config_file=str(named))
    assert albert_tf.load_config(tmp_path / "target").num_attention_heads == 4


def test_an_index_of_shards_that_are_not_there(copy_of):
    folder = copy_of("huggingface")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(names)}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    save_file({name: tensors[name] for name in names[::2]}, folder / "model-0.safetensors")
    assert_refused(folder, "model-1.safetensors is damaged")
    save_file({name: tensors[name] for name in names[3::2]}, folder / "model-1.safetensors")
    assert_refused(folder, f"lacks {names[1]}, ")
    save_file({name: tensors[name] for name in names[1::2]}, folder / "model-1.safetensors")
    assert albert_tf.load_weights(encoder(), folder).missing == ()
    index.write_text("{}")
    assert_refused(folder, "weight_map")


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2"])
def test_weights_of_a_type_that_is_not_read(kind, tmp_path):
    path = tmp_path / "model.safetensors"
    header = json.dumps({"a": {"dtype": kind, "shape": [4], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ValueError, match="model.safetensors has weights of a type"):
        arrays.read_safetensors(str(path))


def test_a_directory_of_something_else_says_what_was_looked_for(tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"x")
    (tmp_path / "config.json").write_text('{"model": "albert"}')
    looked_for = "model_type albert.*keras_hub>AlbertBackbone.*saved_model.pb.*-best.index.*.keras "
    with pytest.raises(FileNotFoundError, match=looked_for):
        albert_tf.load_weights(encoder(), tmp_path)


@pytest.mark.parametrize("layout", ["huggingface", "kerashub"])
def test_a_layout_without_its_weights(layout, copy_of):
    (folder := copy_of(layout)).joinpath(WEIGHTS[layout]).unlink()
    with pytest.raises(FileNotFoundError, match=f"expected {WEIGHTS[layout]}"):
        albert_tf.load_weights(encoder(), folder)


def test_two_models_in_one_directory(copy_of):
    folder = copy_of("huggingface")
    shutil.copy(copy_of("keras") / "model.keras", folder)
    assert_refused(folder, "several models .*Hugging Face.*; .*Keras")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("albert/albert-base-v2", "hf://albert/albert-base-v2$"),
        ("hf:albert/albert-base-v2", "hf://albert/albert-base-v2$"),
        ("albert-base-v2", "the release's is hf://albert/albert-base-v2$"),
        ("albert_xxlarge_v1", "the release's is hf://albert/albert-xxlarge-v1$"),
        ("albert_tiny", "with albert_tiny.index beside it$"),
        ("nowhere", "there is no checkpoint nowhere: expected a directory, a"),
        ("out/model.ckpt-8", "with model.ckpt-8.index beside it$"),
        ("out", r"several models of Keras .a.keras, b.keras."),
    ],
)
def test_a_path_to_no_model_says_what_to_give(path, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for name in ("a.keras", "b.keras"):
        (tmp_path / "out" / name).write_text("{}")
    with pytest.raises(FileNotFoundError, match=message):
        layouts.find(path)


THEIRS, AS = "--to=huggingface", "--architecture=AlbertFor"


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("encoder/base", ["--to=kerashub"], "no place for cls/seq_relationship/ .* --drop=cls"),
        ("heads/squad_v2", [THEIRS], "the heads of squad_v2 .*: train with"),
        ("heads/squad_v2", [THEIRS, f"{AS}QuestionAnswering"], "leave out heads of .* --drop"),
        ("heads/squad_v2", [THEIRS, "--drop=answer_class/"], "exactly end_logits/, start_logits/"),
        ("heads/squad_v1", [THEIRS], "QuestionAnswering has no place for bert/pooler/"),
        ("heads/classifier", [THEIRS, f"{AS}MaskedLM"], "no place for output_, bert/pooler/ of"),
        ("heads/classifier", [THEIRS, f"{AS}MultipleChoice"], "one output per choice, but .* 3"),
        ("encoder/groups3", ["--to=tf1", "--albert_config_file=none"], "none does not exist"),
        ("encoder/nowhere", ["--to=tf1"], "there is no checkpoint"),
        *(
            ("encoder/base", [f"--to={layout}", "--spm_model_file={spm}"], "has 6000 pieces")
            for layout in WEIGHTS
        ),
    ],
)
def test_the_command_says_one_line_and_writes_nothing(source, arguments, message, golden, tmp_path):
    arguments = [each.format(spm=golden / "spm/en_small.model") for each in arguments]
    arguments += [f"--from={golden / source}", f"--output_dir={tmp_path / 'target'}"]
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        run_main(command.main, arguments)
    assert list(tmp_path.iterdir()) == []


def test_onnx_files_need_their_packages(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    given = ["--from=nowhere", "--to=huggingface", f"--output_dir={tmp_path}", "--onnx"]
    with pytest.raises(SystemExit, match=r"^error: --onnx needs .*'albert_tf\[onnx\]'"):
        run_main(command.main, given)
