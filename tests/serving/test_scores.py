"""The scores that an export reports, on files made so that the right scores are known."""

import csv
import json

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.answers.classify import Classify
from albert_tf.cli import export as export_command
from albert_tf.serving import predict
from albert_tf.serving.scores import Evaluation
from albert_tf.serving.settings import ExportSettings
from tests.kit.served_tasks import KINDS, LONG, make, store
from tests.kit.tiny import run_main

pytestmark = pytest.mark.usefixtures("eager")
# They aren't in the order of their lengths, and one, with a line end, can't be a line of input.
TEXTS = (LONG, "one\ttwo\nthree", "yes")


@pytest.fixture(scope="module")
def predictor(vocabulary):
    return lambda kind: predict.from_model(make(kind, vocabulary))


def write_csv(path, header, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def evaluation(kind, path, **columns):
    given = {"model": "x", "task": kind.task, "export_dir": "y", "eval_file": str(path)}
    return Evaluation.read(kind, ExportSettings.of(**given, **columns))


def scored(asked, inputs, labels, path, *names, **columns):
    rows = [[*each, label] for each, label in zip(inputs, labels, strict=True)]
    label_column = columns.get("label_column", "label")
    path = write_csv(path, [*names, label_column], rows)
    return evaluation(asked.kind, path, **columns)(asked.outputs)


def test_texts(predictor, tmp_path):
    asked, texts = predictor("classify"), [*zip(TEXTS, ("a cat", "four", LONG), strict=True)]
    classes = [asked.kind.labels[each["probabilities"].argmax()] for each in asked.outputs(texts)]
    # The last one is wrong, at any threshold.
    classes[-1] = next(name for name in asked.kind.labels if name != classes[-1])
    columns = {"text_column": "one", "text_pair_column": "two", "label_column": "gold"}
    scores = scored(asked, texts, classes, tmp_path / "dev.csv", "one", "two", **columns)
    assert scores["eval_accuracy"] == pytest.approx(2 / 3)
    assert set(scores) == {"eval_accuracy", "macro_f1", "f1", "matthew_corr", "eval_loss"}


def test_texts_of_any_number_of_labels(predictor, tmp_path):
    kind = Classify(labels=("no", "yes"), multilabel=True, max_seq_length=16)
    asked, texts = predictor(kind), [[text] for text in TEXTS]
    has = [each["probabilities"] >= 0.5 for each in asked.outputs(texts)]
    # All labels of the last one are wrong.
    has[-1] = ~has[-1]
    labels = ["|".join(np.array(kind.labels)[row]) for row in has]
    scores = scored(asked, texts, labels, tmp_path / "dev.csv", "text")
    assert scores["subset_accuracy"] == pytest.approx(2 / 3)
    names = {"micro_f1", "macro_f1", "subset_accuracy", "mean_average_precision", "eval_loss"}
    assert set(scores) == names


def test_numbers(predictor, tmp_path):
    asked, texts = predictor("mean_number"), [[text] for text in TEXTS]
    numbers = [-2 * float(each["score"]) for each in asked.outputs(texts)]
    scores = scored(asked, texts, numbers, tmp_path / "dev.csv", "text")
    assert scores["pearson"] == pytest.approx(-1)


def test_choices(predictor, tmp_path):
    asked = predictor("choose")
    texts = [["a story", "one", "two"], ["two stories", LONG, "none"]]
    first, second = (int(each["choice"]) for each in asked.outputs(texts))
    given = (asked, texts, (first, 1 - second), tmp_path / "dev.csv", "text", "a", "b")
    assert scored(*given, choice_columns=("a", "b"))["eval_accuracy"] == 0.5


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


CONTEXTS = (LONG, "Emma drew maps; Otto baked.")


def test_answers(predictor, tmp_path):
    asked = predictor("answer_v1")
    first, second = (each["answer"] for each in asked.outputs([["who?", c] for c in CONTEXTS]))
    wrong = next(w for w in ("Emma", "maps", "Otto", "baked") if w not in second)
    path = write_squad(tmp_path / "a.json", zip(CONTEXTS, (first, wrong), strict=True))
    assert evaluation(asked.kind, path)(asked.outputs) == {"exact_match": 50.0, "f1": 50.0}


@pytest.mark.parametrize("name", ["answer_v2", "linear"])
def test_answers_that_may_be_none(name, predictor, tmp_path):
    asked = predictor(name)
    outputs = asked.outputs([["who?", context] for context in CONTEXTS])
    answers = (outputs[0]["answers"][0], None)
    path = write_squad(tmp_path / "b.json", zip(CONTEXTS, answers, strict=True))
    found = evaluation(asked.kind, path)(asked.outputs)
    # A threshold between their null odds makes both right, if the answered one's are lower.
    answered, impossible = (each["null_odds"] for each in outputs)
    assert found["best_exact"] == (100.0 if answered < impossible else 50.0)
    assert export_command._table_of(found, found).count("\n") == len(found)


QUESTION = '{"context": "Cats sleep.", "qas": [{"id": "q", "question": "who?"}]}'
UNLABELLED = f'{{"data": [{{"paragraphs": [{QUESTION}]}}]}}'
ANSWER = '"answers": [{"text": "Cats", "answer_start": 0}]}, {"id": "r", "question": "?"}'
PAIRS = {"text_pair_column": "b"}
HALF = UNLABELLED.replace('"who?"}', f'"who?", {ANSWER}')


@pytest.mark.parametrize(
    ("name", "columns", "content", "noun"),
    [
        ("fill_mask", {}, "", "`eval_file`"),
        ("tag", {}, "", "`eval_file`"),
        ("classify", {}, "", "pairs.*`text_pair_column`"),
        ("labels", PAIRS, "", "single texts.*`text_pair_column`"),
        ("choose", {}, "", "`choice_columns`"),
        ("classify", PAIRS, "text,b,label\na,b,maybe\n", "dev.csv:2: label 'maybe'"),
        ("answer_v1", {}, UNLABELLED, "dev.json.*no answers"),
        ("answer_v1", {}, HALF, "question r"),
    ],
)
def test_what_cannot_be_scored_is_said(tmp_path, name, columns, content, noun):
    file = tmp_path / ("dev.json" if name == "answer_v1" else "dev.csv")
    file.write_text(content)
    with pytest.raises(ValueError, match=noun):
        evaluation(KINDS[name], file, **columns)


def test_the_first_lines_are_examples(predictor, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("one\ttwo\n\nthree\tfour\nalone\n")
    rows = (("one", "two"), ("three", "four"))
    assert export_command._examples(str(path), predictor("classify")) == rows
    path.write_text("\n")
    with pytest.raises(ValueError, match="texts.txt: expected lines of text, got none"):
        export_command._examples(str(path), predictor("classify"))
    path.write_text("one\ttwo\nalone\n")
    with pytest.raises(ValueError, match="texts.txt:2: expected text_a and text_b"):
        export_command._examples(str(path), predictor("classify"))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (0.8, 0.797, None),
        (0.8, 0.79, "loses 1.0 points of f1"),
        (80.0, 79.6, None),
        (80.0, 79.2, "0.8 points"),
        (-0.01, 0.2, None),
    ],
)
def test_more_than_half_a_point_is_a_loss(before, after, said, caplog):
    export_command._warn_of_loss(before, after, "f1")
    assert (said or "loses") in caplog.text if said else not caplog.text


@pytest.mark.slow
def test_the_command_reports_both(vocabulary, tmp_path, capsys, caplog, monkeypatch):
    prefix = store(tmp_path, Classify(labels=("no", "yes"), max_seq_length=64), vocabulary)
    rows = [[f"text {i}", ("no", "yes")[i % 2]] for i in range(6)]
    dev = write_csv(tmp_path / "dev.csv", ["text", "label"], rows)
    arguments = ["--model", prefix, "--task", "classify", "--format", "tflite"]
    arguments += ["--export_dir", str(tmp_path / "exported")]
    with pytest.raises(SystemExit, match="dev.csv:1: expected a header with 'gold', each once"):
        run_main(export_command.main, [*arguments, "--eval_file", dev, "--label_column", "gold"])
    assert not (tmp_path / "exported").exists()
    capsys.readouterr()
    tf.config.run_functions_eagerly(False)
    (tmp_path / "texts.txt").write_text("warm\tfilm\n\ncold\nlate\n")
    arguments += ["--description", "It reads films.", "--examples_file", f"{tmp_path}/texts.txt"]
    run_main(export_command.main, [*arguments, "--eval_file", dev])
    header, *lines = capsys.readouterr().out.splitlines()
    assert any(f"{tmp_path}/exported: tflite that takes features" in m for m in caplog.messages)
    assert header.split() == ["before", "after"]
    table = {name: (float(before), float(after)) for name, before, after in map(str.split, lines)}
    assert list(table) == [*("eval_accuracy", "macro_f1", "f1", "matthew_corr", "eval_loss")]
    exported = predict.load_exported(str(tmp_path / "exported"))
    assert exported.about == ("It reads films.", (("warm\tfilm",), ("cold",)))
    answers = exported([text for text, _ in rows])
    right = [answer["label"] == row[1] for answer, row in zip(answers, rows, strict=True)]
    assert table["eval_accuracy"][1] == pytest.approx(np.mean(right), abs=1e-4)
    for before, after in table.values():
        assert before == pytest.approx(after, abs=2e-4)
    # The score in the column "after" is that of the file.
    monkeypatch.setattr(predict, "load_exported", lambda path: Wrong())
    monkeypatch.setattr("albert_tf.serving.other_formats.save", lambda *_: "nothing is written")
    arguments[arguments.index("--export_dir") + 1] = str(tmp_path / "again")
    run_main(export_command.main, [*arguments, "--eval_file", dev])
    _, accuracy, *_ = capsys.readouterr().out.splitlines()
    assert float(accuracy.split()[1]) == table["eval_accuracy"][0] != 0
    assert float(accuracy.split()[2]) == 0
    assert any("points of eval_accuracy" in message for message in caplog.messages)


class Wrong:
    """A model that gives each text of the file the wrong label."""

    def outputs(self, rows):
        seconds = [1.0 - int(text[-1]) % 2 for (text,) in rows]
        return [{"probabilities": np.array([1 - second, second])} for second in seconds]
