"""Metrics over a whole set, each a short formula in NumPy; a NaN in the numbers gives NaN.

SQuAD's metrics take mappings by question id: `predictions` (texts, "" for no answer), `answers`
(the gold answers, an empty list if there are none) and `null_odds` (scores of "no answer").
"""

from __future__ import annotations

import collections
import math
import re
import string
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the fraction of correct predictions `<int>[B]`; here B is the whole set."""
    return float(np.mean(np.asarray(labels) == np.asarray(predictions)))


def f1(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns F1 of class 1, `<int>[B]` against `<int>[B]`; 0 if undefined."""
    hits, false_alarms, misses, _ = _confusion(labels, predictions)
    return ratio(2 * hits, 2 * hits + false_alarms + misses)


def micro_f1(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns F1 over all decisions `<bool>[B, C]`, classes taken together; 0 if undefined."""
    return f1(np.ravel(labels), np.ravel(predictions))


def macro_f1(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the mean F1 of the classes of `<bool>[B, C]`; an undefined F1 counts as 0."""
    columns = zip(np.transpose(labels), np.transpose(predictions), strict=True)
    return float(np.mean([f1(*column) for column in columns]))


def mean_average_precision(labels: ArrayLike, scores: ArrayLike) -> float:
    """Returns the mean average precision of the classes that occur; 0 if none does.

    Average precision of a class is its precision among the k highest scores, averaged over all k at
    which an example has the label. Equal scores are ranked together.

    Args:
      labels: `<bool>[B, C]`.
      scores: `<float>[B, C]`.
    """
    found = [math.nan] if np.isnan(scores).any() else []
    for column, of_class in zip(np.transpose(labels), np.transpose(scores), strict=True):
        if column.any():
            # Examples from the highest score down; of equal scores only the last one counts.
            order = np.argsort(-of_class, kind="stable")
            is_last = np.append(np.diff(of_class[order]) != 0, True)
            hits = np.cumsum(column[order])[is_last]
            precisions = hits / (1 + np.flatnonzero(is_last))
            found.append(np.sum(np.diff(hits, prepend=0) * precisions) / hits[-1])
    return float(np.mean(found)) if found else 0.0


def matthews_correlation(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns Matthews correlation, `<int>[B]` against `<int>[B]`, 2 classes; 0 if one is constant.

    Source: the metric of CoLA.
    """
    hits, false_alarms, misses, rejections = _confusion(labels, predictions)
    squared = (
        (hits + false_alarms)
        * (hits + misses)
        * (rejections + false_alarms)
        * (rejections + misses)
    )
    return ratio(hits * rejections - false_alarms * misses, np.sqrt(squared))


def pearson(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the linear correlation of two `<float>[B]`; 0 if one is constant."""
    x, y = (np.asarray(values, np.float64) for values in (labels, predictions))
    # Don't leave this to the formula: the rounded mean of a constant may differ from it.
    if not np.ptp(x) * np.ptp(y):
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return ratio(np.sum(x * y), np.sqrt(np.sum(x * x) * np.sum(y * y)))


def spearman(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the rank correlation; ties share their mean rank."""
    return pearson(*(_ranks(np.asarray(values)) for values in (labels, predictions)))


def retrieval(ranks: Sequence[Sequence[int]], k: int = 10) -> dict[str, float]:
    """Returns nDCG, recall and mean reciprocal rank among the first k, averaged over queries.

    `ranks` has for each query the ranks, from 1, of the texts that it should find.
    """
    found: dict[str, list[float]] = {"ndcg": [], "recall": [], "mrr": []}
    for of_query in ranks:
        hits = sorted(rank for rank in of_query if rank <= k)
        ideal = range(1, 1 + min(len(of_query), k))
        gains = [sum(1 / math.log2(1 + rank) for rank in each) for each in (hits, ideal)]
        values = gains[0] / gains[1], len(hits) / len(of_query), 1 / hits[0] if hits else 0.0
        for of_name, value in zip(found.values(), values, strict=True):
            of_name.append(value)
    return {f"{name}_at_{k}": float(np.mean(values)) for name, values in found.items()}


def binary_log_loss(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Returns the mean of -log p of the true decisions: `<bool>[B, C]`, `<float>[B, C]`."""
    chosen = np.where(labels, probabilities, 1 - np.asarray(probabilities))
    return float(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())


def log_loss(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Returns the mean of -log p of the true classes: `<int>[B]`, `<float>[B, C]`."""
    chosen = np.take_along_axis(np.asarray(probabilities), np.asarray(labels)[:, None], axis=-1)
    return float(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())


def mean_squared_error(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Returns the mean squared difference of two `<float>[B]`."""
    return float(np.mean(np.square(np.asarray(labels) - np.asarray(predictions))))


def ratio(numerator: float, denominator: float) -> float:
    """Returns a quotient, or 0 if the denominator is 0."""
    return float(numerator / denominator) if denominator else 0.0


def _confusion(labels: ArrayLike, predictions: ArrayLike) -> list[float]:
    """Returns true positives, false positives, false negatives and true negatives of class 1."""
    label, prediction = (np.asarray(values) == 1 for values in (labels, predictions))
    cells = (label & prediction, ~label & prediction, label & ~prediction, ~label & ~prediction)
    return [float(cell.sum()) for cell in cells]


def _ranks(values: np.ndarray) -> np.ndarray:
    if np.isnan(values).any():
        return np.full(values.shape, math.nan)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def normalize_answer(text: str) -> str:
    """Lower-cases; drops ASCII punctuation, articles and extra white space.

    Source: the official evaluators of SQuAD 1.1 and 2.0, normalize_answer.
    """
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def answer_exact_match(prediction: str, answer: str) -> float:
    """Returns 1.0 if two answers are equal after normalisation, else 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def answer_f1(prediction: str, answer: str) -> float:
    """Returns the word-level F1 of two normalised answers; 1 if both are empty.

    Source: evaluate-v2.0.py, compute_f1.
    """
    words, expected = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if not words or not expected:
        return float(words == expected)
    common = sum((collections.Counter(words) & collections.Counter(expected)).values())
    return 2 * common / (len(words) + len(expected))


def squad_v1_scores(
    predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Returns `exact_match` and `f1`, in percent, like the official evaluator of SQuAD 1.1.

    A question without a prediction counts as wrong.

    Source: evaluate-v1.1.py, evaluate.
    """
    exact, f1s = 0.0, 0.0
    for qas_id, golds in answers.items():
        text = predictions.get(qas_id)
        if text is not None:
            exact += max(answer_exact_match(text, gold) for gold in golds)
            # In this evaluator two answers without any word score 0.
            f1s += max(answer_f1(text, gold) for gold in golds) if normalize_answer(text) else 0.0
    return {"exact_match": 100 * exact / len(answers), "f1": 100 * f1s / len(answers)}


def squad_v2_raw_scores(
    predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns exact match and F1, in [0, 1], of each predicted question.

    Source: evaluate-v2.0.py, get_raw_scores.
    """
    exact, f1s = {}, {}
    for qas_id, prediction in predictions.items():
        golds = [gold for gold in answers[qas_id] if normalize_answer(gold)] or [""]
        exact[qas_id] = max(answer_exact_match(prediction, gold) for gold in golds)
        f1s[qas_id] = max(answer_f1(prediction, gold) for gold in golds)
    return exact, f1s


def best_null_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
    answers: Mapping[str, Sequence[str]],
) -> tuple[float, float]:
    """Finds the null threshold with the best score on a set.

    A question is answered if its null odds are at most the threshold. `scores` has the score of
    each question, in [0, 1], if it is answered.

    Returns:
      The best score in percent, and its threshold: the lowest of several, or 0.0 if it is best to
      answer none.

    Source: evaluate-v2.0.py, find_best_thresh.
    """
    # Begin with all questions unanswered, which is right where there is no answer.
    current = best = float(sum(not answers[qas_id] for qas_id in scores))
    threshold = 0.0
    # Raise the threshold from one question's null odds to the next.
    for qas_id in sorted(null_odds, key=null_odds.__getitem__):
        if qas_id not in scores:
            continue
        # Answering a question that has no answer loses its point.
        current += scores[qas_id] if answers[qas_id] else -bool(predictions[qas_id])
        # Only a better score moves the threshold, so the lowest of equal ones stays.
        if current > best:
            best, threshold = current, null_odds[qas_id]
    return 100 * best / len(scores), threshold


def squad_v2_scores(
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
    answers: Mapping[str, Sequence[str]],
    null_threshold: float = math.inf,
) -> dict[str, float]:
    """Scores predictions like the official evaluator of SQuAD 2.0; skips missing questions.

    A question whose null odds exceed `null_threshold` counts as predicted to have no answer,
    whatever its text. The evaluator's default, 1.0, suits probabilities; the release applies it to
    logits, and so loses answers.

    Returns:
      `exact` and `f1` in percent and their `total`, each also for the questions with and without
      an answer (`HasAns_`, `NoAns_`) if there are any; `best_exact`, `best_f1` and their
      thresholds.

    Source: evaluate-v2.0.py, main.
    """
    # All predicted questions, and those with and without an answer.
    raw = squad_v2_raw_scores(predictions, answers)
    result = {}
    subsets = (
        ("", list(raw[0])),
        ("HasAns_", [qas_id for qas_id in raw[0] if answers[qas_id]]),
        ("NoAns_", [qas_id for qas_id in raw[0] if not answers[qas_id]]),
    )
    for name, scores in zip(("exact", "f1"), raw, strict=True):
        # Beyond the threshold an empty answer is predicted, right only where there is no answer.
        final = {
            qas_id: float(not answers[qas_id]) if null_odds[qas_id] > null_threshold else score
            for qas_id, score in scores.items()
        }
        for prefix, qas_ids in subsets:
            if qas_ids:
                total = sum(final[qas_id] for qas_id in qas_ids)
                result[f"{prefix}{name}"] = 100 * total / len(qas_ids)
                result[f"{prefix}total"] = len(qas_ids)
        # The best threshold is found on scores as if all questions were answered.
        result[f"best_{name}"], result[f"best_{name}_thresh"] = best_null_threshold(
            scores, predictions, null_odds, answers
        )
    return result
