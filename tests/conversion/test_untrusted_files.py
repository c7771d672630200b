"""Files crafted to do more than hold weights are refused, and nothing outside is read.

Not tested here: flaws in the parsers of TensorFlow, HDF5, SentencePiece and safetensors themselves.
"""

import json
import os
import shutil
import zipfile

import h5py
import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import albert_tf
from albert_tf.conversion.convert import convert
from albert_tf.text import vocabulary
from tests.conversion.untrusted import CONFIGS, assert_refused, change_config, encoder

# --- safetensors -----------------------------------------------------------------------------


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "", "..", 7])
def test_an_index_names_files_of_its_directory_only(shard, copy_of):
    folder = copy_of("huggingface")
    shutil.move(folder / "model.safetensors", folder.parent / "model.safetensors")
    weight_map = {"albert.pooler.weight": shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_refused(folder, "must be in a file of the same directory, not")


@pytest.mark.parametrize("length", [1 << 62, 1 << 20])
def test_a_header_longer_than_allowed_or_than_its_file(length, copy_of):
    folder = copy_of("huggingface")
    file = folder / "model.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    assert_refused(folder, "model.safetensors is damaged")


@pytest.mark.parametrize("layout", CONFIGS)
def test_deep_or_broken_json(layout, copy_of):
    folder, deep = copy_of(layout), "[" * 5000 + "]" * 5000
    for text in (deep, f'{{"model_type": {"9" * 5000}}}', "\x00", "[1]", '{"a": \ud800}'):
        (folder / CONFIGS[layout]).write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(ValueError, match="config.json.* (not JSON|JSON object|not UTF-8)"):
            albert_tf.load_config(folder)


KEYS = {"vocab_size": "vocabulary_size", "type_vocab_size": "num_segments"}
KEYS |= {"num_hidden_layers": "num_layers", "inner_group_num": "num_inner_repetitions"}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("layout", CONFIGS)
def test_a_giants_config_asks_for_no_memory_and_a_towers_takes_no_time(layout, key, copy_of):
    folder = copy_of(layout)
    change_config(folder, layout, **{KEYS[key] if layout == "kerashub" else key: 10**9})
    message = f"{key} must be at most 4096, not 1000000000"
    if "vocab" in key:
        message = "declares at least [0-9,]* numbers, but they have .*"
    with pytest.raises(ValueError, match=message):
        convert(str(folder), "keras", str(folder.with_name("target")))


@pytest.mark.parametrize(
    ("layout", "name"),
    [("huggingface", name) for name in ("config.json", "tokenizer_config.json", "spiece.model")]
    + [("tf1", "albert_config.json")],
)
def test_small_files_of_gigabytes_are_not_read(layout, name, copy_of, golden):
    folder = copy_of(layout)
    shutil.copy(golden / "spm" / "en_small.model", folder / "spiece.model")
    with open(folder / name, "wb") as file:
        file.truncate(8 << 30)  # Sparse: takes no disk space.
    with pytest.raises(ValueError, match=f"{name} has more than 67,108,864 bytes, too many"):
        albert_tf.load_config(folder)
        vocabulary.find(str(folder))


@pytest.mark.parametrize("layout", ["huggingface", "kerashub", "keras", "tf1"])
def test_pipes_and_devices_are_not_waited_for(layout, copy_of):
    """Each file of a directory in turn."""
    folder = copy_of(layout)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        kept = file.with_name("kept")
        file.rename(kept)
        os.mkfifo(file)
        model = encoder()
        with pytest.raises((ValueError, FileNotFoundError), match=f"{folder}"):
            albert_tf.load_config(folder)
            albert_tf.load_weights(model, folder)
            raise FileNotFoundError(f"{folder}: {file} is not needed")
        file.unlink()
        kept.rename(file)


@pytest.mark.parametrize("layout", ["huggingface", "kerashub"])
def test_code_that_a_config_names_is_not_imported(copy_of, trap, layout):
    folder = copy_of(layout)
    auto_map = {"AutoModel": "trap.spring", "AutoConfig": "trap.spring"}
    values = json.loads((folder / "config.json").read_text())
    values |= {"auto_map": auto_map, "module": "trap", "class_name": "spring"}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "trap.py").write_text((folder.parent / "trap.py").read_text())
    assert albert_tf.load_weights(encoder(), folder).missing == ()
    convert(str(folder), "tf1", str(folder.with_name(f"{layout}_tf1")))
    assert not trap.exists()


@pytest.mark.parametrize("named", ["../outside/model.ckpt-7", "{outside}/model.ckpt-7"])
def test_a_list_of_checkpoints_names_none_of_another_directory(named, copy_of, tmp_path):
    outside = copy_of("tf1").rename(tmp_path / "outside")
    for file in outside.glob("model.ckpt-best*"):
        file.rename(outside / file.name.replace("best", "7"))
    folder = tmp_path / "inside"
    folder.mkdir()
    named = named.format(outside=outside)
    lines = (
        f'{name}: "{named}"\n' for name in ("model_checkpoint_path", "all_model_checkpoint_paths")
    )
    (folder / "checkpoint").write_text("".join(lines))
    with pytest.raises(FileNotFoundError, match="contains no checkpoint"):
        albert_tf.load_weights(encoder(), folder)
    # Once the files are copied here, lists that name another machine's directory work.
    for file in outside.glob("model.ckpt*"):
        shutil.copy(file, folder)
    assert albert_tf.load_weights(encoder(), folder).missing == ()


def test_a_saved_models_graph_is_not_run(copy_of):
    """Its functions and assets are never looked at: only the bundle of its variables is."""
    folder = copy_of("tf1")
    (folder / "variables").mkdir()
    for file in folder.glob("model.ckpt-best*"):
        file.rename(folder / "variables" / file.name.replace("model.ckpt-best", "variables"))
    (folder / "saved_model.pb").write_bytes(b"no protobuf at all")
    assert albert_tf.load_weights(encoder(), folder).missing == ()


def test_vocabularies_that_configs_name_are_not_read(copy_of, golden):
    folder = copy_of("huggingface")
    outside = folder.parent / "spiece.model"
    shutil.copy(golden / "spm" / "en_small.model", outside)
    named = {"vocab_file": "../spiece.model", "tokenizer_file": str(outside)}
    change_config(folder, "huggingface", **named)
    (folder / "tokenizer_config.json").write_text(json.dumps({"vocab_file": "../spiece.model"}))
    assert vocabulary.find(str(folder), do_lower_case=True) is None


def test_another_layers_weights_are_no_way_in(copy_of):
    """Names are looked up, never formatted, evaluated or joined to paths."""
    folder = copy_of("huggingface")
    tensors = load_file(folder / "model.safetensors")
    odd = "{0.__class__}/../../etc/passwd"
    save_file(tensors | {odd: np.ones(3, "f")}, folder / "model.safetensors")
    assert albert_tf.load_weights(encoder(), folder).unused == (f"albert.{odd}",)
    with pytest.raises(ValueError, match="has unknown albert"):
        convert(str(folder), "kerashub", str(folder.with_name("target")))


def test_a_lambda_layer_of_a_keras_file_is_not_run(trap, tmp_path):
    inputs = keras.Input((None,), dtype="int32", name="input_ids")
    outputs = encoder()({"input_ids": inputs})["pooled_output"]
    sprung = keras.layers.Lambda(lambda x: (__import__("trap"), x)[1], output_shape=(32,))
    folder = tmp_path / "model"
    folder.mkdir()
    keras.Model(inputs, sprung(outputs)).save(folder / "model.keras")
    with zipfile.ZipFile(folder / "model.keras") as archive:
        assert b"__lambda__" in archive.read("config.json")
    assert not trap.exists()
    report = albert_tf.load_weights(encoder(), folder)
    assert report.missing == report.unused == ()
    convert(str(folder), "tf1", str(tmp_path / "tf1"))
    assert not trap.exists()


@pytest.mark.parametrize("name", ["../escaped", "{tmp}/escaped", "assets/../../escaped"])
def test_members_with_paths_are_not_unpacked(name, copy_of, tmp_path, monkeypatch):
    folder = copy_of("keras")
    monkeypatch.chdir(folder)
    name = name.format(tmp=tmp_path)
    with zipfile.ZipFile(folder / "model.keras", "a") as archive:
        archive.writestr(name, b"x")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert albert_tf.load_weights(encoder(), folder).missing == ()
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_archive_that_declares_more_than_it_holds(copy_of):
    folder = copy_of("keras")
    file = folder / "model.keras"
    with zipfile.ZipFile(file) as archive:
        size = archive.getinfo("model.weights.h5").file_size
    declared = (3 << 30).to_bytes(4, "little")
    file.write_bytes(file.read_bytes().replace(size.to_bytes(4, "little"), declared))
    assert_refused(folder, "model.keras has 3,221,225,472 bytes, too many")


POOLER, LACKS = "layers/dense_1/vars/0", "lacks .*pooler"


def external_storage(file, path):
    file.create_dataset(POOLER, (32, 32), "f", external=[(str(path), 0, 4096)])


def virtual_dataset(file, path):
    layout = h5py.VirtualLayout((32, 32), "f")
    layout[:] = h5py.VirtualSource(str(path), "x", (32, 32))
    file.create_virtual_dataset(POOLER, layout)


def compressed(file, path):
    file.create_dataset(POOLER, data=np.zeros((4096, 4096), "f"), compression="gzip")


def never_written(file, path):
    file.create_dataset(POOLER, (1 << 20, 1 << 20), "f", chunks=(64, 64))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda file, path: file.update({POOLER: h5py.ExternalLink(str(path), "/x")}), LACKS),
        (lambda file, path: file.update({POOLER: h5py.SoftLink("/layers/dense/vars/0")}), LACKS),
        (external_storage, "it is damaged, or not as Keras writes it"),
        (virtual_dataset, "it is damaged, or not as Keras writes it"),
        (compressed, "declares 67,108,864 bytes but the file holds"),
        (never_written, "declares 4,398,046,511,104 bytes but the file holds 0"),
    ],
)
def test_hdf5_files_hold_what_they_declare(harm, message, copy_of):
    folder = copy_of("kerashub")
    path = folder.parent / "secret.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.ones((32, 32), "f")
    with h5py.File(folder / "model.weights.h5", "r+") as file:
        del file[POOLER]
        harm(file, path)
    assert_refused(folder, message)
