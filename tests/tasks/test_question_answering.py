"""SQuAD's tasks: windows as rows and back, answers, the release's files, ensembles."""

import dataclasses
import json

import numpy as np
import pytest

from albert_tf.tasks import metrics, question_answering, squad_text
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.question_answering import Predictions, answer_texts, rows_of
from albert_tf.tasks.squad_text import Answer, SquadExample
from tests.kit import goldens, tiny, tolerances

EXAMPLES = [
    SquadExample("x", "Who?", "The cat sat.", (Answer("cat", 4),), False),
    SquadExample("y", "Why?", "The cat sat.", (), True),
]


def task_of(version: str, tokenizer=None, **changes):
    given = {"max_seq_length": 64, "doc_stride": 20, "max_query_length": 12, "n_best_size": 6}
    given |= {"max_answer_length": 12, "start_n_top": 4, "end_n_top": 3, **changes}
    return tiny.task(f"squad_{version}", tokenizer, **given)


def predicted(golden, version: str, file: str):
    """Returns the examples, the task, and its predictions from the release's outputs."""
    examples = squad_text.read_squad(golden / f"features/squad_{version}_dev.json")
    windows = goldens.squad_windows(golden, version)
    rows = goldens.squad_rows(golden, version, "dev")
    outputs = goldens.arrays(golden / "squad_eval" / file)
    assert [row["unique_id"] for row in rows] == outputs["unique_id"].tolist()
    del outputs["unique_id"]
    found = [(*w, output) for w, output in zip(windows, rows_of(outputs), strict=True)]
    task = task_of(version)
    return examples, task, squad_text.predict(task.kind, examples, found)


@pytest.mark.parametrize(("version", "file"), [("v1", "v1_logits.npz"), ("v2", "v2_results.npz")])
def test_files_are_the_releases(golden, tmp_path, version, file):
    """Answers below the best threshold too; where "f1" differs, see scores."""
    examples, task, predictions = predicted(golden, version, file)
    task.write(str(tmp_path), "test", examples, predictions)
    written = json.loads((tmp_path / "predictions.json").read_text())
    assert written == goldens.squad_answers(golden, f"{version}_predictions")
    nbest = json.loads((tmp_path / "nbest_predictions.json").read_text())
    expected = goldens.squad_answers(golden, f"{version}_nbest_predictions")
    assert list(nbest) == list(expected)
    for qas_id, entries in expected.items():
        for mine, entry in zip(nbest[qas_id], entries, strict=True):
            assert list(mine) == list(entry)
            assert mine == pytest.approx(entry, abs=tolerances.METRIC)
    scores = task.scores(examples, predictions)
    if version == "v1":
        assert scores == pytest.approx(goldens.squad_answers(golden, "results")["v1"])
        assert not (tmp_path / "null_odds.json").exists()
        return
    odds = json.loads((tmp_path / "null_odds.json").read_text())
    assert odds == predictions.null_odds == goldens.squad_answers(golden, "v2_null_odds")
    assert predictions.texts == goldens.squad_answers(golden, "v2_predictions_no_threshold")

    results, gold = goldens.squad_answers(golden, "results"), answer_texts(examples)
    before, final = results["v2_before_threshold"], results["v2"]
    exact, f1s = metrics.squad_v2_raw_scores(predictions.texts, gold)
    assert exact == before["exact"] and f1s == pytest.approx(before["f1"])
    assert {name: scores[name] for name in before["best"]} == pytest.approx(before["best"])
    assert scores["best_f1_thresh"] == pytest.approx(final["null_score_diff_threshold"])
    # The release takes null odds above 1 for "no answer", whatever the threshold.
    as_released = metrics.squad_v2_scores(written, odds, gold, 1.0)
    for name in ("exact", "f1", "total"):
        assert as_released[name] == pytest.approx(final[name])


def test_windows_survive_as_rows(golden, tokenizer):
    examples = squad_text.read_squad(golden / "features/squad_v2_dev.json")
    rows = list(task_of("v2", tokenizer).rows(examples, False))
    restored = list(question_answering._rows(FeatureTable.from_rows(rows)))
    assert len(rows) == len(restored) > len(examples)
    for row, other in zip(rows, restored, strict=True):
        for name, value in row.items():
            np.testing.assert_array_equal(other[name], value)


def test_scores_of_v2_are_those_of_predictions_json():
    """Null odds above 1 cost nothing; by the release's rule, no question would be answered."""
    predictions = Predictions({"x": "cat", "y": "sat"}, {}, {"x": 3.0, "y": 5.0})
    task = task_of("v2")
    assert task.final_texts(EXAMPLES, predictions) == {"x": "", "y": ""}
    scores = task.scores(EXAMPLES, predictions)
    assert scores["best_f1"] == 100 and scores["best_f1_thresh"] == 3.0
    # As released: the question at the threshold itself is not answered.
    assert (scores["f1"], scores["HasAns_f1"], scores["NoAns_f1"]) == (50, 0, 100)


def test_a_threshold_found_elsewhere_is_kept():
    """The threshold is not the best for these questions, 3.0, but that is still reported."""
    task = task_of("v2")
    predictions = Predictions({"x": "cat", "y": "sat"}, {}, {"x": 3.0, "y": 5.0})
    tuned = task.tuned(predictions, {"best_f1_thresh": 6.0, "f1": 7.0})
    assert task.final_texts(EXAMPLES, tuned) == {"x": "cat", "y": "sat"}
    scores = task.scores(EXAMPLES, tuned)
    assert (scores["f1"], scores["HasAns_f1"], scores["NoAns_f1"]) == (50, 100, 0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (100, 3.0)
    assert task.tuned(predictions, {}) == predictions
    assert task_of("v1").tuned(predictions, {"f1": 7.0}) == predictions


def test_the_threshold_is_that_of_the_best_f1():
    """Answers that are only partly right raise F1, but not the exact match."""
    examples = [dataclasses.replace(EXAMPLES[0], qas_id=name) for name in "xz"] + EXAMPLES[1:]
    texts = {"x": "cat sat", "z": "cat sat", "y": "sat"}
    predictions = Predictions(texts, {}, {"x": 1.0, "z": 2.0, "y": 3.0})
    task = task_of("v2")
    scores = task.scores(examples, predictions)
    assert scores["best_exact_thresh"] < 1.0 < scores["best_f1_thresh"] == 2.0
    assert task.final_texts(examples, predictions) == {"x": "cat sat", "z": "", "y": ""}


def test_without_labels_the_threshold_is_zero():
    unlabelled = [SquadExample(name, "Who?", "The cat.", (), False) for name in "xy"]
    predictions = Predictions({"x": "cat", "y": "The"}, {}, {"x": -0.5, "y": 0.5})
    assert task_of("v2").final_texts(unlabelled, predictions) == {"x": "cat", "y": ""}
    assert task_of("v2").scores(unlabelled, predictions) == {}
    assert task_of("v1").scores(unlabelled, predictions) == {}


def entries(**probabilities: float) -> list[dict]:
    return [
        {"text": text, "probability": value, "start_log_prob": 0.0, "end_log_prob": 0.0}
        for text, value in probabilities.items()
    ]


def test_an_ensemble_averages_spans_and_null_odds(tmp_path):
    """A span counts as 0 in models that lack it: "cat" has 0.4 on average, "sat" 0.35."""
    task, folders = task_of("v2", n_best_size=2), []
    nbests = [
        {"x": entries(sat=0.6, cat=0.4), "y": entries(The=1.0)},
        {"x": entries(the=0.5, cat=0.4, sat=0.1), "y": entries(The=1.0)},
    ]
    all_odds = ({"x": 1.0, "y": -2.0}, {"x": 0.0, "y": 3.0})
    for name, nbest, odds in zip("ab", nbests, all_odds, strict=True):
        (tmp_path / name).mkdir()
        folders.append(str(tmp_path / name))
        texts = {qas_id: found[0]["text"] for qas_id, found in nbest.items()}
        task.write(folders[-1], "test", EXAMPLES, Predictions(texts, nbest, odds))
    mean = task.average(folders, "test", EXAMPLES)
    assert mean.texts == {"x": "cat", "y": "The"}
    assert mean.null_odds == {"x": 0.5, "y": 0.5}
    assert [entry["text"] for entry in mean.nbest["x"]] == ["cat", "sat"]
    assert [entry["probability"] for entry in mean.nbest["x"]] == pytest.approx([0.4, 0.35])
    with pytest.raises(ValueError, match="a/nbest_predictions.json has other questions"):
        task.average(folders, "test", EXAMPLES[:1])
    with pytest.raises(FileNotFoundError, match="dev_nbest_predictions.json does not exist"):
        task.average(folders, "dev", EXAMPLES)
    for damaged, message in (("{", " is not JSON"), ("[]", " has other questions")):
        (tmp_path / "b" / "null_odds.json").write_text(damaged)
        with pytest.raises(ValueError, match=f"b/null_odds.json{message}"):
            task.average(folders, "test", EXAMPLES)


def test_what_no_window_shows_has_no_answer():
    """Where there must be an answer, it is "empty"."""
    nothing = [SquadExample("none", "what?", " ", (), False)]
    predictions = squad_text.predict(task_of("v2").kind, nothing, [])
    assert predictions.null_odds == {"none": 1_000_000.0} and predictions.texts == {"none": ""}
    predictions = squad_text.predict(task_of("v1").kind, nothing, [])
    assert predictions.null_odds == {} and predictions.texts == {"none": "empty"}
