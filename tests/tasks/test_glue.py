import json

import pytest

from albert_tf.tasks import glue
from albert_tf.text.sentence_piece import preprocess_text
from tests.kit import tiny

LABELLED_TASKS = [name for name in glue.GLUE_TASKS if name != "ax"]


@pytest.mark.parametrize("name", LABELLED_TASKS)
def test_examples_are_those_that_the_release_reads(golden, name):
    """Text is stored as the release normalises it, labels by name and by id."""
    tasks = json.loads((golden / "features/glue.json").read_text())["tasks"]
    (task,) = (task for task in tasks if task["task"] == name)
    labels = glue.GLUE_TASKS[name].labels
    assert list(labels) == [label for label in task["labels"] if label is not None]
    for split, expected in task["splits"].items():
        examples = glue.read_glue(name, golden / "features/glue_data", split)
        for example, row in zip(examples, expected, strict=True):
            assert example.guid == row["guid"]
            assert preprocess_text(example.text_a) == row["text_a"]
            second = None if example.text_b is None else preprocess_text(example.text_b)
            assert second == row["text_b"]
            if split == "test":
                assert example.label is None
                continue
            assert example.label == row["features"]["label_id"]
            assert (labels[example.label] if labels else example.label) == row["label"]


def test_the_diagnostic_set_is_read_for_prediction_only(tmp_path):
    text = "index\tsentence1\tsentence2\n0\tA cat.\tAn animal.\n7\tB.\tC.\n"
    tiny.write(tmp_path / "diagnostic/diagnostic.tsv", text)
    assert glue.read_glue("ax", tmp_path, "test") == [
        glue.TextExample("0", "A cat.", "An animal.", None),
        glue.TextExample("7", "B.", "C.", None),
    ]
    with pytest.raises(ValueError, match="task ax has no train split, only test"):
        glue.read_glue("ax", tmp_path, "train")


def test_columns_are_found_by_name_and_quotes_mean_nothing(tmp_path):
    text = '\ufefflabel\tsentence2\tsentence1\r\nNot_Entailment \t"b\t\'a "c\r\n'
    tiny.write(tmp_path / "RTE/train.tsv", text)
    (example,) = glue.read_glue("rte", tmp_path, "train")
    assert example == glue.TextExample("train-1", "'a \"c", '"b', 1)


def test_short_rows_of_qqp_are_skipped_and_counted(tmp_path, caplog):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    rows = "0\t1\t2\ta\tb\t1\n9\t9\n1\t3\t4\tc\td\n2\t5\t6\te\tf\t0\n"
    tiny.write(tmp_path / "QQP/train.tsv", header + rows)
    with caplog.at_level("WARNING"):
        examples = glue.read_glue("qqp", tmp_path, "train")
    assert [example.guid for example in examples] == ["0", "2"]
    assert "skipped 2 rows with too few cells, the first in line 3" in caplog.text


def test_empty_texts_are_kept_and_counted(tmp_path, caplog):
    tiny.write(tmp_path / "SST-2/train.tsv", "sentence\tlabel\n\t1\ngood\t1\n \t0\n")
    assert len(glue.read_glue("sst-2", tmp_path, "train")) == 3
    assert "train.tsv: 2 examples have an empty text; they are kept" in caplog.text


def test_mnlis_tasks_are_one_and_others_of_glue_are_not():
    pairs = {("cola", "sst-2"): True, ("mnli", "rte"): True, ("mismnli", "ax"): False}
    pairs |= {("mnli", "ax"): False, ("cola", "cola"): False, ("cola", "classification"): False}
    assert {pair: glue.are_two(*pair) for pair in pairs} == pairs
