"""A user's own tables: their formats, four kinds of task, and labels however they are written."""

import dataclasses
import json
import pathlib
import re

import pytest

from albert_tf.conversion import labels
from albert_tf.tasks import table
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample
from albert_tf.tasks.table import TableSettings
from tests.kit import tiny

TEXT = TableSettings(text_column="review", label_column="mood")
COLUMNS = TableSettings()


def json_lines(rows) -> str:
    return "\n".join(map(json.dumps, rows))


def write_labels(path: pathlib.Path, values) -> str:
    """Writes labels beside the texts a0, a1, ..."""
    rows = [(f"a{i}", value) for i, value in enumerate(values)]
    lines = [json.dumps({"text": text, "label": value}) for text, value in rows]
    if path.suffix != ".jsonl":
        cut, quote = (",", '"') if path.suffix == ".csv" else ("\t", "")
        lines = [f"text{cut}label", *(f"{text}{cut}{quote}{value}{quote}" for text, value in rows)]
    return tiny.write(path, "\n".join(lines))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", 'id,review,mood\n7,"so, so",meh\n8,"a ""b""\nc",good\n\n9,ü,meh\n'),
        ("t.CSV", '\ufeffreview,mood\r\n"so, so",meh\r\n"a ""b""\nc",good\r\n\r\nü,meh'),
        ("t.jsonl", '{"review":"so, so","mood":"meh"}\n{"mood":"good","review":"a \\"b\\"\\nc"}\n'),
    ],
)
def test_texts_are_read_with_the_lines_they_begin_in(tmp_path, name, content):
    if name == "t.jsonl":
        content += "\n\n" + json.dumps({"review": " ü ", "mood": "meh", "x": [1]})
    path = tiny.write(tmp_path / name, content)
    assert table.find_labels(path, TEXT) == ("good", "meh")
    lines = ("1", "2", "5") if name == "t.jsonl" else ("2", "3", "6")
    assert table.read_texts(path, TEXT, ("good", "meh")) == [
        TextExample(lines[0], "so, so", None, 1),
        TextExample(lines[1], 'a "b"\nc', None, 0),
        TextExample(lines[2], "ü", None, 1),
    ]


def test_a_tab_always_parts_cells_and_a_quote_is_text(tmp_path):
    content = 'score\tfirst\tsecond\n1.5\t"a\tb, c"\n-2e1\td""\t"\n'
    path = tiny.write(tmp_path / "t.tsv", content)
    columns = {"text_column": "first", "text_pair_column": "second", "label_column": "score"}
    assert table.read_texts(path, TableSettings(**columns), labels=()) == [
        TextExample("2", '"a', 'b, c"', 1.5),
        TextExample("3", 'd""', '"', -20.0),
    ]


def test_choices_stand_in_columns_and_the_right_one_has_a_name_or_a_number(tmp_path):
    given = {"passage": "p", "question": "q", "one": "a", "two": "b", "three": "c"}
    rows = [{**given, "answer": answer} for answer in ("two", 2, "0")]
    path = tiny.write(tmp_path / "t.jsonl", json_lines(rows))
    columns = {"text_column": "passage", "text_pair_column": "question", "label_column": "answer"}
    settings = TableSettings(**columns, choice_columns=("one", "two", "three"))
    examples = table.read_choices(path, settings)
    assert [example.label for example in examples] == [1, 2, 0]
    assert examples[0] == ChoiceExample("1", "p", ("q a", "q b", "q c"), 1)
    two = dataclasses.replace(settings, text_pair_column=None, choice_columns=("one", "two"))
    assert table.read_choices(path, two, False)[0] == ChoiceExample("1", "p", ("a", "b"), None)


def test_a_file_to_predict_needs_no_labels(tmp_path):
    path = tiny.write(tmp_path / "t.csv", "review\nfine\n")
    assert table.read_texts(path, TEXT, ("a", "b"), False) == [TextExample("2", "fine", None, None)]


def test_labels_are_sorted_and_come_back_from_their_file(tmp_path):
    for moods, expected in (
        ((10, 9, 2, "9"), ("2", "9", "10")),
        ((10, 9, 2, "9", "ä\u2028b", True), ("10", "2", "9", "true", "ä\u2028b")),
    ):
        rows = [{"review": "x", "mood": mood} for mood in moods]
        path = tiny.write(tmp_path / "t.jsonl", json_lines(rows))
        assert table.find_labels(path, TEXT) == expected
    for directory in (str(tmp_path), "ram://labels"):
        labels.write(directory, (*expected, "a\nb"))
        assert labels.read(directory) == (*expected, "a\nb")


@pytest.mark.parametrize(
    ("name", "values", "classes", "ids"),
    [
        ("t.jsonl", ["1", "0.0", "1.0"], ("0", "1"), [1, 0, 1]),
        ("t.csv", ["1", "0.0", "1.0"], ("0", "1"), [1, 0, 1]),
        ("t.jsonl", ["true", "false", '"True"'], ("false", "true"), [1, 0, 1]),
        ("t.csv", ["True", "FALSE", "true"], ("false", "true"), [1, 0, 1]),
        ("t.csv", ["1.10", "1.1", "007"], ("007", "1.1", "1.10"), [2, 1, 0]),
    ],
)
def test_programs_write_numbers_and_truth_in_several_ways(tmp_path, name, values, classes, ids):
    lines = [f'{{"review": "x", "mood": {value}}}' for value in values]
    if name == "t.csv":
        lines = ["review,mood", *(f"x,{value}" for value in values)]
    path = tiny.write(tmp_path / name, "\n".join(lines))
    assert table.find_labels(path, TEXT) == classes
    spelt = [{"false": "False", "0": "0.0"}.get(name, name) for name in classes]
    for trained_on in (classes, spelt):
        assert [example.label for example in table.read_texts(path, TEXT, trained_on)] == ids


@pytest.mark.parametrize(
    ("values", "settings", "classes", "ids"),
    [
        # Scales of numbers or signs.
        ([0, -1, 1, -1], {}, ("-1", "0", "1"), [1, 0, 2, 0]),
        (["+1", "-1", "-1"], {}, ("+1", "-1"), [0, 1, 1]),
        ([-2, 0, -1.0, 3], {}, ("-1", "-2", "0", "3"), [1, 2, 0, 3]),
        (["+", "-", "0", "-"], {}, ("+", "-", "0"), [0, 1, 2, 1]),
        # Labels that stand for a missing label.
        ([2, -1, 0, 1, -1.0], {"ignored_label": ("-1",)}, ("0", "1", "2"), [2, 0, 1]),
        ([-1, 0, -100, 1], {"ignored_label": ("-100", "-1")}, ("0", "1"), [0, 1]),
        (["b", None, "a", "", "NaN"], {"ignored_label": ("null",)}, ("a", "b"), [1, 0]),
        (["b", "-", "a", "c"], {"ignored_label": ("-", "c")}, ("a", "b"), [1, 0]),
        (["b", "-", "a"], {"label_names": ("b", "a", "-")}, ("b", "a", "-"), [0, 2, 1]),
        # Names that are numbers: all rows together tell whether labels are names or ids.
        ([-1, 2, 0], {"label_names": ("-1", "0", "1", "2")}, ("-1", "0", "1", "2"), [0, 3, 1]),
        ([3, 1, 2], {"label_names": ("1", "2", "3")}, ("1", "2", "3"), [2, 0, 1]),
        ([2, 0, 1, 1.0], {"label_names": ("1", "2", "3")}, ("1", "2", "3"), [2, 0, 1, 1]),
        # In a regression, no number stands for a missing label.
        ([-1, -100, 2.5, None], {"ignored_label": ("null",)}, (), [-1.0, -100.0, 2.5]),
    ],
)
def test_what_a_label_means(tmp_path, values, settings, classes, ids):
    path = write_labels(tmp_path / "t.jsonl", values)
    columns = TableSettings(**settings)
    assert not classes or table.find_labels(path, columns) == classes
    assert [each.label for each in table.read_texts(path, columns, classes)] == ids


def test_the_log_says_in_one_line_how_a_table_is_understood(tmp_path, caplog):
    names = tuple(f"class{i}" for i in range(13))
    path = write_labels(tmp_path / "t.csv", [names[0], *names, names[7], names[7]])
    with caplog.at_level("INFO", "absl"):
        table.read_texts(path, COLUMNS, names)
    (line,) = caplog.messages
    counts = r"class7 3, class0 2, (class\d+ 1, ){7}class\d+ 1 and 3 others"
    assert re.fullmatch(rf"{re.escape(path)}: .*text\b.*label\b.* {counts}", line)


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_cell_may_hold_a_long_document(tmp_path, quote):
    document = "a word." * 30_000
    path = tiny.write(tmp_path / "t.csv", f"review,mood\n{quote}{document}{quote},a\nx,b\n")
    examples = table.read_texts(path, TEXT, ["a", "b"])
    assert [len(example.text_a) for example in examples] == [210_000, 1]


LABELS = ("art", "law", "war")
EACH = "jsonl csv tsv"
# The labels of four texts.
TARGETS = [(0, 2), (), (0,), (1, 2)]


def read_several(path: str, classes=LABELS, columns=COLUMNS) -> list:
    return [each.label for each in table.read_texts(path, columns, classes, several=True)]


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.tsv"])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 1]], TARGETS),
        ([[1.0, 0.0, 1.0], "0|0|0", [True, False, False], "0.0|1.0|1.0"], TARGETS),
        ([[1, 0], [1, 1], [0, 1]], [(0,), (0, 1), (1,)]),
        ([[1.0, 0.0], [0.0, 1.0]], [(0,), (1,)]),
        ([[False, True]], [(1,)]),
    ],
)
def test_numbers_for_each_label_say_which_a_text_has(tmp_path, name, values, expected):
    path = write_labels(tmp_path / name, values)
    count = 3 if expected is TARGETS else 2
    found = table.find_labels(path, COLUMNS, several=True)
    assert found == ("0", "1", "2")[:count]
    for columns in (COLUMNS, dataclasses.replace(COLUMNS, label_names=LABELS[:count])):
        assert table.find_labels(path, columns, several=True) == (columns.label_names or found)
        # By position, whatever the model's order is.
        assert read_several(path, LABELS[:count], columns) == expected
    reverse = read_several(path, LABELS[:count][::-1], columns)
    assert [{count - 1 - i for i in ids} for ids in reverse] == [*map(set, expected)]


@pytest.mark.parametrize(
    ("names", "values", "separator", "labels", "ids"),
    [
        (EACH, ["war|art", "", "art| art |", " law|war"], None, LABELS, TARGETS),
        # Collections as JSON, pandas and Python write them.
        ("jsonl", [["war", "art"], None, "art", ["law", "war"]], None, LABELS, TARGETS),
        ("csv tsv", ["['war', 'art']", "[]", "['art']", "law|war"], None, LABELS, TARGETS),
        ("csv tsv", ["{'war', 'art'}", "set()", "{'art'}", "law|war"], None, LABELS, TARGETS),
        ("csv tsv", ["('war', 'art')", "()", "('art',)", "law|war"], None, LABELS, TARGETS),
        ("csv tsv", ["frozenset({'war', 'art'})", "frozenset()",
                     "array(['art'], dtype=object)", "law|war"], None, LABELS, TARGETS),
        # Lists of ids or names, not of a 0 or 1 for each label.
        ("jsonl", [["a", "b"], ["b", "a"]], None, ("a", "b"), [(0, 1), (0, 1)]),
        ("jsonl", [[0, 3], [3], []], None, ("0", "3"), [(0, 1), (1,), ()]),
        ("jsonl", [[0], [1], [0, 1], []], None, ("0", "1"), [(0,), (1,), (0, 1), ()]),
        ("jsonl", [[1.0, 0.0], [1.0]], None, ("0", "1"), [(0, 1), (1,)]),
        # Each is one label: others have no part of it.
        (EACH, ["C#", "C", "C++|C#", "arts, culture"], None,
         ("C", "C#", "C++", "arts, culture"), [(1,), (0,), (1, 2), (3,)]),
        (EACH, ["1.5", "1", "5", "(1)"], None, ("(1)", "1", "1.5", "5"), [(2,), (1,), (3,), (0,)]),
        (EACH, ["non-toxic", "toxic"], None, ("non-toxic", "toxic"), [(0,), (1,)]),
        # Rows separate labels of several words or parts.
        (EACH, ["b/c|x", "b/d"], None, ("b/c", "b/d", "x"), [(0, 2), (1,)]),
        (EACH, ["C|x", "my-C|C", "my"], None, ("C", "my", "my-C", "x"), [(0, 3), (0, 2), (1,)]),
        # A setting says what separates labels.
        (EACH, ["war; art", "art", ";law;", ""], ";", LABELS, [(0, 2), (0,), (1,), ()]),
        (EACH, ["0, 2", "2", "1,0"], ",", ("0", "1", "2"), [(0, 2), (2,), (0, 1)]),
        (EACH, ["war, art", "war", "art"], "|", ("art", "war", "war, art"), [(2,), (1,), (0,)]),
    ],
)  # fmt: skip
def test_a_text_has_any_number_of_labels(tmp_path, names, values, separator, labels, ids):
    columns = TableSettings(label_separator=separator)
    for ending in names.split():
        path = write_labels(tmp_path / f"t.{ending}", values)
        assert table.find_labels(path, columns, several=True) == labels
        first = 1 if ending == "jsonl" else 2
        examples = [TextExample(str(first + i), f"a{i}", None, x) for i, x in enumerate(ids)]
        assert table.read_texts(path, columns, labels, several=True) == examples


def test_no_vector_of_three_labels_has_two_numbers(tmp_path):
    path = write_labels(tmp_path / "t.jsonl", [[0, 1], [0, 1]])
    assert read_several(path, ("0", "1", "2")) == [(0, 1), (0, 1)]


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.parquet"])
def test_each_label_has_a_column_of_its_own(tmp_path, name):
    cells = {"war": [1, 0.0, -1, 0], "art": [0, 0, -1, 1], "law": [True, False, -1, 0]}
    names, path, data = tuple(cells), str(tmp_path / name), {"text": ["a b"] * 4, **cells}
    if name == "t.parquet":
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("pyarrow", reason="needs the package of albert_tf[parquet]")
        pandas.DataFrame(data).astype(dict.fromkeys(names, float)).to_parquet(path)
    else:
        rows = [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]
        lines = [",".join(data), *(",".join(map(str, row.values())) for row in rows)]
        tiny.write(tmp_path / name, json_lines(rows) if name == "t.jsonl" else "\n".join(lines))
    columns = TableSettings(label_columns=names, ignored_label=("-1",))
    assert table.find_labels(path, columns, several=True) == names
    assert read_several(path, names, columns) == [(0, 2), (), (1,)]
    assert read_several(path, LABELS, columns) == [(1, 2), (), (0,)]
    renamed = dataclasses.replace(columns, label_names=("x", "y", "z"))
    assert read_several(path, ("z", "y", "x"), renamed) == [(0, 2), (), (1,)]


def test_a_single_1_is_the_class(tmp_path):
    path = tiny.write(tmp_path / "t.csv", "text,b,c,a\nx,0,1,0\ny,0,0,1\nz,1,0,0\n")
    columns = TableSettings(label_columns=("b", "c", "a"))
    assert table.find_labels(path, columns) == ("b", "c", "a")
    assert [each.label for each in table.read_texts(path, columns, ("a", "b", "c"))] == [2, 0, 1]
