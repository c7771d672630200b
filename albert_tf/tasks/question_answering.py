"""SQuAD's tasks, also on your own questions: from a model's outputs to answers."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from albert_tf.model import finetuning
from albert_tf.storage import files
from albert_tf.storage.text_files import parse_json
from albert_tf.tasks import losses, metrics, squad_text
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.registry import SquadSettings, TaskRow, TaskSettings
from albert_tf.tasks.squad_text import (
    Predictions,
    SquadExample,
    SquadSpan,
    apply_null_threshold,
    best_texts,
    predict,
)
from albert_tf.tasks.supervised import ModelOptions, SupervisedTask, prediction_path
from albert_tf.text.tokenization import Tokenizer
from albert_tf.types import Array, Features


def _mean_nbest(nbests: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Averages several models' n best answers to a question, most probable first."""
    totals: dict[str, float] = collections.defaultdict(float)
    for entries in nbests:
        for entry in entries:
            totals[entry["text"]] += entry["probability"] / len(nbests)
    ordered = sorted(totals.items(), key=lambda item: item[1], reverse=True)
    return [{"text": text, "probability": probability} for text, probability in ordered]


class SquadTask(SupervisedTask[SquadExample, Predictions]):
    """Base class of the tasks. Examples are SquadExamples, a row is a window on a paragraph.

    Args:
      options, tokenizer, max_seq_length: See SupervisedTask.
      squad: How windows are cut and answers chosen.

    Attributes:
      may_be_impossible: Whether a question may have no answer.
    """

    key_metric = "f1"
    metric_names: tuple[str, ...] = ("exact_match", "f1")
    labels: tuple[str, ...] = ("start_positions", "end_positions")
    loss_names: tuple[str, ...] = ("start_loss", "end_loss")
    may_be_impossible = False

    def __init__(
        self,
        options: ModelOptions | None,
        tokenizer: Tokenizer | None,
        max_seq_length: int,
        squad: SquadSettings,
    ) -> None:
        super().__init__(options, tokenizer, max_seq_length)
        self.squad = squad

    @classmethod
    def arguments_of(
        cls, row: TaskRow, settings: TaskSettings, classes: tuple[str, ...]
    ) -> dict[str, Any]:
        return {"squad": settings}

    @property
    def reading(self) -> dict[str, Any]:
        names = ("doc_stride", "max_query_length", "max_answer_length", "n_best_size")
        return {**super().reading, **{name: getattr(self.squad, name) for name in names}}

    def check_answers(self, examples: Sequence[SquadExample], path: str, split: str) -> None:
        """Checks that a file has the answers that a split of the task needs."""
        if split == "dev" and not is_labelled(examples):
            raise ValueError(
                f"{path} has no answers to evaluate with: give another file with `eval_file`, or "
                "set `do_eval=false`"
            )

    @property
    def settings(self) -> dict[str, Any]:
        squad = self.squad
        windows = {"doc_stride": squad.doc_stride, "max_query_length": squad.max_query_length}
        return {**super().settings, **windows}

    def rows(
        self, examples: Sequence[SquadExample], is_training: bool
    ) -> Iterator[Mapping[str, Any]]:
        windows = squad_text.squad_windows(
            examples,
            self.tokenizer,
            self.max_seq_length,
            self.squad.doc_stride,
            self.squad.max_query_length,
            is_training,
        )
        return (window.row() for window in windows)

    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns half the loss of the start and half that of the end."""
        return losses.span_losses(outputs, features)

    def predictions(
        self, examples: Sequence[SquadExample], features: FeatureTable, outputs: Any
    ) -> Predictions:
        """Returns the best answers, and the null odds of SQuAD 2.0."""
        return predict(
            examples,
            _spans(features),
            outputs,
            self.squad.n_best_size,
            self.squad.max_answer_length,
            self.may_be_impossible,
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
        """Returns the answers with the highest mean probability, and mean null odds.

        An answer that is not among a model's n best counts with probability 0.

        Source: the paper, section 4.9, which averages the scores of spans and of "no answer".
        """
        ids, most = [example.qas_id for example in examples], self.squad.n_best_size
        found = [_read_json(path, split, "nbest_predictions", set(ids)) for path in directories]
        nbest = {qas_id: _mean_nbest([each[qas_id] for each in found])[:most] for qas_id in ids}
        null_odds = {}
        if self.may_be_impossible:
            odds = [_read_json(path, split, "null_odds", set(ids)) for path in directories]
            null_odds = {qas_id: float(np.mean([each[qas_id] for each in odds])) for qas_id in ids}
        return Predictions(best_texts(nbest), nbest, null_odds)


class SquadV1Task(SquadTask):
    """SQuAD 1.1: each question has an answer.

    Args: see SquadTask.

    Source: run_squad_v1.py.
    """

    model_class = finetuning.AlbertForQuestionAnswering
    served_as = "answer_v1"

    def check_answers(self, examples: Sequence[SquadExample], path: str, split: str) -> None:
        super().check_answers(examples, path, split)
        without = [each.qas_id for each in examples if each.is_impossible or not each.answers]
        if without and (split == "train" or is_labelled(examples)):
            raise ValueError(
                f"{path}: question {without[0]} has no answer, but this task needs one for each "
                "question: set `task_name=squad_v2` or, of question_answering, `allow_no_answer`"
            )

    def scores(
        self, examples: Sequence[SquadExample], predictions: Predictions
    ) -> dict[str, float]:
        """Returns the official `exact_match` and `f1`, in percent."""
        if not is_labelled(examples):
            return {}
        return metrics.squad_v1_scores(predictions.texts, answer_texts(examples))


class LinearSquadV2Task(SquadTask):
    """SQuAD 2.0 with the head of BERT, which is that of SQuAD 1.1: no answer is the span of [CLS].

    Args: see SquadTask.

    Source: google-research/bert, run_squad.py with version_2_with_negative.
    """

    model_class: type[keras.Model] = finetuning.AlbertForQuestionAnswering
    served_as = "answer_v2"
    metric_names = ("exact", "f1", "best_exact", "best_f1")
    may_be_impossible = True

    def serving_options(self, threshold: float | None = None) -> dict[str, Any]:
        return {**self.reading, "null_threshold": threshold or 0.0}

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
        return apply_null_threshold(predictions, threshold)

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
        texts = apply_null_threshold(predictions, threshold)
        final = metrics.squad_v2_scores(texts, odds, answers)
        return {name: (result if name.startswith("best_") else final)[name] for name in result}


class SquadV2Task(LinearSquadV2Task):
    """SQuAD 2.0 with the release's head: a beam of starts and their ends, and one for null odds.

    Args: see SquadTask.

    Source: run_squad_v2.py.
    """

    model_class = finetuning.AlbertForQuestionAnsweringV2
    inputs = (*SquadTask.inputs, "p_mask")
    labels = (*SquadTask.labels, "is_impossible")
    loss_names = (*SquadTask.loss_names, "answerability_loss")

    @property
    def model_arguments(self) -> dict[str, Any]:
        return {"start_n_top": self.squad.start_n_top, "end_n_top": self.squad.end_n_top}

    @property
    def least_length(self) -> int:
        # The model ranks so many positions of each row.
        return max(self.model_arguments.values())

    @property
    def reading(self) -> dict[str, Any]:
        return {**super().reading, **self.model_arguments}

    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns half the losses of start, end and answerability."""
        loss = losses.answerability_loss(outputs, features)
        return {**super().example_losses(outputs, features), "answerability_loss": loss}


def is_labelled(examples: Sequence[SquadExample]) -> bool:
    """Whether the examples have any labels."""
    return any(example.answers or example.is_impossible for example in examples)


def answer_texts(examples: Sequence[SquadExample]) -> dict[str, list[str]]:
    """Returns the right answers, by question."""
    return {example.qas_id: [answer.text for answer in example.answers] for example in examples}


def _spans(features: FeatureTable) -> list[SquadSpan]:
    """Returns the span of the paragraph that each row shows."""
    spans = []
    for i, end in enumerate(np.cumsum(features.lengths)):
        row = {name: values[i] for name, values in features.scalars.items()}
        for name, values in features.sequences.items():
            row[name] = values[end - features.lengths[i] : end]
        spans.append(SquadSpan.of_row(row))
    return spans


def _write_json(directory: str, split: str, name: str, content: Mapping[str, Any]) -> None:
    files.replace(
        prediction_path(directory, split, f"{name}.json"), json.dumps(content, indent=4) + "\n"
    )


def _read_json(directory: str, split: str, name: str, qas_ids: set[str]) -> dict[str, Any]:
    path = prediction_path(directory, split, f"{name}.json")
    if not files.exists(path):
        raise FileNotFoundError(f"{path} does not exist: run prediction (`do_predict`) there first")
    content = parse_json(files.read_bytes(path), path)
    if not isinstance(content, dict) or content.keys() != qas_ids:
        raise ValueError(
            f"{path} has other questions than those to predict: predict these there first"
        )
    return content
