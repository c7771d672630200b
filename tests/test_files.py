"""What is read at all: regular files, and of those that must be small no large ones."""

from __future__ import annotations

import os

import pytest
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.generator import lines
from albert_tf.records import input_files
from albert_tf.storage import files, text_files
from albert_tf.text.tokenization import Tokenizer

READERS = {
    "config": AlbertConfig.from_json_file,
    "records": input_files.find_files,
    "task's data": lambda path: list(text_files.utf8_lines(path)),
    "text": lambda path: lines.TextFile(path, "strict"),
}


@pytest.mark.parametrize("reader", READERS)
def test_pipes_and_devices_are_refused(tmp_path, reader):
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero"):
        with pytest.raises(ValueError, match=f"{path} is a pipe, a device or a socket: name a reg"):
            READERS[reader](path)


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="^--text is a pipe, a device or a socket: name a regular"):
        files.check_file(tmp_path / "pipe", "--text")


def test_a_link_to_a_file_is_one(tmp_path):
    (tmp_path / "file").write_bytes(b"one")
    (tmp_path / "link").symlink_to("file")
    assert files.read_bytes(tmp_path / "link") == b"one"
    (tmp_path / "file").unlink()
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "link")


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path, monkeypatch):
    path = str(tmp_path / "file")
    files.replace(path, b"one")

    def fail(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(tf.errors.ResourceExhaustedError):
        patch.setattr(tf.io.gfile, "rename", fail)
        files.replace(path, b"two")
    assert os.listdir(tmp_path) == ["file"] and files.read_bytes(path) == b"one"
    files.replace(path, b"two")
    assert os.listdir(tmp_path) == ["file"] and files.read_bytes(path) == b"two"


def test_a_file_has_at_most_so_many_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert files.read_bytes(tmp_path / "file", 5) == files.read_bytes(tmp_path / "file")
    with pytest.raises(ValueError, match="file has more than 4 bytes, too many for such a file"):
        files.read_bytes(tmp_path / "file", 4)


def test_patterns_name_files_in_order_and_once(tmp_path):
    for name in ("b2.txt", "b1.txt", "a.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "b3.txt").mkdir()
    found = files.list_files(f"{tmp_path}/b*.txt, {tmp_path}/a.txt,,{tmp_path}/b1.txt")
    assert [path.rpartition("/")[2] for path in found] == ["b1.txt", "b2.txt", "a.txt"]


def test_a_name_may_look_like_a_pattern(tmp_path):
    (tmp_path / "corpus [2024]").mkdir()
    for name in ("a[1].txt", "a1.txt", "corpus [2024]/x.txt"):
        (tmp_path / name).write_text("x")
        assert files.list_files(f"{tmp_path}/{name}") == [f"{tmp_path}/{name}"]
    (tmp_path / "a[1].txt").unlink()
    assert files.list_files(f"{tmp_path}/a[1].txt") == [f"{tmp_path}/a1.txt"]


@pytest.mark.parametrize("name", ["c*.txt", "c.txt"])
def test_a_pattern_without_files_is_an_error(tmp_path, name):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match="input file .*c.*.txt does not exist"):
        files.list_files(f"{tmp_path}/a.txt,{tmp_path}/{name}")


def test_a_directory_is_no_file(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "texts").mkdir()
    with pytest.raises(ValueError, match=r"texts is a directory: give .*texts/\* for the files"):
        files.list_files(f"{tmp_path}/a.txt,{tmp_path}/texts")
    with pytest.raises(IsADirectoryError, match="texts is a directory: name the file in it"):
        files.check_file(tmp_path / "texts")


@pytest.mark.parametrize("kind", ["spm_model_file", "vocab_file"])
def test_a_vocabulary_of_gigabytes_is_not_read(tmp_path, kind):
    with open(tmp_path / "vocabulary", "wb") as file:
        file.truncate(8 << 30)  # Which takes no room on the disk.
    with pytest.raises(ValueError, match="vocabulary has more than 67,108,864 bytes"):
        Tokenizer(**{kind: tmp_path / "vocabulary"})
