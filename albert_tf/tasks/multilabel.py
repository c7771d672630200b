"""Classification in which a text may have any number of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf.conversion.run_record import MULTI_LABEL
from albert_tf.tasks import losses, metrics
from albert_tf.tasks.classification import SequenceClassificationTask
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.table_files import LABEL_SEPARATOR
from albert_tf.types import Array, Features

# The probability from which on a text has a label.
THRESHOLD = 0.5


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

    @property
    def settings(self) -> dict[str, Any]:
        """See SupervisedTask."""
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
        """Turns logits into probabilities."""
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
