"""Tables and the generator's text in .parquet files; needs the package of albert_tf[parquet]."""

import decimal
import errno
import io
import itertools
import json
import os
import sys

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.generator import documents
from albert_tf.generator.documents import TextSettings
from albert_tf.storage import files, parquet_files
from albert_tf.storage.parquet_files import ParquetFile
from albert_tf.tasks import conll, table
from albert_tf.tasks.table import TableSettings

TEXT = TableSettings(text_column="review", label_column="mood")
ROWS = {"review": ["so, so", " ü\n", "fine"], "mood": ["meh", "good", "meh"], "id": [7, 8, 9]}


@pytest.fixture
def pyarrow():
    return pytest.importorskip("pyarrow", reason="needs the package of albert_tf[parquet]")


@pytest.fixture
def write(pyarrow, tmp_path):
    """Writes columns; the row groups are small, so that there are several."""

    def write_columns(columns, **options):
        import pyarrow.parquet

        path = str(tmp_path / "t.parquet")
        data = columns if isinstance(columns, pyarrow.Table) else pyarrow.table(columns)
        pyarrow.parquet.write_table(data, path, **{"row_group_size": 2, **options})
        return path

    return write_columns


def test_a_table_is_the_same_as_in_json(write, tmp_path):
    path = write(ROWS)
    lines = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    labels = table.find_labels(path, TEXT)
    assert labels == ("good", "meh")
    examples = table.read_texts(path, TEXT, labels)
    assert examples == table.read_texts(str(tmp_path / "t.jsonl"), TEXT, labels)
    assert examples[1] == table.TextExample("2", "ü", None, 0)
    assert table.read_texts(path, TEXT, labels, labelled=False)[1].label is None
    tf.io.gfile.makedirs("ram://parquet")
    tf.io.gfile.copy(path, "ram://parquet/t.parquet", overwrite=True)
    assert table.read_texts("ram://parquet/t.parquet", TEXT, labels) == examples


def test_ids_of_hugging_faces_classes_have_the_names_that_the_file_gives(pyarrow, write):
    feature = {"_type": "ClassLabel", "names": ["poor", "fine", "good"]}
    features = {"mood": feature, "moods": {"_type": "List", "feature": feature}}
    stored = {"huggingface": json.dumps({"info": {"features": features}})}
    columns = {"review": ["a", "b"], "mood": [2, 0], "moods": [[0, 2], []]}
    path = write(pyarrow.table(columns).replace_schema_metadata(stored))
    names = table.find_labels(path, TEXT)
    assert names == ("poor", "fine", "good")
    assert [each.label for each in table.read_texts(path, TEXT, names[::-1])] == [0, 2]
    assert [each.label for each in table.read_texts(path, TEXT, ())] == [2, 0]  # A regression.
    several = TableSettings(text_column="review", label_column="moods")
    assert table.find_labels(path, several, several=True) == names
    found = table.read_texts(path, several, names, several=True)
    assert [each.label for each in found] == [(0, 2), ()]
    columns["moods"] = pyarrow.array([[0, 0, 1], [1, 1, 1]], pyarrow.list_(pyarrow.float32(), 3))
    path = write(pyarrow.table(columns).replace_schema_metadata(stored))
    found = table.read_texts(path, several, names[::-1], several=True)
    assert [each.label for each in found] == [(0,), (0, 1, 2)]
    columns["mood"] = [2, -1]  # The value for a missing label.
    path = write(pyarrow.table(columns).replace_schema_metadata(stored))
    with pytest.raises(ValueError, match="t.parquet:2: '-1' .*`ignored_label=-1`"):
        table.read_texts(path, TEXT, names)


def test_words_and_tags_are_columns_of_lists(pyarrow, write):
    words, tags = [["Anna", "lives"], ["in", "York"]], [["B-PER", "O"], ["O", "B-LOC"]]
    names = ["O", "B-PER", "I-PER", "B-LOC"]
    feature = {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": names}}
    stored = json.dumps({"info": {"features": {"ner_tags": feature, "tags": [feature["feature"]]}}})
    ids = [[names.index(tag) for tag in each] for each in tags]
    more = {"id": [1, 2], "tokens": words, "pos_tags": [[7, 8], [9, 7]], "ner_tags": ids}
    for columns in ({"tokens": words, "labels": tags}, more, {"words": words, "tags": ids}):
        data = pyarrow.table(columns).replace_schema_metadata({"huggingface": stored})
        path = write(data)
        assert set(conll.find_tags(path)) >= {"O", "B-PER", "B-LOC"}
        rows = [(str(i + 1), tuple(words[i]), tuple(ids[i])) for i in (0, 1)]
        assert conll.read_sentences(path, names) == [conll.TokenExample(*row) for row in rows]
        (column,) = {*columns} & {"tokens", "words"}
        unlabelled = conll.read_sentences(write(data.select([column])), names, False)
        assert [each.labels for each in unlabelled] == [None, None]
    for columns, message in (
        ({"tokens": words, "ner_tags": ids}, "t.parquet:1: expected strings in 'ner_tags', got 1"),
        ({"tokens": ["Anna lives"]}, "t.parquet:1: expected an object whose 'tokens' is a list"),
        ({"body": words}, "t.parquet: expected the columns 'tokens', each once, got 'body'"),
    ):
        with pytest.raises(ValueError, match=message):
            conll.find_tags(write(columns))


def test_numbers_and_categories_are_labels(pyarrow, write):
    for values, expected in (
        ([1, 0, 1], ("0", "1")),
        ([True, False, True], ("false", "true")),
        (pyarrow.array(["b", "a", "b"]).dictionary_encode(), ("a", "b")),
        (pyarrow.array(["b", "a", "b"], pyarrow.large_string()), ("a", "b")),
        (pyarrow.array(["b", "a", "b"], pyarrow.string_view()), ("a", "b")),
    ):
        assert table.find_labels(write({**ROWS, "mood": values}), TEXT) == expected
    path = write({**ROWS, "mood": np.array([0.5, 2.0, -3.0], np.float32)})
    assert [each.label for each in table.read_texts(path, TEXT, ())] == [0.5, 2.0, -3.0]


def test_bad_cells_are_named(pyarrow, write):
    twice = pyarrow.table([["a"], ["b"], ["meh"]], names=["review", "review", "mood"])
    latin = pyarrow.array([b"a", b"b", b"\xff"]).view(pyarrow.string())
    dates = np.array([1, 2, 3], "datetime64[ms]")
    for columns, message in (
        ({**ROWS, "review": ["a", "b", None]}, "t.parquet:3: expected a value for 'review'"),
        ({**ROWS, "review": ["a", " ", "c"]}, "t.parquet:2: expected a value for 'review'"),
        ({**ROWS, "mood": ["meh", "meh", "?"]}, "t.parquet:3: label '.' is none of"),
        ({"text": ["a"], "mood": ["meh"]}, "the columns 'review', each once, got 'text', 'mood'"),
        (twice, "t.parquet: expected the columns 'review', each once"),
        ({**ROWS, "review": [b"a"] * 3}, "column 'review' holds binary, expected text"),
        ({**ROWS, "mood": dates}, r"column 'mood' holds timestamp\[ms\], expected text or numbers"),
        ({**ROWS, "mood": [decimal.Decimal("1.5")] * 3}, "column 'mood' holds decimal"),
        ({**ROWS, "review": latin}, "t.parquet: not UTF-8 text after row"),
        ({"review": pyarrow.array([], "string"), "mood": []}, "has no examples"),
    ):
        path = write(columns)
        with pytest.raises(ValueError, match=message) as error:
            table.read_texts(path, TEXT, ("good", "meh"))
        assert "\n" not in str(error.value)


def test_damaged_files_are_refused_in_one_line(write, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_files, "_MOST_ROWS", 2)
    with open(write(ROWS), "rb") as file:
        content = file.read()
    start = content.index(b"fine") - 30
    damaged = {
        "after row 0 ": [b"", b"review,mood\n", content[:-9], content[: len(content) // 2]],
        "after row 2 ": [content[:start] + b"\xff" * 20 + content[start + 20 :]],
    }
    for message, contents in damaged.items():
        for each in contents:
            (tmp_path / "t.parquet").write_bytes(each)
            with pytest.raises(ValueError, match=message + ".*: copy or write it again$") as error:
                table.read_texts(str(tmp_path / "t.parquet"), TEXT, ("good", "meh"))
            assert "\n" not in str(error.value)


LOST = [("t.parquet", OSError(errno.EIO, "no connection"))]
LOST += [("ram://t.parquet", tf.errors.UnavailableError(None, None, "no connection"))]


@pytest.mark.parametrize(("path", "error"), LOST)
def test_a_file_that_cannot_be_read_is_not_called_damaged(write, monkeypatch, path, error):
    """Otherwise the generator would remove its complete shards, as it does for damaged text."""

    class Lost(io.FileIO):
        is_lost = False

        def read(self, size=-1):
            if Lost.is_lost:
                raise error
            return super().read(size)

    content = write(ROWS)
    monkeypatch.setattr(parquet_files, "_MOST_ROWS", 2)
    monkeypatch.setattr(files, "open_bytes", lambda _: Lost(content))
    with ParquetFile(path) as file:
        rows = file.rows(["review"])
        assert [number for number, _ in itertools.islice(rows, 2)] == [1, 2]
        Lost.is_lost = True
        with pytest.raises(OSError, match=f"^can't read {path} after row 2: .*no connection$"):
            next(rows)
    with pytest.raises(OSError, match=f"^can't read {path} after row 0: .*no connection$"):
        ParquetFile(path)


def test_rows_are_held_a_few_at_a_time(write, monkeypatch):
    monkeypatch.setattr(parquet_files, "_BATCH_BYTES", 2**12)
    path = write({"text": ["word " * 100] * 500}, row_group_size=500, use_dictionary=False)
    with ParquetFile(path) as file:
        assert file._batch_rows() < 50
        rows = list(file.rows(["text"]))
    assert rows[-1] == (500, {"text": "word " * 100}) and len(rows) == 500


def test_without_its_package_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = tmp_path / "t.parquet"
    path.touch()
    message = r"'pyarrow', .* is not installed: pip install 'albert_tf\[parquet\]'"
    with pytest.raises(ValueError, match=message):
        table.read_texts(str(path), TEXT, ("a", "b"))
    with pytest.raises(ValueError, match=message):
        documents.read_documents([str(path)], TextSettings(input_file="", input_format="parquet"))


def read_all(*paths, **settings):
    settings = TextSettings(**{"input_file": "", "input_format": "parquet", **settings})
    return list(documents.read_documents(paths, settings))


def test_a_row_is_a_document_as_a_line_of_json_is(write, tmp_path):
    pytest.importorskip("sentencex", reason="needs the packages of albert_tf[data]")
    texts = ["One. Two.\nHeading without end\r\n\nThree.", "", "Fo\0ur.", "Five."]
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in texts))
    path = write({"id": [1, 2, 3, 4], "body": texts})
    found = read_all(path, path, text_field="body")
    expected = read_all(str(tmp_path / "t.jsonl"), input_format="jsonl", text_field="body")
    assert [each.sentences for each in found] == [each.sentences for each in expected] * 2
    size = files.size(path)
    offsets = [each.offset for each in found]
    assert offsets == [size * row // 4 for row in (1, 3, 4)] * 2
    assert [each.file_index for each in found] == [0, 0, 0, 1, 1, 1]


def test_bad_text_is_named_by_row(pyarrow, write):
    pytest.importorskip("sentencex", reason="needs the packages of albert_tf[data]")
    latin = pyarrow.array([b"One.", b"T\xffwo."]).view(pyarrow.string())
    for columns, message in (
        ({"text": ["a", None]}, "t.parquet, row 2: field 'text' must be a string, got a NoneType"),
        ({"text": [1, 2]}, "t.parquet, row 1: field 'text' must be a string, got a int"),
        ({"body": ["a"]}, "t.parquet: expected the columns 'text', each once, got 'body'"),
        ({"text": latin}, "t.parquet: not UTF-8 text after row"),
    ):
        with pytest.raises(ValueError, match=message):
            read_all(write(columns))
    path = write({"text": latin})
    assert [each.sentences for each in read_all(path, input_file_mode="rb")] == [["One."], ["Two."]]
    with pytest.raises(ValueError, match="is not plain text: read it with `input_format=parquet`"):
        read_all(path, input_format="lines")


def test_a_file_without_the_column_is_found_at_once(write, tmp_path):
    pytest.importorskip("sentencex", reason="needs the packages of albert_tf[data]")
    paths = [str(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    for path, column in zip(paths, ("text", "body"), strict=True):
        os.rename(write({column: ["One."]}), path)
    with pytest.raises(ValueError, match="b.parquet: expected the columns 'text', each once, got"):
        documents.read_documents(paths, TextSettings(input_file="", input_format="parquet"))


def test_rows_that_a_file_lacks_at_its_end_are_noticed(write):
    with ParquetFile(write(ROWS)) as file:
        file.num_rows += 2
        with pytest.raises(ValueError, match="after row 3 .*expected 5 rows"):
            list(file.rows(["review"]))
