"""What is read at all: regular files, and of those that must be small no large ones."""

from __future__ import annotations

import os

import pytest

from albert_tf import files, input_files, running
from albert_tf.config import AlbertConfig
from albert_tf.generator import lines
from albert_tf.tasks import text_files
from albert_tf.tokenization import Tokenizer

READERS = {
    "config": AlbertConfig.from_json_file,
    "named config": running.read_config,
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


def test_a_link_to_a_file_is_one(tmp_path):
    (tmp_path / "file").write_bytes(b"one")
    (tmp_path / "link").symlink_to("file")
    assert files.read_bytes(tmp_path / "link") == b"one"
    (tmp_path / "file").unlink()
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "link")


def test_a_file_has_at_most_so_many_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert files.read_bytes(tmp_path / "file", 5) == files.read_bytes(tmp_path / "file")
    with pytest.raises(ValueError, match="file has over 4 bytes: too many for what it should be"):
        files.read_bytes(tmp_path / "file", 4)


@pytest.mark.parametrize("kind", ["spm_model_file", "vocab_file"])
def test_a_vocabulary_of_gigabytes_is_not_read(tmp_path, kind):
    with open(tmp_path / "vocabulary", "wb") as file:
        file.truncate(8 << 30)  # Which takes no room on the disk.
    with pytest.raises(ValueError, match="vocabulary has over 67,108,864 bytes"):
        Tokenizer(**{kind: tmp_path / "vocabulary"})
