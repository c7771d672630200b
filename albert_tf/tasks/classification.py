"""Classification (one label or several), multiple choice and regression."""

from __future__ import annotations

import abc
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from absl import logging
from keras import ops

from albert_tf.answers.classify import SINGLE_LABEL, THRESHOLD
from albert_tf.storage import files
from albert_tf.tasks import losses, metrics, supervised
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample
from albert_tf.tasks.supervised import SupervisedTask
from albert_tf.types import Array, Features

Example = TypeVar("Example", bound=TextExample | ChoiceExample)
BALANCED = "balanced"


def parse_class_weights(text: str, classes: Sequence[str], labels: Sequence[Any]) -> np.ndarray:
    """Returns the weights of classes, `<float32>[C]`.

    Args:
      text: "balanced" weighs each class in inverse proportion to its number of examples, so that
        the examples' mean weight is 1. `class=weight,...` gives the other classes weight 1.
      classes: Names of the classes, by id.
      labels: Class ids of the training examples.
    """
    # Classes without examples get a finite weight, and don't change the others.
    if text == BALANCED:
        counts = np.bincount(labels, minlength=len(classes))
        return (len(labels) / np.count_nonzero(counts) / np.maximum(counts, 1)).astype(np.float32)
    # Parse class=weight,... by hand: a name may contain both separators.
    found: dict[str, float] = {}
    parts, part = text.split(","), ""
    while parts:
        # A part that names no class continues after its comma: names may contain commas.
        part = f"{part},{parts.pop(0)}" if part else parts.pop(0)
        name, _, weight = (side.strip() for side in part.rpartition("="))
        if name not in classes and parts:
            continue
        if name not in classes or name in found:
            raise ValueError(
                f"`class_weights` must be {BALANCED}, or list each of {', '.join(classes)} at "
                f"most once, as in {classes[0]}=1.0,{classes[1]}=2.5; got {part!r}"
            )
        # The part is complete: the next one begins a class.
        part = ""
        try:
            found[name] = float(weight)
        except ValueError:
            found[name] = math.nan
        if not 0 < found[name] < math.inf:
            raise ValueError(
                f"`class_weights`: the weight of {name} must be positive, got {weight!r}"
            )
    return np.array([found.get(name, 1.0) for name in classes], np.float32)


class ScoringTask(SupervisedTask[Example, np.ndarray]):
    """Base class of these tasks; predicts probabilities `<float64>[N, C]` or numbers `[N, 1]`."""

    # Weights of the classes in the loss, `<float32>[C]`, like Keras' `class_weight`.
    class_weights: np.ndarray | None = None
    labels = ("label_ids",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        row, classes = self.row, self.classes
        # The row may choose another metric: CoLA's leaderboard uses Matthews correlation.
        self.key_metric = row.key_metric or "eval_accuracy"
        self.prefix = row.prefix
        self.loss_names = ("classification_loss",) if classes else ("regression_loss",)
        binary = ("f1", "matthew_corr") if len(classes) == 2 else ()
        names = ("eval_accuracy", "macro_f1", *binary) if classes else ("pearson", "spearman")
        self.metric_names = (*names, "eval_loss")

    @abc.abstractmethod
    def texts(self, example: Example) -> tuple[Any, ...]:
        """Returns the raw texts of an example in the form that the kind reads."""

    def rows(self, examples: Sequence[Example], is_training: bool) -> Iterator[Mapping[str, Any]]:
        # Only texts that are split into windows have several rows.
        has_windows = getattr(self.kind, "windows", None)
        for index, example in enumerate(examples):
            numbers = {self.labels[0]: self.label(example)}
            if has_windows:
                numbers["example_index"] = np.int32(index)
            for row in self.kind.rows(self.tokenizer, *self.texts(example)):
                yield {**row, **numbers}

    def label(self, example: Any) -> np.generic | np.ndarray:
        """Returns an example's label as a feature, named as in `labels`; 0 if it has none."""
        return (np.int32 if self.classes else np.float32)(example.label or 0)

    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns cross entropy or squared error."""
        (name,) = self.loss_names
        labels = features["label_ids"]
        if not self.classes:
            return {name: losses.regression_loss(labels, outputs)}
        loss = losses.classification_loss(labels, outputs)
        if self.class_weights is not None:
            loss *= ops.take(ops.convert_to_tensor(self.class_weights), labels)
        if self.distillation:
            loss = self.distillation.mix(loss, features[losses.TEACHER_PROBABILITIES], outputs)
        return {name: loss}

    def with_probabilities(
        self, examples: Sequence[Example], features: FeatureTable, probabilities: np.ndarray
    ) -> FeatureTable:
        """Returns the features with a teacher's probabilities `<float>[N, C]` of N examples."""
        column = {losses.TEACHER_PROBABILITIES: probabilities.astype(np.float32)}
        return dataclasses.replace(features, scalars={**features.scalars, **column})

    def predictions(
        self, examples: Sequence[Example], features: FeatureTable, outputs: Any
    ) -> np.ndarray:
        return self.kind.shares(outputs)

    def predictions_of(
        self, examples: Sequence[Example], found: Sequence[Mapping[str, Any]]
    ) -> np.ndarray:
        """Turns the kind's answers, one per example, into predictions."""
        name = "probabilities" if self.classes else "score"
        return np.stack([np.atleast_1d(each[name]) for each in found]).astype(np.float64)

    def scores(self, examples: Sequence[Example], predictions: np.ndarray) -> dict[str, float]:
        """Returns the metrics of the release and of the leaderboards, and macro F1.

        Macro F1 is the mean over the classes that occur among labels or predictions.
        """
        if any(example.label is None for example in examples):
            return {}
        # A regression's predictions are numbers.
        labels = np.array([example.label for example in examples])
        if not self.classes:
            numbers = predictions[:, 0]
            return {
                "pearson": metrics.pearson(labels, numbers),
                "spearman": metrics.spearman(labels, numbers),
                "eval_loss": metrics.mean_squared_error(labels, numbers),
            }
        # A class that neither occurs nor is predicted would have an F1 of 0.
        chosen = predictions.argmax(axis=-1)
        occurring = np.union1d(labels, chosen)
        one_hot = [ids[:, None] == occurring for ids in (labels, chosen)]
        result = {"eval_accuracy": metrics.accuracy(labels, chosen)}
        result["macro_f1"] = metrics.macro_f1(*one_hot)
        if len(self.classes) == 2:
            result["f1"] = metrics.f1(labels, chosen)
            result["matthew_corr"] = metrics.matthews_correlation(labels, chosen)
        result["eval_loss"] = metrics.log_loss(labels, predictions)
        return result

    def write(
        self, directory: str, split: str, examples: Sequence[Example], predictions: np.ndarray
    ) -> None:
        """Writes <split>_probabilities.json and, for "test", test_results.tsv and the results file.

        test_results.tsv has one example's probabilities per line, as in the release; the results
        file has the format of GLUE's leaderboard: a header, then index and label.
        """
        self.store(directory, split, examples, predictions)
        # Leaderboards take only the test set.
        if split != "test":
            return
        pairs = zip(_ids(examples), self.answers(predictions), strict=True)
        for name, rows in (
            (f"{self.prefix}test_results.tsv", [map(str, row) for row in predictions.tolist()]),
            (self.row.results_file, [("index", "prediction"), *pairs]),
        ):
            lines = "".join("\t".join(row) + "\n" for row in rows)
            files.replace(os.path.join(directory, name), lines)

    def store(
        self, directory: str, split: str, examples: Sequence[Example], predictions: np.ndarray
    ) -> None:
        """Writes <split>_probabilities.json, which `average` reads."""
        name = f"{self.prefix}{split}"
        supervised.write_probabilities(directory, name, _ids(examples), examples, predictions)

    def answers(self, predictions: np.ndarray) -> list[str]:
        """Returns the predicted classes or numbers as `row.results_file` spells them."""
        if self.classes:
            return self.chosen(predictions)
        return [f"{number:.6f}" for number in np.clip(predictions[:, 0], *self.row.number_range)]

    def chosen(self, predictions: np.ndarray) -> list[str]:
        return [self.classes[i] for i in predictions.argmax(axis=-1)]

    def average(
        self, directories: Sequence[str], split: str, examples: Sequence[Example]
    ) -> np.ndarray:
        name = f"{self.prefix}{split}"
        return supervised.mean_probabilities(directories, name, _ids(examples), examples)


class SequenceClassificationTask(ScoringTask[TextExample]):
    """Classification or regression of a text or a pair of texts (examples: TextExample).

    Source: run_classifier.py.
    """

    @property
    def can_learn_from_teacher(self) -> bool:
        return self.kind.problem_type == SINGLE_LABEL and not self.kind.windows

    def texts(self, example: TextExample) -> tuple[Any, ...]:
        return (example.text_a, example.text_b) if self.kind.pairs else (example.text_a,)

    def weigh_classes(self, text: str, examples: Sequence[TextExample]) -> None:
        if self.kind.problem_type != SINGLE_LABEL:
            return
        labels = [example.label for example in examples]
        self.class_weights = parse_class_weights(text, self.classes, labels)
        pairs = zip(self.classes, self.class_weights, strict=True)
        logging.info("class weights: %s", ", ".join(f"{name} {w:.4g}" for name, w in pairs))

    def predictions(
        self, examples: Sequence[TextExample], features: FeatureTable, outputs: Any
    ) -> np.ndarray:
        texts = features.scalars.get("example_index", np.arange(len(outputs)))
        return self.kind.shares(outputs, np.flatnonzero(np.diff(texts, prepend=-1)))


class MultiLabelTask(SequenceClassificationTask):
    """Decides for each label whether a text has it (examples: TextExample).

    Predictions are independent probabilities `<float64>[N, C]`.

    Differs: the release has no such task.
    """

    labels = ("label_targets",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = ("micro_f1", "macro_f1", "subset_accuracy", "mean_average_precision")
        self.metric_names = (*names, "eval_loss")

    def label(self, example: Any) -> np.ndarray:
        """Returns `<float32>[C]`: 1 for the labels that an example has."""
        targets = np.zeros(len(self.classes), np.float32)
        targets[list(example.label or ())] = 1
        return targets

    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns the mean of the labels' binary cross entropies."""
        (name,) = self.loss_names
        return {name: losses.multilabel_loss(features["label_targets"], outputs)}

    def scores(self, examples: Sequence[TextExample], predictions: np.ndarray) -> dict[str, float]:
        if any(example.label is None for example in examples):
            return {}
        targets = np.stack([self.label(example) for example in examples]) > 0
        chosen = predictions >= THRESHOLD
        return {
            "micro_f1": metrics.micro_f1(targets, chosen),
            "macro_f1": metrics.macro_f1(targets, chosen),
            "subset_accuracy": float(np.mean((targets == chosen).all(axis=1))),
            "mean_average_precision": metrics.mean_average_precision(targets, predictions),
            "eval_loss": metrics.binary_log_loss(targets, predictions),
        }

    def chosen(self, predictions: np.ndarray) -> list[str]:
        return self.kind.chosen(predictions)


class MultipleChoiceTask(ScoringTask[ChoiceExample]):
    """Chooses the right ending for a context (examples: ChoiceExample).

    Source: run_race.py.
    """

    def texts(self, example: ChoiceExample) -> tuple[Any, ...]:
        return example.context, example.endings

    def scores(
        self, examples: Sequence[ChoiceExample], predictions: np.ndarray
    ) -> dict[str, float]:
        """Adds the accuracy on each level, if there are several."""
        result = super().scores(examples, predictions)
        levels = sorted({example.level for example in examples})
        for level in levels if result and len(levels) > 1 else ():
            chosen = [i for i, example in enumerate(examples) if example.level == level]
            labels = [examples[i].label for i in chosen]
            found = predictions[chosen].argmax(axis=-1)
            result[f"{level}_accuracy"] = metrics.accuracy(labels, found)
        return result


def _ids(examples: Sequence[Example]) -> list[str]:
    return [example.guid for example in examples]
