from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from albert_tf.tasks import metrics, question_answering, squad_text
from albert_tf.tasks.question_answering import answer_texts
from tests import goldens, squad_goldens, tolerances
from tests.squad_goldens import stored


def predict(golden, version: str, file: str):
    results = stored(golden, "results")
    examples = squad_text.read_squad(golden / f"features/squad_{version}_dev.json")
    windows = squad_goldens.windows(golden, version)
    outputs = goldens.arrays(golden / "squad_eval" / file)
    rows = squad_goldens.rows(golden, version, "dev")
    assert [row["unique_id"] for row in rows] == outputs["unique_id"].tolist()
    function = getattr(question_answering, f"predict_{version}")
    limits = results["n_best_size"], results["max_answer_length"]
    return examples, function(examples, windows, outputs, *limits), results


def check_nbest(actual: dict, expected: dict) -> None:
    assert list(actual) == list(expected)
    for qas_id, entries in expected.items():
        for mine, entry in zip(actual[qas_id], entries, strict=True):
            assert list(mine) == list(entry)
            assert mine == pytest.approx(entry, abs=tolerances.METRIC)


def test_v1_answers_are_the_releases(golden):
    examples, predictions, results = predict(golden, "v1", "v1_logits.npz")
    assert predictions.texts == stored(golden, "v1_predictions")
    check_nbest(predictions.nbest, stored(golden, "v1_nbest_predictions"))
    assert predictions.null_odds == {}
    scores = metrics.squad_v1_scores(predictions.texts, answer_texts(examples))
    assert scores == pytest.approx(results["v1"])


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
    predict = getattr(question_answering, f"predict_{version}")
    tracemalloc.start()
    predictions = predict([example], windows, outputs, 20, 30)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(predictions.nbest["id"]) == 20
    assert peak < 2e6


def test_v2_answers_are_the_releases(golden):
    examples, predictions, results = predict(golden, "v2", "v2_results.npz")
    assert predictions.texts == stored(golden, "v2_predictions_no_threshold")
    check_nbest(predictions.nbest, stored(golden, "v2_nbest_predictions"))
    assert predictions.null_odds == stored(golden, "v2_null_odds")

    before, gold = results["v2_before_threshold"], answer_texts(examples)
    exact, f1s = metrics.squad_v2_raw_scores(predictions.texts, gold)
    assert exact == before["exact"]
    assert f1s == pytest.approx(before["f1"])
    scores = metrics.squad_v2_scores(predictions.texts, predictions.null_odds, gold, 1.0)
    assert {name: scores[name] for name in before["best"]} == pytest.approx(before["best"])

    threshold = scores["best_f1_thresh"]
    assert threshold == results["v2"]["null_score_diff_threshold"]
    texts = question_answering.apply_null_threshold(predictions, threshold)
    assert texts == stored(golden, "v2_predictions")
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
    return question_answering.predict_v1([question("q")], windows, outputs, 3, max_answer_length)


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
    predictions = question_answering.predict_v2(examples, windows, beam, 3, 4)
    assert [entry["text"] for entry in predictions.nbest["q"]] == ["abc", "bcd", "b"]
    assert predictions.null_odds == {"q": -0.75, "none": 1_000_000.0}
    assert predictions.texts == {"q": "abc", "none": ""}
    assert question_answering.apply_null_threshold(predictions, -0.75)["q"] == ""
    assert question_answering.apply_null_threshold(predictions, -0.7)["q"] == "abc"
