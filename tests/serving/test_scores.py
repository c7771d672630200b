"""The scores that an export reports, on files made so that they are known."""

import csv
import json

import numpy as np
import pytest

import albert_tf
from albert_tf import export
from albert_tf.serving import export as export_command
from albert_tf.serving import predict
from albert_tf.tasks.table import TableSettings
from tests import goldens, tiny
from tests.served_tasks import LONG, make
from tests.tiny import randomise, run_main

COLUMNS = TableSettings()


@pytest.fixture(scope="module")
def served(vocabulary):
    tasks = ("classify", "choose", "answer_v1", "answer_v2", "fill_mask")
    return {task: make(task, vocabulary) for task in tasks}


def write_csv(path, header, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def test_texts(served, tmp_path):
    model = served["classify"]
    predictor = predict.from_text(model)
    # Of other lengths than their order, and with what can't be typed into a line.
    texts = [[LONG, "a cat"], ["one\ttwo\nthree", "four"], ["yes", LONG]]
    chosen = predictor.outputs(texts)["probabilities"].argmax(axis=1)
    # The last one is wrong.
    classes = [model.labels[i] for i in [*chosen[:2], 1 - chosen[2]]]
    rows = [[*pair, label] for pair, label in zip(texts, classes, strict=True)]
    path = write_csv(tmp_path / "dev.csv", ["one", "two", "gold"], rows)
    columns = TableSettings(text_column="one", text_pair_column="two", label_column="gold")
    found = model.evaluation(path, columns)(predictor.outputs)
    assert found["eval_accuracy"] == pytest.approx(2 / 3)
    assert set(found) == {"eval_accuracy", "macro_f1", "f1", "matthew_corr", "eval_loss"}


def test_texts_of_any_number_of_labels(served, tmp_path):
    config = goldens.config("base", vocab_size=6000, num_hidden_layers=1)
    model = export.Classifier(
        randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=2)),
        served["classify"].vocabulary,
        ("no", "yes"),
        multilabel=True,
        max_seq_length=16,
    )
    predictor = predict.from_text(model)
    texts = [[LONG], ["one\ttwo"], ["three"]]
    has = predictor.outputs(texts)["probabilities"] >= 0.5
    # Nothing of the last one is right.
    has[-1] = ~has[-1]
    joined = ["|".join(np.array(model.labels)[row]) for row in has]
    rows = [[*text, label] for text, label in zip(texts, joined, strict=True)]
    path = write_csv(tmp_path / "dev.csv", ["text", "label"], rows)
    found = model.evaluation(path, COLUMNS)(predictor.outputs)
    assert found["subset_accuracy"] == pytest.approx(2 / 3)
    names = {"micro_f1", "macro_f1", "subset_accuracy", "mean_average_precision", "eval_loss"}
    assert set(found) == names


def test_choices(served, tmp_path):
    predictor = predict.from_text(served["choose"])
    texts = [["a story", "one", "two"], ["two stories", LONG, "none"]]
    chosen = predictor.outputs(texts)["choice"]
    right = [chosen[0], 1 - chosen[1]]
    rows = [[*row, label] for row, label in zip(texts, right, strict=True)]
    path = write_csv(tmp_path / "dev.csv", ["text", "a", "b", "label"], rows)
    columns = TableSettings(choice_columns=("a", "b"))
    found = served["choose"].evaluation(path, columns)(predictor.outputs)
    assert found["eval_accuracy"] == 0.5


def write_squad(path, questions):
    """Writes a question for each paragraph and gold answer; None is for no answer."""
    paragraphs = []
    for number, (paragraph, answer) in enumerate(questions):
        question = {"id": str(number), "question": "who?", "is_impossible": answer is None}
        if answer is not None:
            question["answers"] = [{"text": answer, "answer_start": paragraph.index(answer)}]
        paragraphs.append({"context": paragraph, "qas": [question]})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return str(path)


def test_answers(served, tmp_path):
    predictor = predict.from_text(served["answer_v1"])
    contexts = [LONG, "Emma drew maps; Otto baked."]
    answers = predictor.outputs([["who?", context] for context in contexts])["answer"]
    first, second = (answer.decode() for answer in answers)
    wrong = next(w for w in ("Emma", "maps", "Otto", "baked") if w not in second)
    path = write_squad(tmp_path / "a.json", zip(contexts, (first, wrong), strict=True))
    found = served["answer_v1"].evaluation(path, COLUMNS)(predictor.outputs)
    assert found == {"exact_match": 50.0, "f1": 50.0}


def test_answers_that_may_be_none(served, tmp_path):
    predictor = predict.from_text(served["answer_v2"])
    contexts = [LONG, "Emma drew maps; Otto baked."]
    outputs = predictor.outputs([["who?", context] for context in contexts])
    first = outputs["answers"][0, 0].decode()
    path = write_squad(tmp_path / "b.json", zip(contexts, (first, None), strict=True))
    found = served["answer_v2"].evaluation(path, COLUMNS)(predictor.outputs)
    # Both are right at a threshold between their odds, if that of the answered one is lower.
    answered, impossible = outputs["null_odds"]
    assert found["best_exact"] == (100.0 if answered < impossible else 50.0)
    assert export_command._table_of(found, found).count("\n") == len(found)


QUESTION = '{"context": "Cats sleep.", "qas": [{"id": "q", "question": "who?"}]}'
UNLABELLED = f'{{"data": [{{"paragraphs": [{QUESTION}]}}]}}'


@pytest.mark.parametrize(
    ("task", "columns", "content", "message"),
    [
        ("fill_mask", COLUMNS, "", "`eval_file` applies only to tasks with labels, not to"),
        ("classify", COLUMNS, "", "takes pairs of texts: set `text_pair_column`"),
        ("choose", COLUMNS, "", "needs `choice_columns`"),
        (
            "classify",
            TableSettings(text_pair_column="b"),
            "text,b,label\na,b,maybe\n",
            "dev.csv:2: label 'maybe' is not one of those trained on: no, yes",
        ),
        ("answer_v1", COLUMNS, UNLABELLED, "has no answers to compare with"),
    ],
)
def test_what_cannot_be_scored_is_said(served, tmp_path, task, columns, content, message):
    file = tmp_path / ("dev.json" if task == "answer_v1" else "dev.csv")
    file.write_text(content)
    with pytest.raises(ValueError, match=message):
        served[task].evaluation(str(file), columns)


def test_each_question_of_squad_1_has_an_answer(served, tmp_path):
    path = write_squad(tmp_path / "c.json", [("a cat", "cat"), ("a dog", None)])
    with pytest.raises(ValueError, match="question 1 has no answer, but answer_v1 needs"):
        served["answer_v1"].evaluation(path, COLUMNS)


def test_the_command_reports_both(golden, tmp_path, capsys, caplog, monkeypatch):
    (tmp_path / "spm.model").write_bytes((golden / "spm" / "en_small.model").read_bytes())
    config = goldens.config("base", vocab_size=6000, num_hidden_layers=1)
    model = randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=2))
    prefix = tiny.store(tmp_path, model, ("no", "yes"))
    rows = [[f"text {i}", ("no", "yes")[i % 2]] for i in range(6)]
    dev = write_csv(tmp_path / "dev.csv", ["text", "label"], rows)
    arguments = ["--model", prefix, "--task", "classify", "--format", "tflite"]
    arguments += ["--export_dir", str(tmp_path / "exported")]
    with pytest.raises(SystemExit, match="dev.csv:1: expected a header with 'gold', each once"):
        run_main(export_command.main, [*arguments, "--eval_file", dev, "--label_column", "gold"])
    assert not (tmp_path / "exported").exists()
    capsys.readouterr()
    run_main(export_command.main, [*arguments, "--eval_file", dev])
    header, *lines = capsys.readouterr().out.splitlines()
    assert any(f"{tmp_path}/exported: tflite that takes features" in m for m in caplog.messages)
    assert header.split() == ["before", "after"]
    table = {name: (float(before), float(after)) for name, before, after in map(str.split, lines)}
    assert list(table) == [*("eval_accuracy", "macro_f1", "f1", "matthew_corr", "eval_loss")]
    answers = predict.load_exported(str(tmp_path / "exported"))([text for text, _ in rows])
    right = [answer["label"] == row[1] for answer, row in zip(answers, rows, strict=True)]
    assert table["eval_accuracy"][1] == pytest.approx(np.mean(right), abs=1e-4)
    for before, after in table.values():
        assert before == pytest.approx(after, abs=2e-4)
    # The score after is that of the file.
    monkeypatch.setattr(predict, "load_exported", lambda path: Wrong())
    arguments[-1] = str(tmp_path / "again")
    run_main(export_command.main, [*arguments, "--eval_file", dev])
    _, accuracy, *_ = capsys.readouterr().out.splitlines()
    assert float(accuracy.split()[1]) == table["eval_accuracy"][0] != 0
    assert float(accuracy.split()[2]) == 0


class Wrong:
    """What gives each text of the file the other label."""

    def outputs(self, rows):
        others = [[float(int(text[-1]) % 2), 1.0 - int(text[-1]) % 2] for (text,) in rows]
        return {"probabilities": np.array(others)}
