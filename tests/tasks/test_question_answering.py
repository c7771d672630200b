"""SQuAD's tasks: windows as rows and back, answers, the release's files, ensembles."""

import dataclasses
import json
import tracemalloc

import numpy as np
import pytest

from albert_tf.tasks import metrics, question_answering, squad_text
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.question_answering import (
    Predictions,
    SquadV1Task,
    SquadV2Task,
    answer_texts,
)
from albert_tf.tasks.registry import SquadSettings
from albert_tf.tasks.squad_text import Answer, SquadExample
from albert_tf.text.tokenization import Tokenizer
from tests import goldens, tolerances

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
    return (SquadV1Task if version == "v1" else SquadV2Task)(None, tokenizer, 64, squad)


def predicted(golden, version: str, file: str):
    """Returns the examples, the task, and what it makes of the release's outputs."""
    examples = squad_text.read_squad(golden / f"features/squad_{version}_dev.json")
    windows = goldens.squad_windows(golden, version)
    rows = goldens.squad_rows(golden, version, "dev")
    outputs = goldens.arrays(golden / "squad_eval" / file)
    assert [row["unique_id"] for row in rows] == outputs["unique_id"].tolist()
    predictions = squad_text.predict(examples, windows, outputs, 6, 12, version == "v2")
    return examples, task_of(version), predictions


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
    assert odds == goldens.squad_answers(golden, "v2_null_odds")
    expected = goldens.squad_answers(golden, "results")
    threshold = expected["v2"]["null_score_diff_threshold"]
    assert scores["best_f1_thresh"] == pytest.approx(threshold)
    best = expected["v2_before_threshold"]["best"]
    assert {name: scores[name] for name in best} == pytest.approx(best)


def test_windows_survive_as_rows(golden):
    tokenizer = Tokenizer(golden / "spm/en_small.model")
    examples = squad_text.read_squad(golden / "features/squad_v2_dev.json")
    rows = list(task_of("v2", tokenizer=tokenizer).rows(examples, False))
    restored = question_answering._spans(FeatureTable.from_rows(rows))
    assert len(rows) == len(restored) > len(examples)
    for row, span in zip(rows, restored, strict=True):
        expected = squad_text.SquadSpan.of_row(row)
        for name in ("example_index", "doc_offset", "char_starts", "char_ends", "is_max_context"):
            np.testing.assert_array_equal(getattr(span, name), getattr(expected, name))


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
        return json.dumps(SquadV2Task(None, tokenizer, max_seq_length, squad).settings)

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


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_of_many_windows_only_the_best_answers_are_kept(version):
    """The pairs of all windows would take some 20 MB."""
    example = squad_text.SquadExample("id", "?", "".join(map(chr, range(0x4E00, 0x9E00))), (), True)
    rng, width, count = np.random.default_rng(3), 20, 150
    windows = [
        squad_text.SquadSpan(
            0, 2, start + np.arange(width), start + np.arange(width), np.ones(width)
        )
        for start in range(0, count * width, width)
    ]
    if version == "v1":
        names = ("start_logits", "end_logits")
        outputs = {name: rng.normal(size=(count, width + 3)) for name in names}
    else:
        outputs = {
            "start_top_index": np.tile(np.arange(2, 22), (count, 1)),
            "start_top_log_probs": rng.normal(size=(count, 20)),
            "end_top_index": np.tile(np.arange(2, 22), (count, 20)),
            "end_top_log_probs": rng.normal(size=(count, 400)),
            "cls_logits": rng.normal(size=count),
        }
    tracemalloc.start()
    predictions = squad_text.predict([example], windows, outputs, 20, 30, version == "v2")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(predictions.nbest["id"]) == 20
    assert peak < 2e6


def test_v2_scores_before_and_after_the_threshold_are_the_releases(golden):
    examples, _, predictions = predicted(golden, "v2", "v2_results.npz")
    assert predictions.texts == goldens.squad_answers(golden, "v2_predictions_no_threshold")

    results = goldens.squad_answers(golden, "results")
    before, gold = results["v2_before_threshold"], answer_texts(examples)
    exact, f1s = metrics.squad_v2_raw_scores(predictions.texts, gold)
    assert exact == before["exact"]
    assert f1s == pytest.approx(before["f1"])
    scores = metrics.squad_v2_scores(predictions.texts, predictions.null_odds, gold, 1.0)
    assert {name: scores[name] for name in before["best"]} == pytest.approx(before["best"])

    threshold = scores["best_f1_thresh"]
    assert threshold == results["v2"]["null_score_diff_threshold"]
    texts = squad_text.apply_null_threshold(predictions, threshold)
    assert texts == goldens.squad_answers(golden, "v2_predictions")
    final = metrics.squad_v2_scores(texts, predictions.null_odds, gold, 1.0)
    for name in ("exact", "f1", "total"):
        assert final[name] == pytest.approx(results["v2"][name])


def window(example_index: int, is_max_context) -> squad_text.SquadSpan:
    """One character a piece, in a paragraph of six."""
    count = len(is_max_context)
    return squad_text.SquadSpan(
        example_index=example_index,
        doc_offset=2,
        char_starts=np.arange(count),
        char_ends=np.arange(count),
        is_max_context=np.array(is_max_context),
    )


def question(qas_id: str, paragraph: str = "abcdef") -> squad_text.SquadExample:
    return squad_text.SquadExample(qas_id, "what?", paragraph, (), False)


def peaks(*scores: tuple[int, float]) -> np.ndarray:
    logits = np.full(9, -9.0, np.float32)
    for position, score in scores:
        logits[position] = score
    return logits


def v1(windows, starts, ends, max_answer_length=4):
    outputs = {"start_logits": np.stack(starts), "end_logits": np.stack(ends)}
    only = [question("q")]
    return squad_text.predict(only, windows, outputs, 3, max_answer_length, False)


def test_only_spans_of_the_paragraph_are_answers():
    """Position 0 is [CLS], 8 the last [SEP]; the paragraph is at 2 to 7."""
    starts, ends = peaks((0, 9), (5, 5), (4, 3)), peaks((8, 9), (4, 6), (5, 1))
    texts = [entry["text"] for entry in v1([window(0, [1] * 6)], [starts], [ends]).nbest["q"]]
    assert texts == ["c", "d", "cd"]  # Scores 9, 6 and 4; that from 5 to 4 runs backwards.


def test_among_equal_scores_the_first_wins():
    assert v1([window(0, [1] * 6)], [np.zeros(9)], [np.zeros(9)]).texts["q"] == "a"


def test_length_and_context_limit_an_answer():
    starts, ends = [peaks((2, 5), (3, 2))], [peaks((7, 5), (4, 1))]
    both = [window(0, [1] * 6)]
    assert v1(both, starts, ends, max_answer_length=6).texts["q"] == "abcdef"
    assert v1(both, starts, ends, max_answer_length=5).texts["q"] == "bcdef"
    assert v1(both, starts, ends, max_answer_length=4).texts["q"] == "abc"
    # Another window shows more around the first piece.
    elsewhere = [window(0, [0, 1, 1, 1, 1, 1])]
    assert v1(elsewhere, starts, ends, max_answer_length=6).texts["q"] == "bcdef"


def test_equal_texts_count_once_and_probabilities_are_among_the_best():
    windows = [window(0, [1] * 6), window(0, [1] * 6)]
    starts = [peaks((2, 3), (3, 1)), peaks((2, 4), (3, 1))]
    ends = [peaks((2, 0), (3, -1))] * 2
    entries = v1(windows, starts, ends).nbest["q"]
    assert [entry["text"] for entry in entries] == ["a", "ab", "b"]
    scores = np.array([4.0 + 0.0, 4.0 - 1.0, 1.0 - 1.0])
    expected = np.exp(scores) / np.exp(scores).sum()
    assert [entry["probability"] for entry in entries] == pytest.approx(expected)


def test_null_odds_of_a_linear_head_are_the_score_of_cls_less_that_of_the_best_answer():
    """By hand; BERT's run_squad.py calls them score_diff."""
    examples = [question("a"), question("b")]
    # Of b no window has a position where it may be answered.
    windows = [window(0, [1, 1]), window(0, [1, 1]), window(1, [0, 0])]
    outputs = {
        "start_logits": np.stack([peaks((0, 5), (3, 4)), peaks((0, 2), (3, 9)), peaks((0, 7))]),
        "end_logits": np.stack([peaks((0, 1), (3, 3)), peaks((0, 3), (3, 2)), peaks((0, 7))]),
    }
    found = squad_text.predict(examples, windows, outputs, 3, 4, True)
    (a, b), (best_a, best_b) = found.null_odds.values(), found.texts.values()
    assert a == (2 + 3) - (9 + 2) and best_a == "b"
    assert b == squad_text.NO_WINDOW_NULL_ODDS and best_b == ""


def test_null_odds_are_the_least_of_all_windows():
    examples = [question("q"), question("none")]
    beam = {
        "start_top_index": np.array([[2], [3]]),
        "start_top_log_probs": np.array([[-1.0], [-0.5]], np.float32),
        "end_top_index": np.array([[2, 4], [3, 5]]),
        "end_top_log_probs": np.array([[-2.0, -0.25], [-2.0, -1.0]], np.float32),
        "cls_logits": np.array([0.5, -0.75], np.float32),
    }
    windows = [window(0, [1] * 6), window(0, [1] * 6)]
    predictions = squad_text.predict(examples, windows, beam, 3, 4, True)
    assert [entry["text"] for entry in predictions.nbest["q"]] == ["abc", "bcd", "b"]
    assert predictions.null_odds == {"q": -0.75, "none": 1_000_000.0}
    assert predictions.texts == {"q": "abc", "none": ""}
    assert squad_text.apply_null_threshold(predictions, -0.75)["q"] == ""
    assert squad_text.apply_null_threshold(predictions, -0.7)["q"] == "abc"
