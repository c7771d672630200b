"""SQuAD: finds the span of a paragraph that answers a question (1.1), if there is one (2.0)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.model import finetuning
from albert_tf.tasks import losses, metrics, squad_predictions, squad_text
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.squad_predictions import Predictions, SquadSettings
from albert_tf.tasks.squad_text import SquadExample, SquadSpan
from albert_tf.tasks.stored_predictions import path_of
from albert_tf.tasks.supervised import ModelOptions, SupervisedTask
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text_files import parse_json
from albert_tf.types import Array, Features

# Where a window's pieces are in the paragraph, stored per position like all sequences.
_PLACES = ("char_starts", "char_ends", "is_max_context")


class SquadTask(SupervisedTask[SquadExample, Predictions]):
    """Base class of both tasks. Examples are SquadExamples, a row is a window on a paragraph.

    Args:
      squad: How windows are cut and answers chosen.
      options: See SupervisedTask.
      tokenizer: See SupervisedTask.
      max_seq_length: See SupervisedTask.

    Attributes:
      decode: The function of squad_predictions that turns the model's outputs into answers.
    """

    key_metric = "f1"
    metric_names: tuple[str, ...] = ("exact_match", "f1")
    labels: tuple[str, ...] = ("start_positions", "end_positions")
    loss_names: tuple[str, ...] = ("start_loss", "end_loss")
    decode: Callable[..., Predictions]

    def __init__(
        self,
        squad: SquadSettings,
        options: ModelOptions | None,
        tokenizer: Tokenizer | None,
        max_seq_length: int,
    ) -> None:
        super().__init__(options, tokenizer, max_seq_length)
        self.squad = squad

    @property
    def settings(self) -> dict[str, Any]:
        """See SupervisedTask."""
        squad = self.squad
        windows = {"doc_stride": squad.doc_stride, "max_query_length": squad.max_query_length}
        return {**super().settings, **windows}

    def rows(
        self, examples: Sequence[SquadExample], is_training: bool
    ) -> Iterator[Mapping[str, Any]]:
        """Yields a row for each window."""
        for window in squad_text.squad_windows(
            examples,
            self.tokenizer,
            self.max_seq_length,
            self.squad.doc_stride,
            self.squad.max_query_length,
            is_training,
        ):
            numbers = {
                "start_positions": window.start_position,
                "end_positions": window.end_position,
                "is_impossible": window.is_impossible,
                "example_index": window.example_index,
                "doc_offset": window.doc_offset,
            }
            length = len(window.features["input_ids"])
            places = {name: _at_positions(window, name, length) for name in _PLACES}
            scalars = {name: np.int32(value) for name, value in numbers.items()}
            yield {**window.features, **scalars, **places}

    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns half the loss of the start and half that of the end."""
        return losses.span_losses(outputs, features)

    def predictions(
        self, examples: Sequence[SquadExample], features: FeatureTable, outputs: Any
    ) -> Predictions:
        """Returns the best answers, and the null odds of SQuAD 2.0."""
        return self.decode(
            examples,
            _spans(features),
            outputs,
            self.squad.n_best_size,
            self.squad.max_answer_length,
        )

    def write(
        self, directory: str, split: str, examples: Sequence[SquadExample], predictions: Predictions
    ) -> None:
        """Writes predictions.json, nbest_predictions.json and, if there are any, null_odds.json.

        For "dev" they are named dev_predictions.json and so on.
        """
        _write_json(directory, split, "predictions", self.texts(examples, predictions))
        _write_json(directory, split, "nbest_predictions", predictions.nbest)
        if predictions.null_odds:
            _write_json(directory, split, "null_odds", predictions.null_odds)

    def texts(self, examples: Sequence[SquadExample], predictions: Predictions) -> dict[str, str]:
        """Returns the final answers, by question."""
        return predictions.texts

    def average(
        self, directories: Sequence[str], split: str, examples: Sequence[SquadExample]
    ) -> Predictions:
        """Returns the answers with the highest mean probability.

        An answer that is not among a model's n best counts with probability 0.

        Source: the paper, section 4.9, which averages the scores of spans and of "no answer".
        """
        qas_ids = {example.qas_id for example in examples}
        found = [_read_json(path, split, "nbest_predictions", qas_ids) for path in directories]
        nbest = {
            example.qas_id: squad_predictions.mean_nbest([each[example.qas_id] for each in found])
            for example in examples
        }
        nbest = {qas_id: entries[: self.squad.n_best_size] for qas_id, entries in nbest.items()}
        return Predictions(squad_predictions.best_texts(nbest), nbest, {})


class SquadV1Task(SquadTask):
    """SQuAD 1.1: each question has an answer.

    Args: see SquadTask.

    Source: run_squad_v1.py.
    """

    decode = staticmethod(squad_predictions.predict_v1)

    def build_model(self) -> keras.Model:
        """Returns a new AlbertForQuestionAnswering."""
        return finetuning.AlbertForQuestionAnswering(**self.options.arguments)

    def scores(
        self, examples: Sequence[SquadExample], predictions: Predictions
    ) -> dict[str, float]:
        """Returns the official `exact_match` and `f1`, in percent."""
        if not is_labelled(examples):
            return {}
        return metrics.squad_v1_scores(predictions.texts, answer_texts(examples))


class SquadV2Task(SquadTask):
    """SQuAD 2.0: a question may have no answer.

    Args: see SquadTask.

    Source: run_squad_v2.py.
    """

    inputs = (*SquadTask.inputs, "p_mask")
    labels = (*SquadTask.labels, "is_impossible")
    loss_names = (*SquadTask.loss_names, "answerability_loss")
    metric_names = ("exact", "f1", "best_exact", "best_f1")
    decode = staticmethod(squad_predictions.predict_v2)

    def build_model(self) -> keras.Model:
        """Returns a new AlbertForQuestionAnsweringV2."""
        return finetuning.AlbertForQuestionAnsweringV2(
            start_n_top=self.squad.start_n_top,
            end_n_top=self.squad.end_n_top,
            **self.options.arguments,
        )

    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns half the losses of start, end and answerability."""
        loss = losses.answerability_loss(outputs, features)
        return {**super().example_losses(outputs, features), "answerability_loss": loss}

    def texts(self, examples: Sequence[SquadExample], predictions: Predictions) -> dict[str, str]:
        """Returns the answers; "" if null odds reach the threshold.

        It is the one that `tuned` was told or, as in the release, the one with the best F1 on the
        set itself. For a set without labels that is unknown, and 0 (even odds) is used.
        """
        threshold = predictions.null_threshold
        if threshold is None and is_labelled(examples):
            threshold = self.scores(examples, predictions)["best_f1_thresh"]
        elif threshold is None:
            logging.info("there are no answers to find the best null threshold with: 0 is used")
            threshold = 0.0
        return squad_predictions.apply_null_threshold(predictions, threshold)

    def tuned(self, predictions: Predictions, dev_scores: Mapping[str, float]) -> Predictions:
        """Returns predictions with the null threshold that gave the best F1 on "dev"."""
        threshold = dev_scores.get("best_f1_thresh")
        if threshold is not None:
            logging.info("null threshold: %g, the best of the file to evaluate on", threshold)
        return dataclasses.replace(predictions, null_threshold=threshold)

    def scores(
        self, examples: Sequence[SquadExample], predictions: Predictions
    ) -> dict[str, float]:
        """Returns the official evaluator's scores of predictions.json, in percent, and more.

        These are `exact` and `f1`, also for the questions with and without an answer;
        `best_exact`, `best_f1` and the null thresholds at which they are reached on this set.

        Source: squad_utils.py, evaluate_v2.
        Differs: the release treats null odds above 1 as "no answer", whatever the threshold.
        """
        if not is_labelled(examples):
            return {}
        answers, odds = answer_texts(examples), predictions.null_odds
        result = metrics.squad_v2_scores(predictions.texts, odds, answers)
        threshold = predictions.null_threshold
        if threshold is None:
            threshold = result["best_f1_thresh"]
        texts = squad_predictions.apply_null_threshold(predictions, threshold)
        final = metrics.squad_v2_scores(texts, odds, answers)
        return {name: (result if name.startswith("best_") else final)[name] for name in result}

    def average(
        self, directories: Sequence[str], split: str, examples: Sequence[SquadExample]
    ) -> Predictions:
        """Returns the answers with the highest mean probability, and mean null odds."""
        averaged = super().average(directories, split, examples)
        qas_ids = set(averaged.texts)
        odds = [_read_json(path, split, "null_odds", qas_ids) for path in directories]
        means = {
            qas_id: float(np.mean([each[qas_id] for each in odds])) for qas_id in averaged.texts
        }
        return Predictions(averaged.texts, averaged.nbest, means)


def is_labelled(examples: Sequence[SquadExample]) -> bool:
    """Whether the examples have any labels."""
    return any(example.answers or example.is_impossible for example in examples)


def answer_texts(examples: Sequence[SquadExample]) -> dict[str, list[str]]:
    """Returns the right answers, by question."""
    return {example.qas_id: [answer.text for answer in example.answers] for example in examples}


def _at_positions(span: SquadSpan, name: str, length: int) -> np.ndarray:
    """Puts a feature of a paragraph's pieces at their positions in the window; 0 elsewhere."""
    values, row = getattr(span, name), np.zeros(length, np.int32)
    row[span.doc_offset : span.doc_offset + len(values)] = values
    return row


def _spans(features: FeatureTable) -> list[SquadSpan]:
    """Returns the span of the paragraph that each row shows."""
    ends = np.cumsum(features.lengths)
    spans = []
    for i, (end, length) in enumerate(zip(ends, features.lengths, strict=True)):
        offset = int(features.scalars["doc_offset"][i])
        # The last position is [SEP].
        paragraph = slice(end - length + offset, end - 1)
        places = {name: features.sequences[name][paragraph] for name in _PLACES}
        places["is_max_context"] = places["is_max_context"].astype(bool)
        spans.append(
            SquadSpan(
                example_index=int(features.scalars["example_index"][i]),
                doc_offset=offset,
                **places,
            )
        )
    return spans


def _write_json(directory: str, split: str, name: str, content: Mapping[str, Any]) -> None:
    files.replace(path_of(directory, split, f"{name}.json"), json.dumps(content, indent=4) + "\n")


def _read_json(directory: str, split: str, name: str, qas_ids: set[str]) -> dict[str, Any]:
    path = path_of(directory, split, f"{name}.json")
    if not files.exists(path):
        raise FileNotFoundError(f"{path} does not exist: run prediction (`do_predict`) there first")
    content = parse_json(files.read_bytes(path), path)
    if not isinstance(content, dict) or content.keys() != qas_ids:
        raise ValueError(
            f"{path} has other questions than those to predict: predict these there first"
        )
    return content
