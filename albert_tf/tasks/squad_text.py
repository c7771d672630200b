"""SQuAD: questions about paragraphs -> windows for the model; outputs on windows -> answers."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from albert_tf.answers.rows import Row
from albert_tf.answers.span import NO_WINDOW_NULL_ODDS, Span, entry, with_probabilities
from albert_tf.storage import files, parquet_files
from albert_tf.storage.text_files import json_member, parse_json
from albert_tf.tasks.table import table_records
from albert_tf.text.tokenization import Tokenizer
from albert_tf.types import Features

FLAT_FORMATS = (".jsonl", parquet_files.ENDING)
# The only n-best entry of a question without any candidate answer.
_NO_ANSWER = entry("", -NO_WINDOW_NULL_ODDS, -NO_WINDOW_NULL_ODDS)


@dataclasses.dataclass(frozen=True)
class Answer:
    """A gold answer."""

    text: str
    start: int  # Its first character in the paragraph.


@dataclasses.dataclass(frozen=True)
class SquadExample:
    """A question about a paragraph."""

    qas_id: str
    question: str  # Raw text.
    paragraph: str  # Raw text.
    answers: tuple[Answer, ...]  # The gold answers; none if there is no answer.
    is_impossible: bool  # Whether the paragraph holds no answer.


def read_squad(path: str | os.PathLike[str]) -> list[SquadExample]:
    """Reads a file of SQuAD 1.1 or 2.0, or a table (FLAT_FORMATS) with a question in each row.

    A table has the columns of Hugging Face's data sets: `id`, `question`, `context` and `answers`,
    whose lists are empty if there is no answer. A file to predict needs no answers; then all rows
    lack them, or have null.

    Source: squad_utils.py, read_squad_examples.
    """
    files.check_file(path)
    ending = os.path.splitext(path)[1].lower()
    if ending in FLAT_FORMATS:
        examples = list(_rows(os.fspath(path)))
    else:
        content = parse_json(files.read_bytes(path), f"{path} (no {' or '.join(FLAT_FORMATS)})")
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


def _rows(path: str) -> Iterator[SquadExample]:
    first = None
    wanted, optional = ("id", "question", "context"), ("answers", "is_impossible")
    for number, row in table_records(path, wanted, optional):
        where = f"{path}:{number}"
        context = json_member(row, "context", where, str)
        if row.get("is_impossible") is None:
            row["is_impossible"] = _answers(row, where) == []
        example = _example(context, row, where)
        is_labelled = row.get("answers") is not None or example.is_impossible
        # The first row decides whether the file has labels.
        first = is_labelled if first is None else first
        if is_labelled != first:
            raise ValueError(
                f"{where}: the question {'has' if is_labelled else 'lacks'} answers, unlike the "
                "first: label all questions or none (empty lists mean no answer)"
            )
        yield example


def _example(paragraph: str, question: Any, where: str) -> SquadExample:
    qas_id = str(json_member(question, "id", where, str, int))
    where = f"{where}: question {qas_id}"
    # SQuAD 1.1 lacks is_impossible; a file to predict may lack answers. Some tools write null, 0 or
    # 1 for is_impossible, and an answer with empty text for a question that has none.
    found = {"is_impossible": False, **question}
    if found["is_impossible"] in (None, 0, 1):
        found["is_impossible"] = bool(found["is_impossible"])
    answers = _answers(question, where) or []
    if found["is_impossible"] is True:
        if any(not isinstance(each, dict) or each.get("text") for each in answers):
            raise ValueError(f"{where} has is_impossible and answers: give one of them")
        answers = []
    return SquadExample(
        qas_id=qas_id,
        question=json_member(question, "question", where, str),
        paragraph=paragraph,
        answers=tuple(_answer(each, where) for each in answers),
        is_impossible=json_member(found, "is_impossible", where, bool),
    )


def _answers(question: Mapping[str, Any], where: str) -> list[Any] | None:
    """Returns a question's answers, which may be an object of two lists; None if it has none."""
    found = question.get("answers")
    if not isinstance(found, dict):
        return None if found is None else json_member(question, "answers", where, list)
    texts, starts = (json_member(found, name, where, list) for name in ("text", "answer_start"))
    if len(texts) != len(starts):
        raise ValueError(
            f"{where}: expected as many answer_start as text, got {len(starts)} and {len(texts)}"
        )
    pairs = zip(texts, starts, strict=True)
    return [{"text": text, "answer_start": start} for text, start in pairs]


def _answer(answer: Any, where: str) -> Answer:
    text, start = json_member(answer, "text", where, str), answer.get("answer_start")
    is_whole = isinstance(start, float) and start.is_integer()
    return Answer(text, int(start) if is_whole else json_member(answer, "answer_start", where, int))


def _check(examples: list[SquadExample], path: str | os.PathLike[str]) -> None:
    # Predictions are stored by id, so an id may occur only once.
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


def squad_rows(
    kind: Span, examples: Iterable[SquadExample], tokenizer: Tokenizer, is_training: bool
) -> Iterator[Row]:
    """Turns examples into rows, one for each window on a paragraph.

    A row has the features of Span.windows and, as `<int32>[]`, `example_index`; `start_positions`
    and `end_positions`, the positions of the answer's first and last piece, or 0, the position of
    [CLS], if the window lacks the answer or a part of it; and `is_impossible`, 1 in that case.

    A paragraph without pieces gives no row. In training the first answer counts, and one without
    pieces gives no row either. Such questions are counted, and logged at the end. Keep examples
    with the same paragraph together, so that it is tokenized only once.

    Source: squad_utils.py, convert_examples_to_features.
    """
    without_window: dict[str, int] = collections.Counter()
    text = None
    for index, example in enumerate(examples):
        # Questions on one paragraph follow each other, so its pieces are made once.
        if text != example.paragraph:
            text = example.paragraph
            ids, offsets = tokenizer.encode_with_offsets(text)
        if not ids:
            without_window["paragraph has no text"] += 1
            continue
        # Training needs the answer's pieces; prediction only the windows.
        answer = _answer_pieces(example, offsets) if is_training else None
        if answer is not None and answer[0] > answer[1]:
            without_window["answer has no text"] += 1
            continue
        for pieces, row in kind.windows(tokenizer, example.question, ids, offsets):
            # A window that cuts the answer is trained to give none.
            first, last, offset = 0, 0, int(row.pop("doc_offset"))
            if answer is not None and answer[0] in pieces and answer[1] in pieces:
                # From pieces of the paragraph to positions in the sequence.
                first, last = (piece - pieces.start + offset for piece in answer)
            numbers = {
                "start_positions": first,
                "end_positions": last,
                "is_impossible": is_training and first == 0,
                "example_index": index,
                "doc_offset": offset,
            }
            yield row | {name: np.array(value, np.int32) for name, value in numbers.items()}
    for what, count in without_window.items():
        logging.warning("%d questions are left out: their %s", count, what)


def context_rows(
    questions: Sequence[str], contexts: Sequence[str], tokenizer: Tokenizer, **options: Any
) -> Iterator[Row]:
    """Yields the rows of questions without known answers; `options` are a Span's."""
    asked = enumerate(zip(questions, contexts, strict=True))
    examples = [SquadExample(str(i), *both, (), False) for i, both in asked]
    return squad_rows(Span(**options), examples, tokenizer, is_training=False)


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
    # Where the first or last character has no piece, take the next or the previous piece.
    first_piece = int(np.searchsorted(ends, answer.start, side="right"))
    last_piece = int(np.searchsorted(starts, last, side="right")) - 1
    return min(first_piece, len(starts) - 1), max(last_piece, 0)


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Answers to questions, by id."""

    texts: dict[str, str]  # The best answer to each.
    # The n best answers to each, as dicts of `text`, `probability` (normalised over the n),
    # `start_log_prob` and `end_log_prob`.
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float]  # Null odds (score of "no answer"); empty for SQuAD 1.1.
    # Null odds at or above which a question counts as unanswerable, tuned on another set; None to
    # tune them on this set's own labels.
    null_threshold: float | None = None


def predict(
    kind: Span, examples: Sequence[SquadExample], rows: Sequence[tuple[int, Row, Features]]
) -> Predictions:
    """Turns a model's outputs on windows into answers.

    Null odds are not applied here (see `apply_null_threshold`). A question without any candidate
    gets the answer "" or, where an answer is required, "empty".

    Args:
      kind: How answers are chosen.
      examples: The questions.
      rows: For each window, in the order of the questions: the number of its question, its
        features, and the model's outputs.
    """
    # A question whose context has no piece has no windows.
    nothing = _NO_ANSWER if kind.may_be_impossible else entry("empty", 0.0, 0.0)
    # The windows of a question follow each other.
    of_question = itertools.groupby(rows, key=lambda row: row[0])
    windows = {index: [*group] for index, group in of_question}
    nbest, null_odds = {}, {}
    for index, example in enumerate(examples):
        own = windows.get(index, [])
        features, outputs = ([row[1] for row in own], [row[2] for row in own])
        entries, odds = kind.best(example.paragraph, features, outputs)
        for each in entries:
            del each["start"]  # The release's files have no places.
        nbest[example.qas_id] = entries or with_probabilities([nothing])
        null_odds[example.qas_id] = odds
    return Predictions(best_texts(nbest), nbest, null_odds if kind.may_be_impossible else {})


def apply_null_threshold(predictions: Predictions, threshold: float) -> dict[str, str]:
    """Returns the answers, but "" where the null odds reach a threshold.

    As in the release, the question whose odds equal the best threshold is left unanswered, although
    the search for that threshold counted its answer.

    Source: squad_utils.py, write_predictions_v2.
    """
    odds = predictions.null_odds
    return {
        qas_id: text if odds[qas_id] < threshold else ""
        for qas_id, text in predictions.texts.items()
    }


def best_texts(nbest: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """Returns the first of the n best answers to each question."""
    return {qas_id: entries[0]["text"] for qas_id, entries in nbest.items()}
