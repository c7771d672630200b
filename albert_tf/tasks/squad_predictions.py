"""SQuAD: a model's outputs on windows -> answers."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.tasks.squad_text import SquadExample, SquadSpan

# Null odds of a question without any window.
NO_WINDOW_NULL_ODDS = 1_000_000.0

_BEAM = ("start_top_index", "start_top_log_probs", "end_top_index", "end_top_log_probs")
# A position in a window and its score.
_Scored = tuple[int, float]


@dataclasses.dataclass(frozen=True)
class SquadSettings:
    """How contexts are cut into windows and answers are chosen.

    Attributes:
      doc_stride: See squad_windows.
      max_query_length: See squad_windows.
      n_best_size: See predict_v1.
      max_answer_length: See predict_v1.
      start_n_top: See AlbertForQuestionAnsweringV2; SQuAD 2.0 only.
      end_n_top: Likewise.
    """

    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    start_n_top: int = 5
    end_n_top: int = 5


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Answers to questions, by id.

    Attributes:
      texts: The best answer to each.
      nbest: The n best answers to each, as dicts of `text`, `probability` (normalised over them),
        `start_log_prob` and `end_log_prob`.
      null_odds: Null odds (score of "no answer"); empty for SQuAD 1.1.
      null_threshold: Null odds from which a question counts as one without an answer, if they were
        found on another set; None if this set's own labels say which are best.
    """

    texts: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float]
    null_threshold: float | None = None


def predict_v1(
    examples: Sequence[SquadExample],
    windows: Sequence[SquadSpan],
    outputs: Mapping[str, np.ndarray],
    n_best_size: int,
    max_answer_length: int,
) -> Predictions:
    """Turns outputs of AlbertForQuestionAnswering into answers.

    Args:
      examples: All questions.
      windows: The examples' windows, from squad_windows.
      outputs: `start_logits` and `end_logits` `<float32>[W, S]`, one row per window.
      n_best_size: Number of positions tried as starts and as ends, and of answers kept.
      max_answer_length: Maximum number of pieces per answer.

    Returns:
      Answers without null odds; "empty" if there is none.

    Source: squad_utils.py, accumulate_predictions_v1 and write_predictions_v1.
    """
    sides = zip(outputs["start_logits"], outputs["end_logits"], strict=True)
    tops = (
        itertools.product(_scored_best(starts, n_best_size), _scored_best(ends, n_best_size))
        for starts, ends in sides
    )
    nbest = _nbest(
        examples, windows, tops, n_best_size, max_answer_length, _entry("empty", 0.0, 0.0)
    )
    return Predictions(best_texts(nbest), nbest, {})


def predict_v2(
    examples: Sequence[SquadExample],
    windows: Sequence[SquadSpan],
    outputs: Mapping[str, np.ndarray],
    n_best_size: int,
    max_answer_length: int,
) -> Predictions:
    """Turns the beams of AlbertForQuestionAnsweringV2 into answers.

    Args:
      examples: All questions.
      windows: The examples' windows, from squad_windows.
      outputs: The model's outputs, one row per window.
      n_best_size: Number of answers kept.
      max_answer_length: Maximum number of pieces per answer.

    Returns:
      Answers whatever their null odds (see `apply_null_threshold`); an empty one only if there is
      no other.

    Source: squad_utils.py, accumulate_predictions_v2 and write_predictions_v2.
    """
    tops = map(_beam_pairs, *(outputs[name] for name in _BEAM))
    no_answer = _entry("", -NO_WINDOW_NULL_ODDS, -NO_WINDOW_NULL_ODDS)
    nbest = _nbest(examples, windows, tops, n_best_size, max_answer_length, no_answer)
    null_odds = {example.qas_id: NO_WINDOW_NULL_ODDS for example in examples}
    for window, logit in zip(windows, outputs["cls_logits"], strict=True):
        qas_id = examples[window.example_index].qas_id
        null_odds[qas_id] = min(null_odds[qas_id], float(logit))
    return Predictions(best_texts(nbest), nbest, null_odds)


def apply_null_threshold(predictions: Predictions, threshold: float) -> dict[str, str]:
    """Returns the texts of questions whose null odds are below a threshold, and "" for others.

    As in the release, the question whose odds equal the best threshold is itself left unanswered,
    although the search for that threshold counted its answer.

    Source: squad_utils.py, write_predictions_v2.
    """
    odds = predictions.null_odds
    return {
        qas_id: text if odds[qas_id] < threshold else ""
        for qas_id, text in predictions.texts.items()
    }


def mean_nbest(nbests: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Averages several models' n best answers to a question, most probable first."""
    totals: dict[str, float] = collections.defaultdict(float)
    for entries in nbests:
        for entry in entries:
            totals[entry["text"]] += entry["probability"] / len(nbests)
    ordered = sorted(totals.items(), key=lambda item: item[1], reverse=True)
    return [{"text": text, "probability": probability} for text, probability in ordered]


def best_texts(nbest: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """Returns the first of the n best answers to each question."""
    return {qas_id: entries[0]["text"] for qas_id, entries in nbest.items()}


def _scored_best(logits: np.ndarray, count: int) -> list[_Scored]:
    """Returns the positions of the `count` largest logits; among equal ones, the first wins."""
    return [(int(i), float(logits[i])) for i in np.argsort(-logits, kind="stable")[:count]]


def _beam_pairs(
    start_indexes: np.ndarray,
    start_log_probs: np.ndarray,
    end_indexes: np.ndarray,
    end_log_probs: np.ndarray,
) -> Iterator[tuple[_Scored, _Scored]]:
    """Yields the starts of a window's beam, each with all its ends."""
    ends = np.split(np.arange(len(end_indexes)), len(start_indexes))
    for start, score, of_start in zip(start_indexes, start_log_probs, ends, strict=True):
        for j in of_start:
            yield (int(start), float(score)), (int(end_indexes[j]), float(end_log_probs[j]))


def _nbest(
    examples: Sequence[SquadExample],
    windows: Sequence[SquadSpan],
    tops: Iterable[Iterable[tuple[_Scored, _Scored]]],
    n_best_size: int,
    max_answer_length: int,
    fallback: dict[str, Any],
) -> dict[str, list[dict[str, Any]]]:
    """Returns the best distinct answers to each question, with their probabilities."""
    found: dict[int, list[dict[str, Any]]] = collections.defaultdict(list)
    for window, pairs in zip(windows, tops, strict=True):
        index = window.example_index
        # Trimmed after each window: a paragraph may have thousands.
        entries = [*found[index], *_answers(examples[index], window, pairs, max_answer_length)]
        found[index] = _best_entries(entries, n_best_size)
    return {
        example.qas_id: _with_probabilities(found[index] or [fallback])
        for index, example in enumerate(examples)
    }


def _best_entries(entries: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Returns the best entries with distinct texts; among equal ones, the first."""
    different: dict[str, dict[str, Any]] = {}
    for entry in sorted(
        entries, key=lambda e: e["start_log_prob"] + e["end_log_prob"], reverse=True
    ):
        different.setdefault(entry["text"], entry)
    return list(different.values())[:count]


def _answers(
    example: SquadExample,
    window: SquadSpan,
    pairs: Iterable[tuple[_Scored, _Scored]],
    max_answer_length: int,
) -> Iterator[dict[str, Any]]:
    """Yields the pairs that are paragraph spans for which this window has the most context."""
    width = len(window.char_starts)
    for (start, start_score), (end, end_score) in pairs:
        first, last = start - window.doc_offset, end - window.doc_offset
        if not 0 <= first <= last < min(width, first + max_answer_length):
            continue
        if window.is_max_context[first]:
            text = example.paragraph[window.char_starts[first] : window.char_ends[last] + 1]
            yield _entry(text.strip(), start_score, end_score)


def _entry(text: str, start_log_prob: float, end_log_prob: float) -> dict[str, Any]:
    return {"text": text, "start_log_prob": start_log_prob, "end_log_prob": end_log_prob}


def _with_probabilities(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    scores = [entry["start_log_prob"] + entry["end_log_prob"] for entry in entries]
    exponentials = [math.exp(score - max(scores)) for score in scores]
    total = sum(exponentials)
    return [
        {"text": entry["text"], "probability": value / total, **entry}
        for entry, value in zip(entries, exponentials, strict=True)
    ]
