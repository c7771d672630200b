import numpy as np
import pytest

from albert_tf.tasks import metrics
from tests.kit import goldens


def test_two_classes_by_hand():
    """Three hits, one false alarm, two misses, one right rejection."""
    labels, predictions = [1, 1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0]
    assert metrics.accuracy(labels, predictions) == 4 / 7
    assert metrics.f1(labels, predictions) == pytest.approx(6 / 9)
    expected = (3 * 1 - 1 * 2) / np.sqrt(4 * 5 * 2 * 3)
    assert metrics.matthews_correlation(labels, predictions) == pytest.approx(expected)


def test_correlations_by_hand():
    # Deviations (-1, 0, 1) and (-2, 1, 1).
    assert metrics.pearson([1, 2, 3], [0, 3, 3]) == pytest.approx(3 / np.sqrt(2 * 6))
    # Ranks 1, 2, 3, 4 and 1, 3.5, 2, 3.5: ties share their mean rank.
    expected = np.corrcoef([1, 2, 3, 4], [1, 3.5, 2, 3.5])[0, 1]
    assert metrics.spearman([0.1, 0.2, 30, 40], [-5, 9, 7, 9]) == pytest.approx(expected)
    assert metrics.spearman([1, 2, 3], [1, 8, 1000]) == pytest.approx(1)
    assert metrics.spearman([1, 2, 3], [-1, -8, -1000]) == pytest.approx(-1)


@pytest.mark.parametrize("name", ["f1", "matthews_correlation", "pearson", "spearman"])
def test_what_is_constant_scores_0(name):
    assert getattr(metrics, name)([0, 0, 1, 1], [0, 0, 0, 0]) == 0.0


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e9 / 7])
def test_two_constants_score_0(name, number):
    """In floating point, the mean of a constant is not always that constant."""
    for count in range(2, 40):
        assert getattr(metrics, name)([number] * count, [-number] * count) == 0.0
        assert getattr(metrics, name)([number] * count, np.arange(count)) == 0.0


def test_equal_scores_are_ranked_together():
    labels = np.array([[1], [0], [1], [0]], bool)
    scores = np.array([[0.5], [0.5], [0.25], [0.125]])
    found = metrics.mean_average_precision(labels, scores)
    assert found == pytest.approx(0.5 * 1 / 2 + 0.5 * 2 / 3)
    assert metrics.mean_average_precision(labels[1::2], scores[1::2]) == 0.0
    absent = np.hstack([labels, np.zeros_like(labels)])
    assert metrics.mean_average_precision(absent, np.hstack([scores] * 2)) == found


NUMBERS = ("pearson", "spearman", "mean_squared_error")
PROBABILITIES = ("mean_average_precision", "binary_log_loss")


@pytest.mark.parametrize("name", [*NUMBERS, *PROBABILITIES])
@pytest.mark.parametrize("row", range(4))
def test_what_is_computed_of_nan_is_nan(name, row):
    labels, scores = np.array([0, 1, 1, 0]), np.array([0.1, 0.7, 0.4, 0.2])
    if name in PROBABILITIES:
        labels, scores = np.stack([labels, 1 - labels], 1) > 0, np.stack([scores, 1 - scores], 1)
    assert np.isfinite(getattr(metrics, name)(labels, scores))
    scores[row] = np.nan
    assert np.isnan(getattr(metrics, name)(labels, scores))


def test_answers_are_normalised_and_scored_as_in_both_evaluators(golden):
    units = goldens.squad_answers(golden, "results")["units"]
    for unit in units["normalize"]:
        assert metrics.normalize_answer(unit["text"]) == unit["v1"] == unit["v2"]
    for unit in units["pairs"]:
        pair = unit["prediction"], unit["gold"]
        assert metrics.answer_exact_match(*pair) == unit["em_v1"] == unit["em_v2"]
        assert metrics.answer_f1(*pair) == pytest.approx(unit["f1_v2"])
        v1 = metrics.squad_v1_scores({"q": pair[0]}, {"q": [pair[1]]})
        assert v1["f1"] == pytest.approx(100 * unit["f1_v1"])
    # A question without a prediction is wrong.
    answers = {"q": ["a cat", "dog"], "r": ["x"]}
    assert metrics.squad_v1_scores({"q": "Dog."}, answers) == {"exact_match": 50.0, "f1": 50.0}


def test_the_best_threshold_is_found_by_going_up():
    """Answering a and b gains 1.5; c then loses 1, and d, beyond c, gains no more than that."""
    answers = {"a": ["x"], "b": ["x y z"], "c": [], "d": ["x"], "e": []}
    predictions = {"a": "x", "b": "x", "c": "x", "d": "x", "e": ""}
    null_odds = {"d": 4.0, "c": 3.0, "b": 2.0, "a": 1.0, "e": 0.0, "other": -7.0}
    _, f1s = metrics.squad_v2_raw_scores(predictions, answers)
    assert f1s == {"a": 1, "b": 0.5, "c": 0, "d": 1, "e": 1}
    best = metrics.best_null_threshold(f1s, predictions, null_odds, answers)
    assert best == (pytest.approx(100 * 3.5 / 5), 2.0)
    scores = metrics.squad_v2_scores(predictions, null_odds, answers, null_threshold=2.5)
    assert scores["f1"] == pytest.approx(100 * (1 + 0.5 + 1 + 0 + 1) / 5)
    assert scores["HasAns_f1"] == pytest.approx(100 * 1.5 / 3)
    assert scores["NoAns_exact"] == 100.0
    assert (scores["total"], scores["HasAns_total"], scores["NoAns_total"]) == (5, 3, 2)
