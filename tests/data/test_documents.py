"""Reading text as documents."""

from __future__ import annotations

import documents
import pytest


def test_blank_lines_and_ends_of_files_end_documents(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_bytes(b"\n\nOne.\r\n  Two.  \n \t\n\nThree.")
    second.write_bytes("Vi\u00e9r.\n\n\n".encode())
    assert list(documents.read_documents([str(first), str(second)])) == [
        (["One.", "Two."], 0, 20),
        (["Three."], 0, 27),
        (["Vi\u00e9r."], 1, 8),
    ]


def test_document_without_end_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_DOCUMENT_SENTENCES", 3)
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{number}\n" for number in range(7)))
    cut = [document.sentences for document in documents.read_documents([str(path)])]
    assert cut == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


def test_bytes_that_are_not_utf8_are_an_error_or_left_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"One.\nT\xffwo.\n")
    with pytest.raises(ValueError, match="a.txt, line 2 is not UTF-8 .*input_file_mode=rb"):
        list(documents.read_documents([str(path)]))
    (document,) = documents.read_documents([str(path)], "rb")
    assert document.sentences == ["One.", "Two."]
    with pytest.raises(ValueError, match="input_file_mode must be 'r' or 'rb', got 'w'"):
        list(documents.read_documents([str(path)], "w"))


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(OSError, match="can't read .*gone.txt beyond line 0"):
        list(documents.read_documents([str(tmp_path / "gone.txt")]))


def test_patterns_name_files_in_order(tmp_path):
    for name in ("b2.txt", "b1.txt", "a.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "b3.txt").mkdir()
    found = documents.list_input_files(f"{tmp_path}/b*.txt,{tmp_path}/a.txt")
    assert [path.rpartition("/")[2] for path in found] == ["b1.txt", "b2.txt", "a.txt"]


def test_pattern_without_files_is_an_error(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match="no file matches '.*/c\\*.txt'"):
        documents.list_input_files(f"{tmp_path}/a.txt,{tmp_path}/c*.txt")
