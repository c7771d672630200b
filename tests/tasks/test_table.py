"""A user's own tables: three formats, four kinds of task, and everything that can be wrong."""

import dataclasses
import json

import pytest

from albert_tf.conversion import labels
from albert_tf.tasks import table
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample
from albert_tf.tasks.table import TableSettings
from tests import tiny

TEXT = TableSettings(text_column="review", label_column="mood")
PAIR = TableSettings(text_column="first", text_pair_column="second", label_column="score")
CHOICE = TableSettings(
    text_column="passage",
    text_pair_column="question",
    label_column="answer",
    choice_columns=("one", "two", "three"),
)


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
    labels = table.find_labels(path, TEXT)
    assert labels == ("good", "meh")
    lines = ("1", "2", "5") if name == "t.jsonl" else ("2", "3", "6")
    assert table.read_texts(path, TEXT, labels) == [
        TextExample(lines[0], "so, so", None, 1),
        TextExample(lines[1], 'a "b"\nc', None, 0),
        TextExample(lines[2], "ü", None, 1),
    ]


def test_a_tab_always_parts_cells_and_a_quote_is_text(tmp_path):
    content = 'score\tfirst\tsecond\n1.5\t"a\tb, c"\n-2e1\td""\t"\n'
    path = tiny.write(tmp_path / "t.tsv", content)
    assert table.read_texts(path, PAIR, labels=()) == [
        TextExample("2", '"a', 'b, c"', 1.5),
        TextExample("3", 'd""', '"', -20.0),
    ]


def test_choices_stand_in_columns_and_the_right_one_has_a_name_or_a_number(tmp_path):
    rows = [
        {"passage": "p", "question": "q", "one": "a", "two": "b", "three": "c", "answer": answer}
        for answer in ("two", 2, "0")
    ]
    path = tiny.write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)))
    examples = table.read_choices(path, CHOICE)
    assert [example.label for example in examples] == [1, 2, 0]
    assert examples[0] == ChoiceExample("1", "p", ("q a", "q b", "q c"), 1)
    two = dataclasses.replace(CHOICE, text_pair_column=None, choice_columns=("one", "two"))
    without = table.read_choices(path, two, False)
    assert without[0] == ChoiceExample("1", "p", ("a", "b"), None)


def test_a_file_to_predict_needs_no_labels(tmp_path):
    path = tiny.write(tmp_path / "t.csv", "review\nfine\n")
    assert table.read_texts(path, TEXT, ("a", "b"), False) == [TextExample("2", "fine", None, None)]


def test_labels_are_sorted_and_come_back_from_their_file(tmp_path):
    rows = [{"review": "x", "mood": mood} for mood in (10, 9, 2, "9")]
    path = tiny.write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)))
    assert table.find_labels(path, TEXT) == ("2", "9", "10")
    rows += [{"review": "x", "mood": mood} for mood in ("ä\u2028b", True)]
    path = tiny.write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)))
    found = table.find_labels(path, TEXT)
    assert found == ("10", "2", "9", "true", "ä\u2028b")
    for directory in (str(tmp_path), "ram://labels"):
        labels.write(directory, (*found, "a\nb"))
        assert labels.read(directory) == (*found, "a\nb")


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
    assert [example.label for example in table.read_texts(path, TEXT, classes)] == ids
    spelt = [{"false": "False", "0": "0.0"}.get(name, name) for name in classes]
    assert [example.label for example in table.read_texts(path, TEXT, spelt)] == ids


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", "a", "t.txt: expected .* that ends in .csv, .tsv, .jsonl, .json, .parquet$"),
        ("t.csv", "review,mood\n", "t.csv has no examples"),
        ("t.csv", "text,mood\nx,a\n", "t.csv:1: expected a header with 'review', each once, got"),
        ("t.csv", "review,mood,mood\nx,a,b\n", "t.csv:1: .* 'mood', each once, got 'review', 'm"),
        ("t.csv", "review,mood\nx,a\nx,y,b\n", "t.csv:3: expected 2 cells .review, mood., got 3"),
        ("t.csv", 'review,mood\n"x\ny",a\n,b\n', "t.csv:4: expected a value for 'review'"),
        ("t.csv", 'review,mood\nx,a\n"y,b\nz,a\n', "t.csv:3: not a row of a .csv file: unexpe"),
        ("t.tsv", b"review\tmood\nx\ta\n\xff\tb\n", "t.tsv:3: not UTF-8 text"),
        ("t.tsv", "review\tmood\nx\ta\ry\tb\r", "t.tsv:2: a carriage return within the line: end"),
        ("t.tsv", "review\tmood\nx\ty\ta\n", "t.tsv:2: expected 2 cells .review, mood., got 3"),
        ("t.csv", "review,mood\rx,a\ry,b\r", "t.csv:1: not a row .*: a carriage return within"),
        # An escaped backslash, a whole pair, and half of one.
        ("t.jsonl", r'{"review": "\\ud83d \ud83d\ude00 \uDe00"}', "1: not Uni.*.uDe00 at ch.* 33"),
        ("t.jsonl", '{"review": "x"\n', "t.jsonl:1 is not JSON: Expecting"),
        ("t.json", '{\n"review": "x"\n}\n', "t.json:1 is not JSON: "),
        ("t.json", '[{"review": "x", "mood": "a"}]', "t.json:1 must contain a JSON object"),
        ("t.jsonl", '{"review": null, "mood": "a"}', "t.jsonl:1: expected a value for 'review'"),
        ("t.jsonl", '\n{"review": "x"}', "t.jsonl:2: expected a value for 'mood'"),
        ("t.jsonl", '{"review": "x", "mood": NaN}', "t.jsonl:1: expected a value for 'mood'"),
        ("t.csv", "review,mood\nx,a\nx,c\n", "t.csv:3: label 'c' is not one of those tr.*: a, b"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path, name, content, message):
    path = tiny.write(tmp_path / name, content)
    with pytest.raises(ValueError, match=message):
        table.read_texts(path, TEXT, ("a", "b"))


@pytest.mark.parametrize("score", ["five", "nan", "inf"])
def test_a_score_is_a_number(tmp_path, score):
    path = tiny.write(tmp_path / "t.csv", f"first,second,score\nx,y,1\nx,y,{score}\n")
    with pytest.raises(ValueError, match=f"t.csv:3: label '{score}' is not a number"):
        table.read_texts(path, PAIR, labels=())


def test_other_mistakes(tmp_path):
    path = tiny.write(tmp_path / "t.csv", "passage,question,one,two,three,answer\np,q,a,b,c,3\n")
    with pytest.raises(ValueError, match="t.csv:2: label '3' must be a column of .* from 0 to 2"):
        table.read_choices(path, CHOICE)
    path = tiny.write(tmp_path / "t.csv", "p,1,2,answer\nx,a,b,1\n")
    with pytest.raises(ValueError, match="label '1' could mean the column of that name or the"):
        table.read_choices(
            path,
            TableSettings(text_column="p", label_column="answer", choice_columns=("1", "2")),
        )
    path = tiny.write(tmp_path / "t.csv", "review,mood\nx,a\ny,a\n")
    with pytest.raises(ValueError, match="t.csv: expected several labels in column 'mood', got"):
        table.find_labels(path, TEXT)
    for between in "\t\r\n":
        path = tiny.write(tmp_path / "t.csv", f'review,mood\nx,a\ny,"c{between}d"\n')
        with pytest.raises(ValueError, match="t.csv:3: expected a label without tabs and line end"):
            table.find_labels(path, TEXT)
    with pytest.raises(FileNotFoundError, match="none.csv does not exist"):
        table.find_labels(str(tmp_path / "none.csv"), TEXT)


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_cell_may_hold_a_long_document(tmp_path, quote):
    document = "a word." * 30_000
    path = tiny.write(tmp_path / "t.csv", f"review,mood\n{quote}{document}{quote},a\nx,b\n")
    examples = table.read_texts(path, TEXT, ["a", "b"])
    assert [len(example.text_a) for example in examples] == [210_000, 1]
