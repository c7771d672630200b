"""SQuAD's tasks: windows as rows and back, the release's predictions in its files, ensembles."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from albert_tf.tasks import question_answering, squad_text
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.question_answering import Predictions, SquadSettings, SquadV1Task, SquadV2Task
from albert_tf.tasks.squad_text import Answer, SquadExample
from albert_tf.text.tokenization import Tokenizer
from tests import goldens, squad_goldens
from tests.squad_goldens import stored

EXAMPLES = [
    SquadExample("x", "Who?", "The cat sat.", (Answer("cat", 4),), False),
    SquadExample("y", "Why?", "The cat sat.", (), True),
]


def task_of(version: str, n_best_size: int = 6, max_answer_length: int = 12, tokenizer=None):
    squad = SquadSettings(
        doc_stride=20,
        max_query_length=12,
        n_best_size=n_best_size,
        max_answer_length=max_answer_length,
        start_n_top=4,
        end_n_top=3,
    )
    return (SquadV1Task if version == "v1" else SquadV2Task)(squad, None, tokenizer, 64)


def table_of(windows, lengths) -> FeatureTable:
    """Returns windows as rows, without what a model reads."""
    rows = []
    for window, length in zip(windows, lengths, strict=True):
        places = {
            name: question_answering._at_positions(window, name, length)
            for name in ("char_starts", "char_ends", "is_max_context")
        }
        numbers = {"example_index": window.example_index, "doc_offset": window.doc_offset}
        rows.append({"input_ids": np.zeros(length, np.int32), **numbers, **places})
    return FeatureTable.from_rows(rows)


@pytest.mark.parametrize(("version", "file"), [("v1", "v1_logits.npz"), ("v2", "v2_results.npz")])
def test_files_are_the_releases(golden, tmp_path, version, file):
    """Answers below the best threshold too; where "f1" differs, see scores."""
    examples = squad_text.read_squad(golden / f"features/squad_{version}_dev.json")
    windows = squad_goldens.windows(golden, version)
    lengths = [row["paragraph_len"] for row in squad_goldens.rows(golden, version, "dev")]
    outputs = goldens.arrays(golden / "squad_eval" / file)
    task = task_of(version)
    predictions = task.predictions(examples, table_of(windows, lengths), outputs)
    task.write(str(tmp_path), "test", examples, predictions)
    written = json.loads((tmp_path / "predictions.json").read_text())
    assert written == stored(golden, f"{version}_predictions")
    scores = task.scores(examples, predictions)
    if version == "v1":
        assert scores == pytest.approx(stored(golden, "results")["v1"])
        assert not (tmp_path / "null_odds.json").exists()
        return
    odds = json.loads((tmp_path / "null_odds.json").read_text())
    assert odds == stored(golden, "v2_null_odds")
    expected = stored(golden, "results")
    threshold = expected["v2"]["null_score_diff_threshold"]
    assert scores["best_f1_thresh"] == pytest.approx(threshold)
    best = expected["v2_before_threshold"]["best"]
    assert {name: scores[name] for name in best} == pytest.approx(best)


@pytest.mark.parametrize("is_training", [True, False])
def test_windows_survive_as_rows(golden, is_training):
    tokenizer = Tokenizer(golden / "spm/en_small.model")
    split = "train" if is_training else "dev"
    examples = squad_text.read_squad(golden / f"features/squad_v2_{split}.json")
    task = task_of("v2", tokenizer=tokenizer)
    windows = list(squad_text.squad_windows(examples, tokenizer, 64, 20, 12, is_training))
    table = FeatureTable.from_rows(task.rows(examples, is_training))
    restored = question_answering._spans(table)
    assert len(windows) == len(restored) > len(examples)
    for window, other in zip(windows, restored, strict=True):
        assert (window.example_index, window.doc_offset) == (other.example_index, other.doc_offset)
        for name in ("char_starts", "char_ends", "is_max_context"):
            np.testing.assert_array_equal(getattr(other, name), getattr(window, name))
    places = [(window.start_position, window.end_position) for window in windows]
    stored = zip(table.scalars["start_positions"], table.scalars["end_positions"], strict=True)
    assert list(stored) == places
    impossible = [window.is_impossible for window in windows]
    assert table.scalars["is_impossible"].tolist() == impossible
    assert any(impossible) == is_training


def test_scores_of_v2_are_those_of_predictions_json():
    """Null odds of more than 1 lose nothing: by the release's rule no question were answered."""
    predictions = Predictions({"x": "cat", "y": "sat"}, {}, {"x": 3.0, "y": 5.0})
    task = task_of("v2")
    assert task.texts(EXAMPLES, predictions) == {"x": "", "y": ""}
    scores = task.scores(EXAMPLES, predictions)
    assert scores["best_f1"] == 100 and scores["best_f1_thresh"] == 3.0
    # As released: the question at the threshold itself is not answered.
    assert (scores["f1"], scores["HasAns_f1"], scores["NoAns_f1"]) == (50, 0, 100)


def test_a_threshold_found_elsewhere_is_kept():
    """Not the best of these questions, 3.0; what would be best is still told."""
    task = task_of("v2")
    predictions = Predictions({"x": "cat", "y": "sat"}, {}, {"x": 3.0, "y": 5.0})
    tuned = task.tuned(predictions, {"best_f1_thresh": 6.0, "f1": 7.0})
    assert task.texts(EXAMPLES, tuned) == {"x": "cat", "y": "sat"}
    scores = task.scores(EXAMPLES, tuned)
    assert (scores["f1"], scores["HasAns_f1"], scores["NoAns_f1"]) == (50, 100, 0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (100, 3.0)
    assert task.tuned(predictions, {}) == predictions
    assert task_of("v1").tuned(predictions, {"f1": 7.0}) == predictions


def test_the_threshold_is_that_of_the_best_f1():
    """Answers that are only partly right pay by F1 alone."""
    examples = [dataclasses.replace(EXAMPLES[0], qas_id=name) for name in "xz"] + EXAMPLES[1:]
    texts = {"x": "cat sat", "z": "cat sat", "y": "sat"}
    predictions = Predictions(texts, {}, {"x": 1.0, "z": 2.0, "y": 3.0})
    task = task_of("v2")
    scores = task.scores(examples, predictions)
    assert scores["best_exact_thresh"] < 1.0 < scores["best_f1_thresh"] == 2.0
    assert task.texts(examples, predictions) == {"x": "cat sat", "z": "", "y": ""}


def test_other_windows_are_cached_under_other_settings(tokenizer):
    task = task_of("v2")

    def settings(max_seq_length=64, **changes):
        squad = dataclasses.replace(task.squad, **changes)
        return json.dumps(SquadV2Task(squad, None, tokenizer, max_seq_length).settings)

    changes = ({}, {"doc_stride": 21}, {"max_query_length": 13}, {"max_seq_length": 65})
    assert len({settings(**change) for change in changes}) == len(changes)


def test_without_labels_the_threshold_is_zero():
    unlabelled = [SquadExample(name, "Who?", "The cat.", (), False) for name in "xy"]
    predictions = Predictions({"x": "cat", "y": "The"}, {}, {"x": -0.5, "y": 0.5})
    assert task_of("v2").texts(unlabelled, predictions) == {"x": "cat", "y": ""}
    assert task_of("v2").scores(unlabelled, predictions) == {}
    assert task_of("v1").scores(unlabelled, predictions) == {}


def entries(**probabilities: float) -> list[dict]:
    return [
        {"text": text, "probability": value, "start_log_prob": 0.0, "end_log_prob": 0.0}
        for text, value in probabilities.items()
    ]


def test_an_ensemble_averages_spans_and_null_odds(tmp_path):
    """A span counts in the models that lack it as 0: "cat" has 0.4 on average, "sat" 0.35."""
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
