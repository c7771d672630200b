"""SQuAD's tasks, also on a user's own questions: losses, answers, scores and files."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from albert_tf.answers.rows import Row
from albert_tf.storage import files
from albert_tf.tasks import losses, metrics, squad_text
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.squad_text import (
    Predictions,
    SquadExample,
    apply_null_threshold,
    best_texts,
    predict,
)
from albert_tf.tasks.supervised import SupervisedTask, prediction_path, read_stored
from albert_tf.types import Array, Features


def _mean_nbest(nbests: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Averages the n best answers of several models to a question; most probable first."""
    totals: dict[str, float] = collections.defaultdict(float)
    for entries in nbests:
        for entry in entries:
            totals[entry["text"]] += entry["probability"] / len(nbests)
    ordered = sorted(totals.items(), key=lambda item: item[1], reverse=True)
    return [{"text": text, "probability": probability} for text, probability in ordered]


class SquadTask(SupervisedTask[SquadExample, Predictions]):
    """Base class of SQuAD's tasks; each row is a window on a paragraph."""

    key_metric = "f1"
    metric_names: tuple[str, ...] = ("exact_match", "f1")
    labels: tuple[str, ...] = ("start_positions", "end_positions")
    loss_names: tuple[str, ...] = ("start_loss", "end_loss")

    def check_answers(self, examples: Sequence[SquadExample], path: str, split: str) -> None:
        """Checks that a split has the answers that the task needs."""
        if split == "dev" and not is_labelled(examples):
            raise ValueError(
                f"{path} has no answers to evaluate with: give another file with `eval_file`, or "
                "set `do_eval=false`"
            )

    def texts(self, example: SquadExample) -> tuple[Any, ...]:
        """Returns the raw texts of an example in the form that the kind reads."""
        return example.question, example.paragraph

    def rows(
        self, examples: Sequence[SquadExample], is_training: bool
    ) -> Iterator[Mapping[str, Any]]:
        return squad_text.squad_rows(self.kind, examples, self.tokenizer, is_training)

    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        return losses.span_losses(outputs, features)

    def predictions(
        self, examples: Sequence[SquadExample], features: FeatureTable, outputs: Any
    ) -> Predictions:
        windows = zip(_rows(features), rows_of(outputs), strict=True)
        rows = [(int(row["example_index"]), row, output) for row, output in windows]
        return predict(self.kind, examples, rows)

    def predictions_of(
        self, examples: Sequence[SquadExample], found: Sequence[Mapping[str, Any]]
    ) -> Predictions:
        """Turns the kind's answers, one per example, into predictions."""
        # Keep answers whatever their null odds: squad_v2 is scored at the best threshold.
        texts = {e.qas_id: each["answers"][0] for e, each in zip(examples, found, strict=True)}
        odds = {}
        if self.kind.may_be_impossible:
            pairs = zip(examples, found, strict=True)
            odds = {example.qas_id: float(each["null_odds"]) for example, each in pairs}
        return Predictions(texts, {}, odds)

    def write(
        self, directory: str, split: str, examples: Sequence[SquadExample], predictions: Predictions
    ) -> None:
        """Writes predictions.json, nbest_predictions.json and, for SQuAD 2.0, null_odds.json.

        The files of "dev" are named dev_predictions.json and so on.
        """
        _write_json(directory, split, "predictions", self.final_texts(examples, predictions))
        _write_json(directory, split, "nbest_predictions", predictions.nbest)
        if predictions.null_odds:
            _write_json(directory, split, "null_odds", predictions.null_odds)

    def final_texts(
        self, examples: Sequence[SquadExample], predictions: Predictions
    ) -> dict[str, str]:
        """Returns the final answers, by question."""
        return predictions.texts

    def average(
        self, directories: Sequence[str], split: str, examples: Sequence[SquadExample]
    ) -> Predictions:
        """Returns the answers with the highest mean probability, and mean null odds.

        An answer that is missing from a model's n best counts with probability 0.

        Source: the paper, section 4.9, which averages the scores of spans and of "no answer".
        """
        ids, most = [example.qas_id for example in examples], self.kind.n_best_size
        # Every directory must have predicted these questions, and no others.
        found = [_read_json(path, split, "nbest_predictions", set(ids)) for path in directories]
        nbest = {qas_id: _mean_nbest([each[qas_id] for each in found])[:most] for qas_id in ids}
        null_odds = {}
        if self.kind.may_be_impossible:
            odds = [_read_json(path, split, "null_odds", set(ids)) for path in directories]
            null_odds = {qas_id: float(np.mean([each[qas_id] for each in odds])) for qas_id in ids}
        return Predictions(best_texts(nbest), nbest, null_odds)


class SquadV1Task(SquadTask):
    """SQuAD 1.1: each question has an answer.

    Source: run_squad_v1.py.
    """

    def check_answers(self, examples: Sequence[SquadExample], path: str, split: str) -> None:
        super().check_answers(examples, path, split)
        without = [each.qas_id for each in examples if each.is_impossible or not each.answers]
        if without and (split == "train" or is_labelled(examples)):
            raise ValueError(
                f"{path}: question {without[0]} has no answer, but this task needs one for each "
                "question: set `task_name=squad_v2` or, for question_answering, `allow_no_answer`"
            )

    def scores(
        self, examples: Sequence[SquadExample], predictions: Predictions
    ) -> dict[str, float]:
        """Returns the official `exact_match` and `f1`, in percent."""
        if not is_labelled(examples):
            return {}
        return metrics.squad_v1_scores(predictions.texts, answer_texts(examples))


class SquadV2Task(SquadTask):
    """SQuAD 2.0: a question may have no answer.

    The release's head has a beam of starts and their ends, and a classifier for null odds. BERT's
    head is that of SQuAD 1.1, where the span of [CLS] stands for no answer.

    Source: run_squad_v2.py; google-research/bert, run_squad.py with version_2_with_negative.
    """

    metric_names = ("exact", "f1", "best_exact", "best_f1")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.kind.has_beam:
            self.inputs = (*self.inputs, "p_mask")
            self.labels = (*self.labels, "is_impossible")
            self.loss_names = (*self.loss_names, "answerability_loss")

    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Adds the loss of answerability, which only the release's head has."""
        found = super().example_losses(outputs, features)
        if self.kind.has_beam:
            found["answerability_loss"] = losses.answerability_loss(outputs, features)
        return found

    def final_texts(
        self, examples: Sequence[SquadExample], predictions: Predictions
    ) -> dict[str, str]:
        """Returns the answers, but "" where null odds reach the threshold.

        The threshold comes from `tuned` or, as in the release, is the best for F1 on the set
        itself. For a set without labels it is 0 (even odds).
        """
        threshold = predictions.null_threshold
        if threshold is None and is_labelled(examples):
            threshold = self.scores(examples, predictions)["best_f1_thresh"]
        elif threshold is None:
            logging.info("there are no answers to find the best null threshold with: 0 is used")
            threshold = 0.0
        return apply_null_threshold(predictions, threshold)

    def tuned(self, predictions: Predictions, dev_scores: Mapping[str, float]) -> Predictions:
        """Takes the null threshold that gave the best F1 on "dev"."""
        threshold = dev_scores.get("best_f1_thresh")
        if threshold is not None:
            logging.info("null threshold: %g, the best of the file to evaluate on", threshold)
        return dataclasses.replace(predictions, null_threshold=threshold)

    def scores(
        self, examples: Sequence[SquadExample], predictions: Predictions
    ) -> dict[str, float]:
        """Returns the official evaluator's scores of predictions.json, in percent.

        They are `exact` and `f1`, also for the questions with and without an answer; and
        `best_exact`, `best_f1` and the null thresholds at which this set reaches them.

        Source: squad_utils.py, evaluate_v2.
        Differs: the release treats null odds above 1 as "no answer", whatever the threshold.
        """
        if not is_labelled(examples):
            return {}
        # The best thresholds are found with all questions answered, the scores with final answers.
        answers, odds = answer_texts(examples), predictions.null_odds
        result = metrics.squad_v2_scores(predictions.texts, odds, answers)
        threshold = predictions.null_threshold
        if threshold is None:
            threshold = result["best_f1_thresh"]
        texts = apply_null_threshold(predictions, threshold)
        final = metrics.squad_v2_scores(texts, odds, answers)
        return {name: (result if name.startswith("best_") else final)[name] for name in result}


def is_labelled(examples: Sequence[SquadExample]) -> bool:
    """Whether any example has an answer, or is known to have none."""
    return any(example.answers or example.is_impossible for example in examples)


def answer_texts(examples: Sequence[SquadExample]) -> dict[str, list[str]]:
    """Returns the right answers, by question."""
    return {example.qas_id: [answer.text for answer in example.answers] for example in examples}


def _rows(features: FeatureTable) -> Iterator[Row]:
    """Undoes FeatureTable.from_rows."""
    for i, end in enumerate(np.cumsum(features.lengths)):
        row = {name: values[i] for name, values in features.scalars.items()}
        for name, values in features.sequences.items():
            row[name] = values[end - features.lengths[i] : end]
        yield row


def rows_of(outputs: Mapping[str, np.ndarray]) -> Iterator[Features]:
    """Splits the outputs of a batch by row."""
    for values in zip(*outputs.values(), strict=True):
        yield dict(zip(outputs, values, strict=True))


def _write_json(directory: str, split: str, name: str, content: Mapping[str, Any]) -> None:
    files.replace(
        prediction_path(directory, split, f"{name}.json"), json.dumps(content, indent=4) + "\n"
    )


def _read_json(directory: str, split: str, name: str, qas_ids: set[str]) -> dict[str, Any]:
    path = prediction_path(directory, split, f"{name}.json")
    content = read_stored(path)
    if not isinstance(content, dict) or content.keys() != qas_ids:
        raise ValueError(
            f"{path} has other questions than those to predict: predict these there first"
        )
    return content
