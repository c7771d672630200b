"""Answers as spans of a context, or none: windows on contexts, and the best spans in them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from albert_tf.answers import rows as rows_of
from albert_tf.answers.kind import Kind, Reading, option, strings
from albert_tf.answers.rows import Row
from albert_tf.text.tokenization import Tokenizer
from albert_tf.types import Features

# Null odds of a question whose context has no pieces.
NO_WINDOW_NULL_ODDS = 1_000_000.0
_BEAM = ("start_top_index", "start_top_log_probs", "end_top_index", "end_top_log_probs")
# An answer: `text`, `start_log_prob`, `end_log_prob` and, among others, its `probability`; in a
# context also its `start`, the index of its first character.
Entry = dict[str, Any]
# A position in a window and its score.
_Scored = tuple[int, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span(Kind):
    """Finds the answer to a question in a context of any length, which is read in windows.

    Attributes:
      doc_stride: Pieces from one window's start to the next one's.
      max_query_length: Maximum number of pieces per question; longer ones are cut.
      max_answer_length: Maximum number of pieces per answer.
      n_best_size: Number of answers; and of positions that are tried as starts and as ends, unless
        the model has a beam.

    Source: squad_utils.py, convert_examples_to_features and write_predictions_v1 and _v2;
    google-research/bert, run_squad.py, write_predictions.
    Differs: normalisation tells which characters a piece stands for. The release aligns the two
    texts, which fails where many spaces or unknown words are in them.
    """

    task = "answer_v1"
    task_name = "squad_v1"
    model = "AlbertForQuestionAnswering"
    pipeline = "question-answering"
    heads: ClassVar[tuple[str, ...]] = ("cls/squad/",)
    title = "Ask a text"
    # Whether a question may have no answer; and whether the model returns a beam of starts, each
    # with its ends, and a separate score for no answer.
    may_be_impossible: ClassVar[bool] = False
    has_beam: ClassVar[bool] = False

    doc_stride: int = option(128, "Distance in tokens between the starts of successive windows.")
    max_query_length: int = option(64, "Maximum length of a question in tokens.")
    max_answer_length: int = option(30, "Maximum length of an answer in tokens.")
    n_best_size: int = option(20, "Number of answers returned, best first.", most=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_query_length > self.max_seq_length - 4:
            raise ValueError(
                f"`max_query_length` {self.max_query_length} leaves no room for the context in "
                f"sequences of {self.max_seq_length} tokens: set it to at most "
                f"{self.max_seq_length - 4}"
            )

    @property
    def text_names(self) -> tuple[str, ...]:
        return ("question", "context")

    @property
    def outputs(self) -> Mapping[str, tuple[int | None, ...] | None]:
        return {"start_logits": (None, None), "end_logits": (None, None)}

    @property
    def feature_settings(self) -> dict[str, Any]:
        windows = {"doc_stride": self.doc_stride, "max_query_length": self.max_query_length}
        return {**super().feature_settings, **windows}

    def rows(self, tokenizer: Tokenizer, question: str, context: str) -> Iterator[Row]:
        """Yields a row for each window on a context; a context without pieces has none."""
        pieces = tokenizer.encode_with_offsets(context)
        return (row for _, row in self.windows(tokenizer, question, *pieces))

    def windows(
        self, tokenizer: Tokenizer, question: str, ids: Sequence[int], offsets: np.ndarray
    ) -> Iterator[tuple[range, Row]]:
        """Yields the pieces of a context that each window shows, and the window's row.

        Beside FEATURES a row has `p_mask` (0 = [CLS] and context), `doc_offset` `<int32>[]`, the
        position of the first of these pieces, and, at the positions of pieces, `char_starts` and
        `char_ends`, their first and last characters, and `is_max_context`, whether no other window
        has more context around the piece. All are `<int32>[L]`.

        Args:
          tokenizer: The model's.
          question: Raw text.
          ids: The context's pieces.
          offsets: `<int>[P, 2]`, the characters of each, as `encode_with_offsets` returns them.
        """
        if not len(ids):
            return
        # A window is [CLS] question [SEP] part of the context [SEP].
        query = tokenizer.encode(question, self.max_query_length)
        offset = len(query) + 2
        # As released: the first piece begins at character 0, whatever normalisation drops there.
        starts, ends = offsets[:, 0] * (np.arange(len(ids)) > 0), np.maximum(offsets[:, 1] - 1, 0)
        # The last [SEP] takes one more place.
        room = self.max_seq_length - 1 - offset
        spans = rows_of.window_spans(len(ids), room, self.doc_stride)
        best = best_spans(spans, len(ids))
        for number, (start, end) in enumerate(spans):
            row = rows_of.join_ids(tokenizer, query, ids[start:end])
            # An answer may start or end in the context, or at [CLS], which stands for no answer.
            row["p_mask"] = np.ones_like(row["input_ids"])
            row["p_mask"][0] = row["p_mask"][offset:-1] = 0
            places = {
                "char_starts": starts[start:end],
                "char_ends": ends[start:end],
                "is_max_context": best[start:end] == number,
            }
            # Positions outside of the context stay 0.
            for name, values in places.items():
                row[name] = np.zeros_like(row["input_ids"])
                row[name][offset:-1] = values
            row["doc_offset"] = np.array(offset, np.int32)
            yield range(start, end), row

    def best(
        self, context: str, rows: Sequence[Row], outputs: Sequence[Features]
    ) -> tuple[list[Entry], float]:
        """Returns the best distinct answers to a question, and its null odds.

        The answers don't depend on the odds.

        Args:
          context: Raw text.
          rows: The rows of its windows.
          outputs: The model's outputs for each row.

        Returns:
          At most `n_best_size` answers, best first, with `probability` normalised over them. There
          may be none.
        """
        entries: list[Entry] = []
        odds = NO_WINDOW_NULL_ODDS
        for row, output in zip(rows, outputs, strict=True):
            found = [*entries, *self._answers(context, row, self._pairs(output))]
            # Keep only the best after each window, since a context may have thousands.
            # Equal texts are one answer, with the score of the best of them.
            different: dict[str, Entry] = {}
            for entry in sorted(found, key=_score, reverse=True):  # Stable: the first of equals.
                different.setdefault(entry["text"], entry)
            entries = list(different.values())[: self.n_best_size]
            odds = min(odds, self._null_score(output))
        return with_probabilities(entries), self._null_odds(odds, entries)

    def _null_score(self, output: Features) -> float:
        """Returns the score of "no answer" in a window: that of [CLS] as start and end."""
        return float(output["start_logits"][0]) + float(output["end_logits"][0])

    def _null_odds(self, score: float, entries: Sequence[Entry]) -> float:
        """Returns the null odds: the least score of all windows, minus that of the best answer."""
        best = _score(entries[0]) if entries else -2 * NO_WINDOW_NULL_ODDS
        return min(score - best, NO_WINDOW_NULL_ODDS)

    def _pairs(self, output: Features) -> Iterable[tuple[_Scored, _Scored]]:
        """Returns starts and ends to try in a window: all pairs of the best."""
        starts = _scored_best(output["start_logits"], self.n_best_size)
        ends = _scored_best(output["end_logits"], self.n_best_size)
        return itertools.product(starts, ends)

    def _answers(
        self, context: str, row: Row, pairs: Iterable[tuple[_Scored, _Scored]]
    ) -> Iterator[Entry]:
        """Yields valid spans of the context, except where another window shows more context."""
        offset = int(row["doc_offset"])
        starts, ends, counts = (
            row[name][offset:-1] for name in ("char_starts", "char_ends", "is_max_context")
        )
        for (start, start_score), (end, end_score) in pairs:
            # Turn positions in the sequence into pieces of this window.
            first, last = start - offset, end - offset
            if not 0 <= first <= last < min(len(starts), first + self.max_answer_length):
                continue
            # Where windows overlap, only the one with most context around the start counts.
            if counts[first]:
                text = context[starts[first] : ends[last] + 1]
                place = int(starts[first]) + len(text) - len(text.lstrip())
                yield {**entry(text.strip(), start_score, end_score), "start": place}

    def found(self, reading: Reading) -> dict[str, Any]:
        _, (_, context), rows, outputs = reading
        entries, odds = self.best(context, rows, outputs)
        # A SavedModel always returns N answers: pad as it does.
        rest = self.n_best_size - len(entries)
        answers = [entry["text"] for entry in entries] + [""] * rest
        shares = [entry["probability"] for entry in entries] + [0.0] * rest
        starts = [entry["start"] for entry in entries] + [0] * rest
        return {
            "answer": answers[0],
            "answers": strings(answers),
            "probabilities": np.array(shares, np.float32),
            "starts": np.array(starts, np.int32),
            **self._judged(answers[0], odds),
        }

    def _judged(self, answer: str, odds: float) -> dict[str, Any]:
        """Returns the null odds, and the answer if they change it."""
        return {}

    def answer(self, found: Mapping[str, Any]) -> dict[str, Any]:
        pairs = zip(found["answers"].tolist(), found["probabilities"].tolist(), strict=True)
        answers = [{"text": text, "probability": share} for text, share in pairs if text]
        odds = {"null_odds": float(found["null_odds"])} if self.may_be_impossible else {}
        return {"answer": found["answer"], "answers": answers, **odds}

    def said(self, answer: Mapping[str, Any]) -> str:
        text = answer["answer"]
        found = [each["probability"] for each in answer["answers"] if each["text"] == text]
        return f"{text} ({found[0]:.3f})" if found else "no answer"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanOrNone(Span):
    """Finds the answer to a question, or that there is none: SQuAD 2.0 with BERT's head.

    The span of [CLS] stands for no answer.

    Attributes:
      null_threshold: At these null odds (score of "no answer") or more, the answer is "".
        Evaluation finds the best value (`best_f1_thresh`).

    Source: google-research/bert, run_squad.py with version_2_with_negative.
    Differs: no answer is "", not "empty".
    """

    task = "answer_v2"
    task_name = "squad_v2"
    may_be_impossible = True

    null_threshold: float = option(
        0.0,
        'Null odds (score of "no answer") from which on the answer is empty.',
        least=-1e30,
        most=1e30,
    )

    def with_threshold(self, threshold: float | None) -> SpanOrNone:
        return self if threshold is None else self.replace(null_threshold=threshold)

    def _judged(self, answer: str, odds: float) -> dict[str, Any]:
        is_answered = odds < self.null_threshold
        return {"answer": answer if is_answered else "", "null_odds": np.float32(odds)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSpan(SpanOrNone):
    """SQuAD 2.0 with the release's head: a beam of starts and ends, and a score for no answer.

    Attributes:
      start_n_top: Number of starts in the beam.
      end_n_top: Number of ends for each of these.

    Source: run_squad_v2.py.
    """

    model = "AlbertForQuestionAnsweringV2"
    pipeline = ""
    is_hugging_face = False
    heads = ("start_logits/", "end_logits/", "answer_class/")
    has_beam = True

    start_n_top: int = option(5, "Beam size, the number of answer starts considered.")
    end_n_top: int = option(5, "Beam size, the number of answer ends considered per start.")

    def __post_init__(self) -> None:
        super().__post_init__()
        # The model ranks this many positions of each row.
        if self.least_length > self.max_seq_length:
            raise ValueError(
                f"`start_n_top` and `end_n_top` must be at most {self.max_seq_length} "
                f"(`max_seq_length`), got {self.start_n_top} and {self.end_n_top}"
            )

    @property
    def outputs(self) -> Mapping[str, tuple[int | None, ...] | None]:
        starts, ends = self.start_n_top, self.start_n_top * self.end_n_top
        shapes = {"start": (None, starts), "end": (None, ends)}
        beam = {f"{side}_top_log_probs": shape for side, shape in shapes.items()}
        return {"cls_logits": (None,), **beam}

    @property
    def least_length(self) -> int:
        return max(self.start_n_top, self.end_n_top)

    @property
    def model_arguments(self) -> dict[str, Any]:
        return {"start_n_top": self.start_n_top, "end_n_top": self.end_n_top}

    def _null_score(self, output: Features) -> float:
        return float(output["cls_logits"])

    def _null_odds(self, score: float, entries: Sequence[Entry]) -> float:
        return score

    def _pairs(self, output: Features) -> Iterator[tuple[_Scored, _Scored]]:
        """Yields the starts of a window's beam, each with all its ends."""
        starts, start_scores, ends, end_scores = (output[name].tolist() for name in _BEAM)
        # The ends of one start follow each other, as the model's beam has them.
        of_start = len(ends) // len(starts)
        for i, end in enumerate(ends):
            start = i // of_start
            yield (starts[start], start_scores[start]), (end, end_scores[i])


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


def entry(text: str, start_log_prob: float, end_log_prob: float) -> Entry:
    """Returns an answer with its scores."""
    return {"text": text, "start_log_prob": start_log_prob, "end_log_prob": end_log_prob}


def with_probabilities(entries: list[Entry]) -> list[Entry]:
    """Returns answers with probabilities, which are normalised over them."""
    scores = [_score(each) for each in entries]
    # Relative to the best score, so that exp can't overflow.
    exponentials = [math.exp(score - max(scores)) for score in scores]
    total = sum(exponentials)
    return [
        {"text": each["text"], "probability": value / total, **each}
        for each, value in zip(entries, exponentials, strict=True)
    ]


def _score(each: Entry) -> float:
    return each["start_log_prob"] + each["end_log_prob"]


def _scored_best(logits: np.ndarray, count: int) -> list[_Scored]:
    """Returns the positions of the `count` largest logits; among equal ones, the first wins."""
    return [(int(i), float(logits[i])) for i in np.argsort(-logits, kind="stable")[:count]]
