"""Classification (one label or several), multiple choice and regression."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from absl import logging
from keras import ops

from albert_tf.conversion.kinds import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from albert_tf.model import finetuning
from albert_tf.storage import files
from albert_tf.tasks import losses, metrics, sequence_features, supervised
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample
from albert_tf.tasks.registry import TASKS, TaskRow, TaskSettings
from albert_tf.tasks.supervised import ModelOptions, SupervisedTask
from albert_tf.tasks.table import LABEL_SEPARATOR, THRESHOLD
from albert_tf.text.tokenization import Tokenizer
from albert_tf.types import Array, Features

Example = TypeVar("Example", bound=TextExample | ChoiceExample)
BALANCED = "balanced"


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """How texts are cut, and what is predicted for them.

    Attributes:
      combination: "mean" or "max": for each class, the mean or the largest of the probabilities of
        a text's windows; likewise for a regression's numbers.
      doc_stride: Pieces from one window to the next.
    """

    combination: str
    doc_stride: int

    def features(
        self, tokenizer: Tokenizer, text: str, max_seq_length: int
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the sequence of each window on a text; see sequence_features.pair_features."""
        ids = tokenizer.encode(text)
        spans = sequence_features.window_spans(len(ids), max_seq_length - 2, self.doc_stride)
        for start, end in spans:
            yield sequence_features.join_ids(tokenizer, ids[start:end])

    def combined(self, predictions: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """Returns predictions for N texts, `<float64>[N, C]`.

        Args:
          predictions: `<float64>[W, C]`, those for windows.
          texts: `<int>[W]`, the text of each, ascending, from 0 to N - 1.
        """
        starts = np.flatnonzero(np.diff(texts, prepend=-1))
        if self.combination == "max":
            return np.maximum.reduceat(predictions, starts)
        counts = np.diff(starts, append=len(texts))
        return np.add.reduceat(predictions, starts) / counts[:, None]


def parse_class_weights(text: str, classes: Sequence[str], labels: Sequence[Any]) -> np.ndarray:
    """Returns the weights that a text asks for, `<float32>[C]`.

    Args:
      text: "balanced": each class in inverse proportion to its number of examples, so that their
        weights' mean is 1. Or `class=weight,...`, where classes that are not named have weight 1.
      classes: Names of the classes, by id.
      labels: Class ids of the training examples.
    """
    if text == BALANCED:
        counts = np.bincount(labels, minlength=len(classes))
        return (len(labels) / np.count_nonzero(counts) / np.maximum(counts, 1)).astype(np.float32)
    found: dict[str, float] = {}
    parts, part = text.split(","), ""
    while parts:
        # A part without a class goes on behind its comma, which is of a name.
        part = f"{part},{parts.pop(0)}" if part else parts.pop(0)
        name, _, weight = (side.strip() for side in part.rpartition("="))
        if name not in classes and parts:
            continue
        if name not in classes or name in found:
            raise ValueError(
                f"`class_weights` must be {BALANCED}, or list each of {', '.join(classes)} at "
                f"most once, as in {classes[0]}=1.0,{classes[1]}=2.5; got {part!r}"
            )
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
    """Base class of the tasks here; predicts probabilities `<float64>[N, C]` or numbers `[N, 1]`.

    Args:
      options: See SupervisedTask.
      tokenizer: See SupervisedTask.
      max_seq_length: See SupervisedTask.
      classes: Names of the classes, by id; empty for a regression.
      row: The task's row, which tells its metric and its file; by default one of your own tables'.

    Attributes:
      class_weights: `<float32>[C]`, factors of the loss of each class's examples, as Keras'
        `class_weight`; None if all are 1.
    """

    class_weights: np.ndarray | None = None
    labels = ("label_ids",)

    def __init__(
        self,
        options: ModelOptions | None,
        tokenizer: Tokenizer | None,
        max_seq_length: int,
        classes: Sequence[str],
        row: TaskRow = TASKS["classification"],
    ) -> None:
        super().__init__(options, tokenizer, max_seq_length)
        self.classes = tuple(classes)
        self.key_metric = row.key_metric or "eval_accuracy"
        self.row = row
        self.prefix = row.prefix
        self.loss_names = ("classification_loss",) if classes else ("regression_loss",)
        binary = ("f1", "matthew_corr") if len(classes) == 2 else ()
        names = ("eval_accuracy", "macro_f1", *binary) if classes else ("pearson", "spearman")
        self.metric_names = (*names, "eval_loss")

    @classmethod
    def arguments_of(
        cls, row: TaskRow, settings: TaskSettings, classes: tuple[str, ...]
    ) -> dict[str, Any]:
        return {"classes": classes, "row": row}

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
        return self.shares(outputs)

    def shares(self, outputs: Any) -> np.ndarray:
        """Turns logits into probabilities; a regression's outputs stay as they are."""
        return metrics.softmax(outputs) if self.classes else np.asarray(outputs, np.float64)

    def scores(self, examples: Sequence[Example], predictions: np.ndarray) -> dict[str, float]:
        """Returns the metrics of the release and of the leaderboards, and macro F1.

        That is the mean over the classes that occur among labels or predictions.
        """
        if any(example.label is None for example in examples):
            return {}
        labels = np.array([example.label for example in examples])
        if not self.classes:
            numbers = predictions[:, 0]
            return {
                "pearson": metrics.pearson(labels, numbers),
                "spearman": metrics.spearman(labels, numbers),
                "eval_loss": metrics.mean_squared_error(labels, numbers),
            }
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
        """Writes <split>_probabilities.json and, for a test, test_results.tsv and the row's file.

        test_results.tsv is as in the release: the probabilities of one example per line. The row's
        file is in the format of GLUE's leaderboard: a header, then index and label.
        """
        self.store(directory, split, examples, predictions)
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
        """Writes <split>_probabilities.json, which is for `average`."""
        name = f"{self.prefix}{split}"
        supervised.write_probabilities(directory, name, _ids(examples), examples, predictions)

    def answers(self, predictions: np.ndarray) -> list[str]:
        """Returns what the row's file tells of each example."""
        if self.classes:
            return [self.classes[i] for i in predictions.argmax(axis=-1)]
        return [f"{number:.6f}" for number in np.clip(predictions[:, 0], *self.row.number_range)]

    def average(
        self, directories: Sequence[str], split: str, examples: Sequence[Example]
    ) -> np.ndarray:
        name = f"{self.prefix}{split}"
        return supervised.mean_probabilities(directories, name, _ids(examples), examples)


class SequenceClassificationTask(ScoringTask[TextExample]):
    """Classification or regression of a text or a pair of texts (examples: TextExample).

    Args:
      *args: See ScoringTask.
      windows: How single texts that are too long are read; None cuts them at their end.
      pairs: Whether its texts are pairs.
      **kwargs: See ScoringTask.

    Source: run_classifier.py.
    """

    model_class = finetuning.AlbertForSequenceClassification
    served_as = "classify"

    def __init__(
        self,
        *args: Any,
        windows: TextWindows | None = None,
        pairs: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.problem_type = SINGLE_LABEL if self.classes else REGRESSION
        self.windows = windows
        self.pairs = pairs
        self.can_learn_from_teacher = bool(self.classes) and not windows

    @classmethod
    def arguments_of(
        cls, row: TaskRow, settings: TaskSettings, classes: tuple[str, ...]
    ) -> dict[str, Any]:
        found = super().arguments_of(row, settings, classes)
        if row.pairs is not None:  # GLUE's are read as the release reads them.
            return {**found, "pairs": row.pairs}
        if not settings.windows:
            return {**found, "pairs": bool(settings.text_pair_column)}
        if settings.text_pair_column:  # The second texts would be left out.
            raise ValueError("`windows` reads single texts, not pairs: leave it out")
        return {**found, "windows": TextWindows(settings.windows, settings.doc_stride)}

    @property
    def model_arguments(self) -> dict[str, Any]:
        return {"num_labels": len(self.classes) or 1}

    @property
    def reading(self) -> dict[str, Any]:
        options = {**super().reading, "pairs": self.pairs}
        if self.windows:
            options |= {"windows": self.windows.combination, "doc_stride": self.windows.doc_stride}
        return options

    def read_as(self, reading: Mapping[str, Any]) -> None:
        super().read_as(reading)
        if "windows" in reading:
            self.windows = TextWindows(reading["windows"], reading["doc_stride"])

    def serving_options(self, threshold: float | None = None) -> dict[str, Any]:
        takes_threshold = self.problem_type == MULTI_LABEL or len(self.classes) == 2
        return {
            "windows": None,
            **self.reading,
            "labels": self.classes,
            "threshold": threshold if takes_threshold else None,
            "multilabel": self.problem_type == MULTI_LABEL,
        }

    def weigh_classes(self, text: str, examples: Sequence[TextExample]) -> None:
        if self.problem_type != SINGLE_LABEL:
            return
        labels = [example.label for example in examples]
        self.class_weights = parse_class_weights(text, self.classes, labels)
        pairs = zip(self.classes, self.class_weights, strict=True)
        logging.info("class weights: %s", ", ".join(f"{name} {w:.4g}" for name, w in pairs))

    @property
    def settings(self) -> dict[str, Any]:
        windows = {"window_doc_stride": self.windows.doc_stride} if self.windows else {}
        return {**super().settings, **windows}

    def rows(
        self, examples: Sequence[TextExample], is_training: bool
    ) -> Iterator[Mapping[str, Any]]:
        """Yields a row for each example, or for each window on its text."""
        for index, example in enumerate(examples):
            numbers = {self.labels[0]: self.label(example)}
            if self.windows:
                numbers["example_index"] = np.int32(index)
                rows = self.windows.features(self.tokenizer, example.text_a, self.max_seq_length)
                yield from ({**features, **numbers} for features in rows)
            else:
                features = sequence_features.pair_features(
                    self.tokenizer, example.text_a, example.text_b, self.max_seq_length
                )
                yield {**features, **numbers}

    def predictions(
        self, examples: Sequence[TextExample], features: FeatureTable, outputs: Any
    ) -> np.ndarray:
        shares = self.shares(outputs)
        if not self.windows:
            return shares
        return self.windows.combined(shares, features.scalars["example_index"])


class MultiLabelTask(SequenceClassificationTask):
    """Decides for each label whether a text has it (examples: TextExample).

    Predictions are probabilities `<float64>[N, C]`, each of its own.

    Args: see ScoringTask.

    Differs: the release has no such task.
    """

    labels = ("label_targets",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = ("micro_f1", "macro_f1", "subset_accuracy", "mean_average_precision")
        self.metric_names = (*names, "eval_loss")
        self.problem_type = MULTI_LABEL
        self.can_learn_from_teacher = False

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "num_labels": len(self.classes)}

    def label(self, example: Any) -> np.ndarray:
        """Returns an example's labels `<float32>[C]`: 1 for those it has."""
        targets = np.zeros(len(self.classes), np.float32)
        targets[list(example.label or ())] = 1
        return targets

    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns the mean of the labels' binary cross entropies."""
        (name,) = self.loss_names
        return {name: losses.multilabel_loss(features["label_targets"], outputs)}

    def shares(self, outputs: Any) -> np.ndarray:
        return metrics.sigmoid(outputs)

    def scores(self, examples: Sequence[TextExample], predictions: np.ndarray) -> dict[str, float]:
        """Returns the metrics of all labels; see albert_tf.tasks.metrics."""
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

    def answers(self, predictions: np.ndarray) -> list[str]:
        """Returns the labels of each example, joined."""
        return [
            LABEL_SEPARATOR.join(
                name for name, share in zip(self.classes, row, strict=True) if share >= THRESHOLD
            )
            for row in predictions
        ]


class MultipleChoiceTask(ScoringTask[ChoiceExample]):
    """Chooses the right ending for a context (examples: ChoiceExample).

    Args:
      *args: See ScoringTask; the classes are the choices.
      max_qa_length: Maximum number of pieces per ending.
      **kwargs: See ScoringTask.

    Source: run_race.py.
    """

    model_class = finetuning.AlbertForMultipleChoice
    served_as = "choose"
    class_names = ()

    def __init__(self, *args: Any, max_qa_length: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_qa_length = max_qa_length

    @classmethod
    def arguments_of(
        cls, row: TaskRow, settings: TaskSettings, classes: tuple[str, ...]
    ) -> dict[str, Any]:
        found = super().arguments_of(row, settings, classes)
        return {**found, "max_qa_length": settings.max_qa_length}

    @property
    def reading(self) -> dict[str, Any]:
        # Longer endings are cut to this in training.
        longest = sequence_features.longest_ending(self.max_seq_length, self.max_qa_length)
        choices = {"num_choices": len(self.classes), "max_qa_length": longest}
        return {**super().reading, **choices}

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "max_qa_length": self.max_qa_length}

    def rows(
        self, examples: Sequence[ChoiceExample], is_training: bool
    ) -> Iterator[Mapping[str, Any]]:
        """Yields a row for each example."""
        for example in examples:
            features = sequence_features.choice_features(
                self.tokenizer,
                example.context,
                example.endings,
                self.max_seq_length,
                self.max_qa_length,
            )
            yield {**features, "label_ids": self.label(example)}

    def scores(
        self, examples: Sequence[ChoiceExample], predictions: np.ndarray
    ) -> dict[str, float]:
        """Returns the metrics, and the accuracy on each level if there are several."""
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
