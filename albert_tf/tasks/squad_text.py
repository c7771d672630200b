"""SQuAD: questions about paragraphs -> windows for the model; its outputs on them -> answers."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from albert_tf.storage import files, parquet_files
from albert_tf.storage.text_files import json_member, parse_json
from albert_tf.tasks import sequence_features, table
from albert_tf.text.tokenization import Tokenizer

FLAT_FORMATS = (".jsonl", parquet_files.ENDING)
# What a window knows of its paragraph's pieces.
_PLACES = ("char_starts", "char_ends", "is_max_context")
# Null odds of a question without any window.
NO_WINDOW_NULL_ODDS = 1_000_000.0
_NO_ANSWER = {
    "text": "",
    "start_log_prob": -NO_WINDOW_NULL_ODDS,
    "end_log_prob": -NO_WINDOW_NULL_ODDS,
}

_BEAM = ("start_top_index", "start_top_log_probs", "end_top_index", "end_top_log_probs")
# A position in a window and its score.
_Scored = tuple[int, float]


@dataclasses.dataclass(frozen=True)
class Answer:
    """A gold answer: its text, and the character of the paragraph at which it starts."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class SquadExample:
    """A question about a paragraph.

    Attributes:
      qas_id: The question's id.
      question: Raw text.
      paragraph: Raw text.
      answers: The gold answers; none if there is no answer.
      is_impossible: Whether the paragraph holds no answer.
    """

    qas_id: str
    question: str
    paragraph: str
    answers: tuple[Answer, ...]
    is_impossible: bool


def read_squad(path: str | os.PathLike[str]) -> list[SquadExample]:
    """Reads a file of SQuAD 1.1 or 2.0, or of rows (see FLAT_FORMATS, table.read_questions).

    Source: squad_utils.py, read_squad_examples.
    """
    files.check_file(path)
    ending = os.path.splitext(path)[1].lower()
    if ending in FLAT_FORMATS:
        rows = table.read_questions(os.fspath(path))
        examples = [_example(context, question, where) for where, context, question in rows]
    else:
        content = parse_json(files.read_bytes(path), path)
        examples = list(_examples(content, f"{path}: not in SQuAD's format"))
    if not examples:
        raise ValueError(f"{path} has no examples")
    _check(examples, path)
    return examples


def _examples(content: Any, where: str) -> Iterator[SquadExample]:
    for article in json_member(content, "data", where, list):
        for paragraph in json_member(article, "paragraphs", where, list):
            context = json_member(paragraph, "context", where, str)
            for question in json_member(paragraph, "qas", where, list):
                yield _example(context, question, where)


def _example(paragraph: str, question: Any, where: str) -> SquadExample:
    qas_id = str(json_member(question, "id", where, str, int))
    where = f"{where}: question {qas_id}"
    question = {"answers": [], "is_impossible": False, **question}
    return SquadExample(
        qas_id=qas_id,
        question=json_member(question, "question", where, str),
        paragraph=paragraph,
        answers=tuple(
            Answer(
                json_member(answer, "text", where, str),
                json_member(answer, "answer_start", where, int),
            )
            for answer in json_member(question, "answers", where, list)
        ),
        is_impossible=json_member(question, "is_impossible", where, bool),
    )


def _check(examples: list[SquadExample], path: str | os.PathLike[str]) -> None:
    seen, elsewhere = set(), 0
    for example in examples:
        if example.qas_id in seen:
            raise ValueError(f"{path}: question {example.qas_id} occurs twice")
        seen.add(example.qas_id)
        for answer in example.answers:
            end = answer.start + len(answer.text)
            if not 0 <= answer.start < end <= len(example.paragraph):
                raise ValueError(
                    f"{path}: question {example.qas_id}: the answer {answer.text!r} at character "
                    f"{answer.start} is not within its paragraph of {len(example.paragraph)} "
                    "characters"
                )
            elsewhere += example.paragraph[answer.start : end] != answer.text
    if elsewhere:
        logging.warning(
            "%s: %d answers differ from the text at their answer_start, which takes precedence",
            path,
            elsewhere,
        )


@dataclasses.dataclass(frozen=True)
class SquadSpan:
    """The part of a question's paragraph in a window: answers are taken from it.

    Attributes:
      example_index: Index of its example.
      doc_offset: Position in the window of the first of the paragraph's W pieces.
      char_starts: `<int32>[W]`, the character of the paragraph at which each piece starts.
      char_ends: `<int32>[W]`, its last character.
      is_max_context: `<bool>[W]`, whether no other window has more context around the piece.
    """

    example_index: int
    doc_offset: int
    char_starts: np.ndarray
    char_ends: np.ndarray
    is_max_context: np.ndarray

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> SquadSpan:
        """Takes it from a SquadWindow's row, whose last position is [SEP]."""
        offset = int(row["doc_offset"])
        return cls(int(row["example_index"]), offset, *(row[name][offset:-1] for name in _PLACES))


@dataclasses.dataclass(frozen=True)
class SquadWindow(SquadSpan):
    """A question and as much of its paragraph as fits into a sequence.

    Attributes:
      features: `input_ids`, `input_mask`, `segment_ids` and `p_mask` (0 = [CLS] and paragraph),
        each `<int32>[L]`.
      start_position: Position of the answer; 0, that of [CLS], if it isn't in this window.
      end_position: Likewise, of its last piece.
      is_impossible: Whether the window lacks the whole answer or a part of it.
    """

    features: dict[str, np.ndarray]
    start_position: int
    end_position: int
    is_impossible: bool

    def row(self) -> dict[str, np.ndarray]:
        """Returns it as features: those of pieces at their positions, 0 elsewhere."""
        row = dict(self.features)
        for name in _PLACES:
            row[name] = np.zeros_like(row["input_ids"])
            row[name][self.doc_offset : -1] = getattr(self, name)
        numbers = {
            "start_positions": self.start_position,
            "end_positions": self.end_position,
            "is_impossible": self.is_impossible,
            "example_index": self.example_index,
            "doc_offset": self.doc_offset,
        }
        return row | {name: np.array(value, np.int32) for name, value in numbers.items()}


def squad_windows(
    examples: Iterable[SquadExample],
    tokenizer: Tokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
) -> Iterator[SquadWindow]:
    """Turns examples into windows.

    A question is cut after max_query_length pieces. A paragraph without a piece gives no window,
    nor does, in training, an answer that covers none; both are counted and logged at the end.

    Args:
      examples: Keep those with the same paragraph together: it is then split only once.
      tokenizer: The model's tokenizer.
      max_seq_length: Maximum number of pieces per sequence, special ones included.
      doc_stride: Pieces between the starts of consecutive windows.
      max_query_length: Maximum number of pieces per question.
      is_training: Whether to mark the position of the first answer.

    Source: squad_utils.py, convert_examples_to_features.
    Differs: normalisation tells which characters a piece stands for. The release aligns the two
    texts, which fails where many spaces or unknown words are in them.
    """
    if doc_stride < 1 or max_seq_length - max_query_length < 4:
        raise ValueError(
            "expected `doc_stride` >= 1 and `max_seq_length` >= `max_query_length` + 4, got "
            f"{doc_stride}, {max_seq_length} and {max_query_length}"
        )
    without_window: dict[str, int] = collections.Counter()
    text = None
    for index, example in enumerate(examples):
        if text != example.paragraph:
            text = example.paragraph
            ids, offsets = tokenizer.encode_with_offsets(text)
        if not ids:
            without_window["paragraph has no text"] += 1
            continue
        answer = _answer_pieces(example, offsets) if is_training else None
        if answer is not None and answer[0] > answer[1]:
            without_window["answer has no text"] += 1
            continue

        # As released: the first piece begins with the text, whatever it drops there.
        starts, ends = offsets[:, 0] * (np.arange(len(ids)) > 0), np.maximum(offsets[:, 1] - 1, 0)
        query = tokenizer.encode(example.question, max_query_length)
        offset = len(query) + 2
        spans = sequence_features.window_spans(len(ids), max_seq_length - 1 - offset, doc_stride)
        best = best_spans(spans, len(ids))
        for number, (start, end) in enumerate(spans):
            first = last = 0
            if answer is not None and start <= answer[0] and answer[1] < end:
                first, last = (piece - start + offset for piece in answer)
            features = sequence_features.join_ids(tokenizer, query, ids[start:end])
            features["p_mask"] = np.ones_like(features["input_ids"])
            features["p_mask"][0] = features["p_mask"][offset:-1] = 0
            yield SquadWindow(
                example_index=index,
                doc_offset=offset,
                char_starts=starts[start:end],
                char_ends=ends[start:end],
                is_max_context=best[start:end] == number,
                features=features,
                start_position=first,
                end_position=last,
                is_impossible=is_training and first == 0,
            )
    for what, count in without_window.items():
        logging.warning("%d questions are left out: their %s", count, what)


def _answer_pieces(example: SquadExample, offsets: np.ndarray) -> tuple[int, int] | None:
    """Returns the first answer's first and last piece in the paragraph; None if there is none."""
    if example.is_impossible:
        return None
    if not example.answers:
        raise ValueError(
            f"question {example.qas_id} has no answer to train on: add one, or set its "
            "is_impossible to true"
        )
    answer, (starts, ends) = example.answers[0], offsets.T
    last = answer.start + len(answer.text) - 1
    # Of a character without a piece, the pieces after and before it.
    first_piece = int(np.searchsorted(ends, answer.start, side="right"))
    last_piece = int(np.searchsorted(starts, last, side="right")) - 1
    return min(first_piece, len(starts) - 1), max(last_piece, 0)


def best_spans(spans: list[tuple[int, int]], length: int) -> np.ndarray:
    """Returns for each piece the window with most context on its shorter side, `<int>[length]`."""
    # Window by window: a table of all windows and pieces would be quadratic in the paragraph.
    best, scores = np.zeros(length, np.int64), np.full(length, -1.0)
    for index, (start, end) in enumerate(spans):
        places = np.arange(end - start)
        found = np.minimum(places, places[::-1]) + 0.01 * (end - start)
        better = found > scores[start:end]
        scores[start:end][better] = found[better]
        best[start:end][better] = index
    return best


# --- answers -----------------------------------------------------------------------------------


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


def predict(
    examples: Sequence[SquadExample],
    windows: Sequence[SquadSpan],
    outputs: Mapping[str, np.ndarray],
    n_best_size: int,
    max_answer_length: int,
    may_be_impossible: bool,
) -> Predictions:
    """Turns a model's outputs on windows into answers.

    Args:
      examples: All questions.
      windows: Their windows.
      outputs: Those of AlbertForQuestionAnswering or ...V2, a row per window.
      n_best_size: Number of positions tried as starts and as ends, unless the model has a beam, and
        of answers kept.
      max_answer_length: Maximum number of pieces per answer.
      may_be_impossible: Whether there are null odds. Those of a model without a head for them are
        the score of [CLS] as start and end, the least of a question's windows, less the score of
        its best answer. The answers don't depend on them (see `apply_null_threshold`): one is empty
        only if there is no other. Without null odds it is then "empty".

    Source: squad_utils.py, accumulate_predictions and write_predictions of v1 and v2;
    google-research/bert, run_squad.py, write_predictions.
    """
    has_beam = "cls_logits" in outputs
    pairs: Iterable[Iterable[tuple[_Scored, _Scored]]]
    if has_beam:
        pairs = map(_beam_pairs, *(outputs[name] for name in _BEAM))
    else:
        pairs = _all_pairs(outputs, n_best_size)
    fallback = _NO_ANSWER if may_be_impossible else _entry("empty", 0.0, 0.0)
    nbest = _nbest(examples, windows, pairs, n_best_size, max_answer_length, fallback)
    if not may_be_impossible:
        return Predictions(best_texts(nbest), nbest, {})

    if has_beam:
        scores = outputs["cls_logits"]
    else:
        scores = outputs["start_logits"][:, 0].astype(float) + outputs["end_logits"][:, 0]
    null_odds = dict.fromkeys(nbest, NO_WINDOW_NULL_ODDS)
    for window, score in zip(windows, scores.tolist(), strict=True):
        qas_id = examples[window.example_index].qas_id
        null_odds[qas_id] = min(null_odds[qas_id], score)
    if not has_beam:
        for qas_id, (best, *_) in nbest.items():
            null_odds[qas_id] = min(null_odds[qas_id] - _score(best), NO_WINDOW_NULL_ODDS)
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


def best_texts(nbest: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """Returns the best answer to each question."""
    return {qas_id: entries[0]["text"] for qas_id, entries in nbest.items()}


def _all_pairs(
    outputs: Mapping[str, np.ndarray], count: int
) -> Iterator[Iterable[tuple[_Scored, _Scored]]]:
    """Yields for each window the pairs of its `count` best starts and ends."""
    for starts, ends in zip(outputs["start_logits"], outputs["end_logits"], strict=True):
        yield itertools.product(_scored_best(starts, count), _scored_best(ends, count))


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
        different: dict[str, dict[str, Any]] = {}
        for entry in sorted(entries, key=_score, reverse=True):  # Of equal ones the first stays.
            different.setdefault(entry["text"], entry)
        found[index] = list(different.values())[:n_best_size]
    return {
        example.qas_id: _with_probabilities(found[index] or [fallback])
        for index, example in enumerate(examples)
    }


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


def _score(entry: Mapping[str, Any]) -> float:
    return entry["start_log_prob"] + entry["end_log_prob"]


def _with_probabilities(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    scores = [_score(entry) for entry in entries]
    exponentials = [math.exp(score - max(scores)) for score in scores]
    total = sum(exponentials)
    return [
        {"text": entry["text"], "probability": value / total, **entry}
        for entry, value in zip(entries, exponentials, strict=True)
    ]
