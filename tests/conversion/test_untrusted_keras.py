"""Keras' archives and HDF5 files that somebody made to do more than hold weights."""

from __future__ import annotations

import json
import pathlib
import zipfile

import h5py
import keras
import numpy as np
import pytest

import albert_tf
from albert_tf.conversion.convert import convert
from tests.conversion.untrusted import DEEP, assert_refused, encoder

# --- Keras -----------------------------------------------------------------------------------


def keras_archive(
    folder: pathlib.Path, change=lambda members: None, compression=zipfile.ZIP_STORED
):
    """Writes the archive anew with changed members."""
    file = folder / "model.keras"
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


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


def test_modules_that_a_keras_file_names_are_not_imported(copy_of, trap):
    folder = copy_of("keras")

    def change(members):
        config = json.loads(members["config.json"])
        config["module"], config["build_config"] = (
            "trap",
            {"class_name": "spring", "module": "trap"},
        )
        members["config.json"] = json.dumps(config)

    keras_archive(folder, change)
    assert albert_tf.load_weights(encoder(), folder).missing == ()
    assert not trap.exists()


@pytest.mark.parametrize("name", ["../escaped", "{tmp}/escaped", "assets/../../escaped"])
def test_members_with_paths_are_not_unpacked(name, copy_of, tmp_path, monkeypatch):
    folder = copy_of("keras")
    monkeypatch.chdir(folder)
    name = name.format(tmp=tmp_path)
    keras_archive(folder, lambda members: members.update({name: b"x"}))
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert albert_tf.load_weights(encoder(), folder).missing == ()
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_archive_that_unpacks_to_much(copy_of):
    folder = copy_of("keras")
    keras_archive(folder, compression=zipfile.ZIP_DEFLATED)
    assert_refused(folder, "model.keras is compressed, as Keras and torch never write it")


def test_an_archive_that_declares_more_than_it_holds(copy_of):
    folder = copy_of("keras")
    file = folder / "model.keras"
    with zipfile.ZipFile(file) as archive:
        size = archive.getinfo("model.weights.h5").file_size
    declared = (3 << 30).to_bytes(4, "little")
    file.write_bytes(file.read_bytes().replace(size.to_bytes(4, "little"), declared))
    assert_refused(folder, "model.keras is damaged")


def test_deep_json_in_a_keras_file(copy_of):
    folder = copy_of("keras")
    keras_archive(folder, lambda members: members.update({"config.json": f'{{"a": {DEEP}}}'}))
    with pytest.raises(ValueError, match="model.keras is (not JSON|nested too deeply)"):
        albert_tf.load_config(folder)


# --- HDF5 ------------------------------------------------------------------------------------

POOLER = "layers/dense_1/vars/0"


def secret(folder: pathlib.Path, shape) -> pathlib.Path:
    path = folder.parent / "secret.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.ones(shape, "f")
    return path


def external_link(file, path):
    file[POOLER] = h5py.ExternalLink(str(path), "/x")


def soft_link(file, path):
    file[POOLER] = h5py.SoftLink("/layers/dense/vars/0")


def second_name(file, path):
    file[POOLER] = file["layers/dense/vars/0"]


def circle(file, path):
    file[POOLER] = file["layers"]


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


def filtered(file, path):
    file.create_dataset(POOLER, data=np.ones((32, 32), "f"), shuffle=True)


def nested(file, path):
    file.create_group("/".join("g" * 40))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (external_link, "is a link, which is not followed"),
        (soft_link, "is a link, which is not followed"),
        (second_name, "is a second name of the same object"),
        (circle, "is a second name of the same object"),
        (external_storage, "is stored in another file, which is not read"),
        (virtual_dataset, "is stored in another file, which is not read"),
        (compressed, "declares 67,108,864 bytes but has"),
        (never_written, "declares 4,398,046,511,104 bytes but has 0"),
        (filtered, "it is damaged, or compressed"),
        (nested, "is nested deeper than 32 groups"),
    ],
)
def test_hdf5_files_hold_what_they_declare(harm, message, copy_of):
    folder = copy_of("kerashub")
    path = secret(folder, (32, 32))
    with h5py.File(folder / "model.weights.h5", "r+") as file:
        del file[POOLER]
        harm(file, path)
    assert_refused(folder, message)
