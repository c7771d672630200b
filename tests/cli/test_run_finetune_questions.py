"""run_finetune.py on one's own questions: file formats, the model's head, the null threshold."""

import contextlib
import json
import pathlib

import numpy as np
import pytest

from albert_tf.answers.span import SpanOrNone
from albert_tf.conversion import layouts
from albert_tf.conversion.convert import convert
from albert_tf.conversion.stored_model import ModelLocation
from albert_tf.serving import served_tasks
from albert_tf.storage import checkpoint, eval_results
from albert_tf.tasks.squad_text import read_squad
from tests.kit import finetune_runs as runs
from tests.kit import tolerances
from tests.kit.files import refused
from tests.kit.served_tasks import in_tensorflow


def flat(version: str, split: str) -> list[dict]:
    """Returns the questions of a SQuAD file as flat rows, as in Hugging Face's data sets."""
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
    expected = read_squad(runs.GOLDEN / f"features/squad_{version}_{split}.json")
    assert read_squad(write_lines(tmp_path / "t.jsonl", flat(version, split))) == expected


def test_flat_questions_in_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the package of albert_tf[parquet]")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{**row, "is_impossible": not row["answers"]["text"]} for row in flat("v2", "dev")]
    rows = [{**row, "answers": None} if row["is_impossible"] else row for row in rows]
    path = str(tmp_path / "t.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert read_squad(path) == read_squad(runs.GOLDEN / "features/squad_v2_dev.json")
    without = [{name: row[name] for name in ("id", "question", "context")} for row in rows]
    parquet.write_table(pyarrow.Table.from_pylist(without), path)
    unlabelled = read_squad(path)
    assert len(unlabelled) == len(rows)
    assert not any(each.answers or each.is_impossible for each in unlabelled)


NONE, CAT = {"text": [], "answer_start": []}, {"text": ["cat"], "answer_start": [2]}
GOOD = {"id": 1, "question": "Who?", "context": "A cat.", "answers": CAT}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, "t.jsonl:2: .*'id'"),
        ({"id": 1}, "t.jsonl: question 1 occurs twice"),
        ({"question": 5}, "question 2: .*'question' is a string, got 5"),
        ({"context": None}, "t.jsonl:2: .*'context' is a string"),
        ({"is_impossible": True}, "question 2 has is_impossible and answers"),
        ({"answers": ["cat"]}, "t.jsonl:2: .*'text' is a string"),
        ({"answers": {"text": ["a"], "answer_start": []}}, ":2: expected as many answer_start as"),
        ({"answers": {"text": ["a"], "answer_start": ["2"]}}, "'answer_start' is an integer"),
        ({"answers": {"text": ["cat"], "answer_start": [4]}}, "'cat' at character 4"),
    ],
)
def test_bad_questions_are_named(tmp_path, change, message):
    path = write_lines(tmp_path / "t.jsonl", [GOOD, {**GOOD, "id": 2, **change}])
    with refused(message, exception=ValueError):
        read_squad(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([{"answers": CAT}, {"answers": NONE}, {}], "t.jsonl:3: the question lacks answers,"),
        ([{"answers": None}, {}, {"answers": NONE}], "t.jsonl:3: the question has answers, unlike"),
        ([{}, {"is_impossible": True}], "t.jsonl:2: .*: label all questions or none "),
        ([{"answers": CAT}, {"answers": None, "is_impossible": 1}], None),
        ([{"answers": None}, {}, {"is_impossible": False}], None),
    ],
)
def test_all_questions_have_answers_or_none(tmp_path, changes, message):
    plain = {"question": "Who?", "context": "A cat."}
    rows = [{"id": i, **plain, **change} for i, change in enumerate(changes)]
    path = write_lines(tmp_path / "t.jsonl", rows)
    with refused(message, exception=ValueError) if message else contextlib.nullcontext():
        assert len(read_squad(path)) == len(rows)


@pytest.mark.slow
def test_a_linear_head_learns_of_no_answer_and_goes_to_hugging_face_and_back(saved, tmp_path):
    changes = {"train_step": 2, "warmup_step": None, "span_head": "linear", "do_train": True}
    changes |= {"do_predict": True, "export_dir": tmp_path / "1", "threshold_to_export": 0.5}
    runs.main(runs.command("squad_v2", tmp_path, **changes))
    out = tmp_path / "out"
    examples = read_squad(runs.GOLDEN / "features/squad_v2_dev.json")
    scores = eval_results.read(str(out), 2)
    assert {"HasAns_f1", "NoAns_f1", "best_f1_thresh"} < scores.keys()
    names = ("predictions", "nbest_predictions", "null_odds")
    answers, nbest, odds = (json.loads((out / f"{name}.json").read_text()) for name in names)
    assert list(odds) == [example.qas_id for example in examples]
    for qas_id, text in answers.items():
        is_answered = odds[qas_id] < scores["best_f1_thresh"]
        assert text == (nbest[qas_id][0]["text"] if is_answered else ""), qas_id
    # The export answers the same, except for its own threshold.
    assert saved[0].kind.null_threshold == 0.5
    kept = [each for each in examples if not each.qas_id.startswith("P-Mismatch")]
    found = in_tensorflow(saved[0]).outputs([[each.question, each.paragraph] for each in kept])
    expected = [odds[each.qas_id] for each in kept]
    found_odds = [each["null_odds"] for each in found]
    np.testing.assert_allclose(found_odds, expected, atol=tolerances.OUTPUT)
    for each in found:
        assert each["answer"] == (each["answers"][0] if each["null_odds"] < 0.5 else "")
    # The round trip keeps every bit, and the served model knows that there may be no answer.
    convert(str(out), "huggingface", str(tmp_path / "there"), drop=["bert/pooler/"])
    convert(str(tmp_path / "there"), "tf1", str(tmp_path / "back"))
    config = json.loads((tmp_path / "there" / "config.json").read_text())
    assert config["architectures"] == ["AlbertForQuestionAnswering"]
    paths = (checkpoint.best(str(out)), str(tmp_path / "back"))
    before, after = (layouts.find(path).read_weights(path) for path in paths)
    assert "cls/squad/output_weights" in after
    for name, value in after.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    again = served_tasks.load_served("answer_v2", ModelLocation(str(tmp_path / "there")), {})
    assert type(again.kind) is SpanOrNone and again.kind.null_threshold == 0


@pytest.mark.slow
def test_the_file_to_evaluate_on_says_from_which_null_odds_there_is_no_answer(tmp_path, eager):
    """It has an answer to each question. The file to predict has none: it would choose 0."""
    questions = ["who sat there?", "the cat", "when?", "it was a house of the king", "why not"]
    plain = [{"id": text, "question": text, "context": "cat"} for text in questions]
    none, right = {"text": [], "answer_start": []}, {"text": ["cat"], "answer_start": [0]}
    dev = write_lines(tmp_path / "dev.jsonl", [{**row, "answers": right} for row in plain])
    test = write_lines(tmp_path / "test.jsonl", [{**row, "answers": none} for row in plain])
    changes = {"train_file": dev, "eval_file": dev, "predict_file": test, "data_dir": None}
    changes |= {"train_step": 1, "warmup_step": None, "allow_no_answer": True, "do_eval": True}
    command = runs.command("question_answering", tmp_path, **{**runs.SQUAD, **changes})
    command.append("--do_predict")
    out = tmp_path / "out"

    def check(folder: pathlib.Path) -> None:
        threshold = eval_results.read(str(out), 1)["best_f1_thresh"]
        odds = json.loads((folder / "null_odds.json").read_text())
        answered = {name for name in questions if odds[name] < threshold}
        assert answered != {name for name in questions if odds[name] < 0}
        texts = json.loads((folder / "predictions.json").read_text())
        assert texts == {name: "cat" if name in answered else "" for name in questions}

    runs.main([*command, "--do_train"])
    check(out)
    assert "best_f1_thresh = 0.0\n" in (out / "test_scores.txt").read_text()
    mean = tmp_path / "mean"
    runs.main([*command, f"--ensemble_dirs={out},{out}", f"--output_dir={mean}"])
    check(mean)
    # Later, eval_results.jsonl gives the best checkpoint's threshold, not the last evaluation's.
    worse = eval_results.Evaluation(2, "f1", {"f1": 0.0, "best_f1_thresh": -1e9})
    eval_results.add(str(out), worse, [])
    new = write_lines(tmp_path / "new.jsonl", plain)
    later = [*command, "--do_eval=false", "--eval_file=", f"--predict_file={new}"]
    runs.main(later)
    check(out)
    named = [f"--init_checkpoint={out}/model.ckpt-best", f"--output_dir={tmp_path}/later"]
    runs.main([*later, *named, "--from_scratch=false"])
    check(tmp_path / "later")


@pytest.mark.usefixtures("counted")
def test_the_model_ranks_more_positions_than_short_questions_have(tmp_path):
    """Batches are padded to at least that many positions."""
    rows = [{**GOOD, "id": i, "answers": answers} for i, answers in enumerate((CAT, NONE))]
    files = {"train_file": write_lines(tmp_path / "a.jsonl", rows), "data_dir": None}
    changes = {**files, "predict_file": files["train_file"], "train_step": 1, "train_batch_size": 2}
    command = runs.command("question_answering", tmp_path, **{**runs.SQUAD, **changes})
    more = ["--allow_no_answer", "--static_lengths=6", "--start_n_top=20", "--end_n_top=20"]
    with refused("has no answer, .*--allow_no_answer$"):
        runs.main([*command, "--do_train"])
    runs.main([*command, "--do_train", "--do_predict", *more])
    assert list(json.loads((tmp_path / "out/null_odds.json").read_text())) == ["0", "1"]
    assert not (tmp_path / "out/eval_results.txt").exists()  # No checkpoint is chosen.
