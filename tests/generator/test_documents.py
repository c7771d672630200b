"""Reading text as documents."""

from __future__ import annotations

import gzip
import json
import pathlib
import sys

import pytest

from albert_tf.generator import documents, lines
from albert_tf.generator.documents import Document, TextSettings


def _read(*paths, **settings):
    return list(documents.read_documents([str(path) for path in paths], TextSettings(**settings)))


def _sentences(*paths, **settings):
    return [document.sentences for document in _read(*paths, **settings)]


def test_blank_lines_and_ends_of_files_end_documents(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_bytes(b"\n\nOne.\r\n  Two.  \n \t\n\nThree.")
    second.write_bytes("Vi\u00e9r.\n\n\n".encode())
    assert _read(first, second) == [
        Document(["One.", "Two."], 0, 20),
        Document(["Three."], 0, 27),
        Document(["Vi\u00e9r."], 1, 8),
    ]


def test_files_without_text_have_no_documents(tmp_path):
    empty, blank = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    empty.touch()
    blank.write_bytes(gzip.compress("\ufeff\r\n \n\0\0\n".encode()))
    assert _read(empty, blank) == []


def test_document_without_end_is_cut_by_sentences_and_by_length(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_DOCUMENT_SENTENCES", 3)
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{number}\n" for number in range(7)))
    assert _sentences(path) == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    monkeypatch.setattr(documents, "MAX_DOCUMENT_CHARS", 2)
    assert _sentences(path) == [["0", "1"], ["2", "3"], ["4", "5"], ["6"]]


def test_endless_line_becomes_bounded_sentences_of_bounded_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 101)
    monkeypatch.setattr(documents, "MAX_DOCUMENT_CHARS", 997)
    path = tmp_path / "a.txt"
    path.write_text("First.\n" + "word " * 5003 + "\nLast.\n")
    cut = _sentences(path)
    assert " ".join(sentence for document in cut for sentence in document) == (
        "First. " + "word " * 5003 + "Last."
    )
    assert max(len(sentence) for document in cut for sentence in document) <= 101
    assert max(sum(map(len, document)) for document in cut) < 997 + 101


def test_long_paragraphs_of_json_are_cut_before_they_are_split(tmp_path, monkeypatch):
    pytest.importorskip("sentencex")
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 101)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "word " * 503 + "\nLast."}))
    (document,) = _sentences(path, input_format="jsonl")
    assert " ".join(document) == "word " * 503 + "Last."
    assert max(map(len, document)) <= 101


def test_text_is_the_same_in_every_format(tmp_path):
    pytest.importorskip("sentencex")
    expected = [["One is here.", "Two is there."], ["Three has come."]]
    contents = {
        "lines": "One is here.\nTwo is there.\n\nThree has come.\n",
        "paragraphs": "One is here. Two is there.\n\nThree has come.\n",
        "jsonl": '{"text": "One is here. Two is there."}\n{"text": "Three has come."}\n',
        "wikipedia": "<doc>\nOne is here. Two is there.\n</doc>\n<doc>\nThree has come.\n</doc>",
    }
    for input_format, content in contents.items():
        plain, compressed = tmp_path / input_format, tmp_path / f"{input_format}.gz"
        plain.write_text(content)
        compressed.write_bytes(gzip.compress(content.encode()))
        both = _read(plain, compressed, input_format=input_format)
        assert [document.sentences for document in both] == expected * 2
        assert [document.file_index for document in both] == [0, 0, 1, 1]
        assert [document.offset for document in both[1::2]] == [
            plain.stat().st_size,
            compressed.stat().st_size,
        ]


def test_bytes_that_are_not_utf8_are_an_error_or_left_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"One.\nT\xffwo.\n")
    with pytest.raises(ValueError, match="a.txt, line 2 is not UTF-8 .*input_file_mode=rb"):
        _read(path)
    assert _sentences(path, mode="rb") == [["One.", "Two."]]


def test_a_file_that_cannot_be_opened_is_found_at_once(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.txt"):
        documents.read_documents([str(tmp_path / "gone.txt")], TextSettings())


def test_a_file_with_a_scheme_that_cannot_be_read_is_an_error():
    with pytest.raises(OSError, match="can't read ram://gone.txt after line 0"):
        _read("ram://gone.txt")


def test_missing_packages_are_found_at_once(monkeypatch, tmp_path):
    (tmp_path / "a.txt").touch()
    for name in ("sentencex", "backports"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match="'sentencex', .* is not installed"):
        documents.read_documents(["gone"], TextSettings(input_format="paragraphs"))
    with pytest.raises(ValueError, match="'backports.zstd', .* is not installed"):
        documents.read_documents([str(tmp_path / "a.txt"), "gone.zst"], TextSettings())


def test_a_file_of_another_format_is_found_at_once(tmp_path):
    files = [str(tmp_path / name) for name in ("a.txt", "b.jsonl")]
    for path in files:
        pathlib.Path(path).write_text("Text.\n")
    with pytest.raises(ValueError, match="b.jsonl is not plain text: read it with `input_format=j"):
        documents.read_documents(files, TextSettings())
