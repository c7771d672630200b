"""run_finetune.py on tables of one's own: several labels, questions, and how the best is found."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import checkpoint
from albert_tf.conversion import labels as labels_file
from albert_tf.conversion.stored import Stored
from albert_tf.serving import description, trained
from albert_tf.tasks.classification import SequenceClassificationTask
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.multilabel import MultiLabelTask
from albert_tf.tasks.question_answering import SquadV1Task, SquadV2Task
from albert_tf.tasks.squad_predictions import Predictions, SquadSettings
from albert_tf.tasks.squad_text import Answer, SquadExample, read_squad
from albert_tf.training.evaluation import Trial
from tests import finetune_runs as runs
from tests import tolerances

TEXTS = ("the cat sat on the mat", "a dog", "no text is like another", "the end of it, at last")


def write_table(folder: pathlib.Path, labels: tuple[str, ...]) -> dict[str, pathlib.Path]:
    """Writes a table of texts and labels, and one to predict; returns their flags."""
    rows = [f'"{text}",{label}' for text, label in zip(TEXTS, labels, strict=True)]
    (folder / "train.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (folder / "test.csv").write_text("\n".join(["text", *(f'"{text}"' for text in TEXTS)]) + "\n")
    return {
        "data_dir": None,
        "train_file": folder / "train.csv",
        "eval_file": folder / "train.csv",
        "predict_file": folder / "test.csv",
        "train_batch_size": 4,
    }


def test_texts_with_several_labels_in_windows(tmp_path):
    files = write_table(tmp_path, ("b|a", "", "c", "a|c"))
    windows = {"windows": "max", "max_seq_length": 8, "doc_stride": 3}
    command = runs.command("multilabel", tmp_path, train_step=2, **files, **windows)
    exported = tmp_path / "exported"
    runs.main([*command, "--do_train", "--do_eval", "--do_predict", f"--export_dir={exported}"])
    out = tmp_path / "out"
    assert labels_file.read(str(out)) == ("a", "b", "c")
    results = (out / "eval_results.txt").read_text()
    for name in ("macro_f1", "mean_average_precision", "micro_f1", "subset_accuracy"):
        assert f"\n{name} = " in results
    shares = np.loadtxt(out / "test_results.tsv")
    assert ((shares > 0) & (shares < 1)).all() and not np.allclose(shares.sum(axis=1), 1)
    joined = ["|".join(np.array(["a", "b", "c"])[row >= 0.5]) for row in shares]
    lines = [f"{i + 2}\t{label}" for i, label in enumerate(joined)]
    assert (out / "predictions.tsv").read_text().splitlines()[1:] == lines
    serve = tf.saved_model.load(str(exported)).signatures["serving_default"]
    answers = serve(text=tf.constant(TEXTS))
    np.testing.assert_allclose(answers["probabilities"], shares, rtol=0, atol=tolerances.SUBLAYER)
    assert [label.decode() for label in answers["label"].numpy()] == joined
    # A later export needs none of the run's flags.
    served = trained.serve("classify", Stored(str(out / "model.ckpt-best")), {})
    answers = served.answer_texts(text=tf.constant(TEXTS))
    np.testing.assert_allclose(answers["probabilities"], shares, rtol=0, atol=tolerances.SUBLAYER)
    assert served.multilabel and served.max_seq_length == 8
    # Windows are not forced on whoever trains with them and exports without.
    flags = {**files, "max_seq_length": 8, "export_dir": tmp_path / "cut"}
    runs.main(runs.command("multilabel", tmp_path, do_predict=True, **flags))
    assert description.read(str(tmp_path / "cut" / "serving.json"))[2].get("windows") is None


# --- questions ------------------------------------------------------------------------------


def flat(version: str, split: str) -> list[dict]:
    """Rows of questions as in Hugging Face's data sets, from SQuAD's JSON."""
    content = json.loads((runs.GOLDEN / f"features/squad_{version}_{split}.json").read_text())
    rows = []
    for paragraph in (each for article in content["data"] for each in article["paragraphs"]):
        for question in paragraph["qas"]:
            answers = question.get("answers", [])
            lists = {name: [each[name] for each in answers] for name in ("text", "answer_start")}
            row = {"id": question["id"], "title": "", "question": question["question"]}
            rows.append({**row, "context": paragraph["context"], "answers": lists})
    return rows


def write_lines(path: pathlib.Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("split", ["train", "dev"])
def test_flat_questions_are_those_of_squad(tmp_path, version, split):
    rows = flat(version, split)
    expected = read_squad(runs.GOLDEN / f"features/squad_{version}_{split}.json")
    assert read_squad(write_lines(tmp_path / "t.jsonl", rows)) == expected


def test_flat_questions_in_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the package of albert_tf[parquet]")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = flat("v2", "dev")
    path = str(tmp_path / "t.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert read_squad(path) == read_squad(runs.GOLDEN / "features/squad_v2_dev.json")
    without = [{name: row[name] for name in ("id", "question", "context")} for row in rows]
    parquet.write_table(pyarrow.Table.from_pylist(without), path)
    unlabelled = read_squad(path)
    assert len(unlabelled) == len(rows)
    assert not any(each.answers or each.is_impossible for each in unlabelled)


GOOD = {"id": 1, "question": "Who?", "context": "A cat.", "answers": None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, "t.jsonl:2: expected an object whose 'id' is a string or an integer"),
        ({"id": 1}, "t.jsonl: question 1 occurs twice"),
        ({"question": 5}, "question 2: expected an object whose 'question' is a string, got 5"),
        ({"context": None}, "t.jsonl:2: expected an object whose 'context' is a string, got not"),
        ({"answers": ["cat"]}, "t.jsonl:2: expected an object whose 'text' is a list, got"),
        (
            {"answers": {"text": ["a"], "answer_start": []}},
            ":2: expected as many answer_start as text, got 0 and 1",
        ),
        ({"answers": {"text": ["a"], "answer_start": ["2"]}}, "'answer_start' is an integer"),
        ({"answers": {"text": ["cat"], "answer_start": [4]}}, "the answer 'cat' at character 4 is"),
    ],
)
def test_bad_questions_are_named(tmp_path, change, message):
    path = write_lines(tmp_path / "t.jsonl", [GOOD, {**GOOD, "id": 2, **change}])
    with pytest.raises(ValueError, match=message):
        read_squad(path)


def test_questions_of_a_table_train_either_model(tmp_path):
    files = {
        "train_file": write_lines(tmp_path / "train.jsonl", flat("v2", "train")),
        "predict_file": write_lines(tmp_path / "dev.jsonl", flat("v2", "dev")),
    }
    changes = {**files, "data_dir": None, "train_step": 1, "warmup_step": None}
    command = runs.command("question_answering", tmp_path, **{**runs.SQUAD, **changes})
    with pytest.raises(SystemExit, match="has no answer, but question_.*: set --allow_no_answer$"):
        runs.main([*command, "--do_train"])
    runs.main([*command, "--do_train", "--do_predict", "--allow_no_answer"])
    out = tmp_path / "out"
    assert list(json.loads((out / "null_odds.json").read_text())) == [
        row["id"] for row in flat("v2", "dev")
    ]
    assert not (out / "eval_results.txt").exists()  # The file to predict chooses no checkpoint.
    assert "best_f1_thresh = " in (out / "test_scores.txt").read_text()
    with pytest.raises(
        SystemExit, match="--allow_no_answer applies only to --task_name=question_ans"
    ):
        runs.main(runs.command("squad_v1", tmp_path, do_train=True, allow_no_answer=True))


def test_the_model_ranks_more_positions_than_short_questions_have(tmp_path):
    """Batches are as long as that, at the least."""
    rows = [
        {"id": str(i), "question": "Who?", "context": "A cat.", "answers": answers}
        for i, answers in enumerate(
            [{"text": [], "answer_start": []}, {"text": ["cat"], "answer_start": [2]}]
        )
    ]
    files = {"train_file": write_lines(tmp_path / "a.jsonl", rows), "data_dir": None}
    changes = {**files, "predict_file": files["train_file"], "train_step": 1, "train_batch_size": 2}
    command = runs.command("question_answering", tmp_path, **{**runs.SQUAD, **changes})
    more = ["--allow_no_answer", "--static_lengths=6", "--start_n_top=20", "--end_n_top=20"]
    runs.main([*command, "--do_train", "--do_predict", *more])
    assert set(json.loads((tmp_path / "out/null_odds.json").read_text())) == {"0", "1"}


def test_defaults_are_those_of_the_model():
    mine = runs.parse(["--task_name=question_answering"])
    runs.finetune_flags.set_task_defaults(mine)
    assert (mine.static_lengths, mine.dropout_prob, mine.max_seq_length) == (1, 0.0, 384)
    mine = runs.parse(["--task_name=question_answering", "--allow_no_answer", "--do_predict"])
    runs.finetune_flags.set_task_defaults(mine)
    assert (mine.static_lengths, mine.dropout_prob, mine.do_eval) == (6, 0.1, False)


@pytest.mark.parametrize("own", [[], ["--eval_file=dev.jsonl"]])
def test_the_best_is_not_chosen_by_your_own_file_to_predict(own):
    """The release chooses SQuAD's by it."""
    for task, expected in (("squad_v1", True), ("question_answering", bool(own))):
        mine = runs.parse([f"--task_name={task}", "--do_predict", "--predict_file=a.json", *own])
        runs.finetune_flags.set_task_defaults(mine)
        assert mine.do_eval == expected


# --- weights of classes, the key metric, early stopping -----------------------------------------


def test_a_run_without_progress_ends_early_and_goes_on_with_its_count(tmp_path, caplog):
    """At this rate nothing changes: the first evaluation is the best, and two more are enough."""
    files = write_table(tmp_path, ("a", "b", "a", "a"))
    changes = {"learning_rate": 1e-12, "key_metric": "macro_f1", "class_weights": "balanced"}
    changes |= {"early_stopping_patience": 2, "export_dir": tmp_path / "exported"}
    command = runs.command("classification", tmp_path, **files, **changes)
    command += ["--do_train", "--do_eval", "--do_predict"]
    out = tmp_path / "out"
    with caplog.at_level("INFO", logger="absl"):
        # Ends at step 5, as if a signal had stopped it there: that evaluation doesn't count.
        runs.main([*command, "--train_step=5", "--export_dir="])
        assert "class weights: a 0.6667, b 2" in caplog.text
        assert Trial.read(str(out)).last_step == 5 and "stopped early" not in caplog.text
        runs.main([*command, "--train_step=100"])
    assert "stopped early: 2 evaluations without a better macro_f1" in caplog.text
    trial = Trial.read(str(out))
    assert (trial.last_step, trial.best_step) == (6, 2)
    assert f"macro_f1 = {trial.best_value}\n" in (out / "eval_results.txt").read_text()
    best = checkpoint.read(str(out / "model.ckpt-best"))
    assert best["global_step"] == 2
    before = (out / "predictions.tsv").read_text()
    runs.main([*command, "--train_step=100"])
    assert Trial.read(str(out)) == trial
    assert (out / "predictions.tsv").read_text() == before
    with pytest.raises(SystemExit, match="was not chosen by --key_metric eval_loss: continue with"):
        runs.main([*command, "--key_metric=eval_loss"])


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        (
            "classification",
            {"key_metric": "f2"},
            "--key_metric of class.* must be one of eval_accuracy, macro_f1, f1, matthew_",
        ),
        (
            "squad_v2",
            {"key_metric": "x"},
            "--key_metric of squad_v2 must be one of exact, f1, best_exact, bes",
        ),
        ("classification", {"class_weights": "c=1"}, "--class_weights must be .* each of a, b"),
        (
            "regression",
            {"class_weights": "balanced"},
            "tasks with one class per text, not to regression",
        ),
        (
            "multilabel",
            {"class_weights": "balanced"},
            "tasks with one class per text, not to multilabel",
        ),
        (
            "classification",
            {"class_weights": "a=1", "do_train": None},
            "training loss: set --do_train too",
        ),
        (
            "classification",
            {"early_stopping_patience": 2},
            "evaluations during training: set --do_train and --do_e",
        ),
        ("classification", {"early_stopping_patience": 0}, "0 is not a positive integer"),
        (
            "classification",
            {"windows": "median"},
            "value should be one of <mean|max>",
        ),
        (
            "classification",
            {"windows": "max", "text_pair_column": "b"},
            "of single texts: leave it",
        ),
        (
            "squad_v2",
            {"windows": "max"},
            "--windows applies only to classification, multilabel and regre",
        ),
    ],
)
def test_bad_flags_of_training_are_named(tmp_path, task, changes, message):
    labels = ("1", "2", "1", "1") if task == "regression" else ("a", "b", "a", "a")
    files = {} if task == "squad_v2" else write_table(tmp_path, labels)
    changes = {"do_train": True, **changes}
    changes |= {} if changes["do_train"] else {"do_predict": True}
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        runs.main(runs.command(task, tmp_path, **files, **changes))


def test_every_metric_that_may_be_named_is_reported():
    texts = [TextExample(str(i), "a", None, label) for i, label in enumerate((0, 1, 1))]
    several = [TextExample(str(i), "a", None, labels) for i, labels in enumerate(((0,), (), (1,)))]
    shares = np.array([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]])
    for task, examples in (
        (SequenceClassificationTask(None, None, 9, "ab"), texts),
        (SequenceClassificationTask(None, None, 9, ()), texts),
        (MultiLabelTask(None, None, 9, "ab"), several),
    ):
        assert set(task.scores(examples, shares)) == set(task.metric_names)
    answer = Answer("cat", 2)
    questions = [SquadExample("1", "who?", "a cat", (answer,), False)]
    found = Predictions({"1": "cat"}, {"1": []}, {"1": -1.0})
    for squad in (SquadV1Task, SquadV2Task):
        task = squad(SquadSettings(), None, None, 9)
        assert set(task.metric_names) <= set(task.scores(questions, found))
        assert task.key_metric in task.metric_names
