"""The contract of tasks on labelled examples: examples -> features -> outputs -> predictions."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from keras import ops

from albert_tf.config import AlbertConfig
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.losses import example_weights
from albert_tf.text.tokenization import Tokenizer
from albert_tf.training.row_outputs import in_row_order
from albert_tf.training.task import Task
from albert_tf.types import Array, Features

Example = TypeVar("Example")
Predictions = TypeVar("Predictions")


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The model options shared by all tasks.

    Attributes:
      config: The model's config.
      dropout_prob: Dropout of the head; see FineTunedModel.
      dtype: Keras dtype policy: "float32" or "mixed_bfloat16".
      recompute: See ConfiguredModel.
    """

    config: AlbertConfig
    dropout_prob: float = 0.1
    dtype: str = "float32"
    recompute: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """Returns them as arguments of a FineTunedModel."""
        return {
            "config": self.config,
            "classifier_dropout_prob": self.dropout_prob,
            "dtype": self.dtype,
            "recompute": self.recompute,
        }


class SupervisedTask(Task, Generic[Example, Predictions]):
    """A task whose metrics need the predictions of a whole set, from examples of one kind.

    Args:
      options: Options of the model; None if no model is built.
      tokenizer: The model's tokenizer; None if no features are made.
      max_seq_length: Maximum number of pieces per sequence.

    Attributes:
      inputs: Names of the features that the model reads.
      labels: Names of the additional features that only training reads.
      prefix: Before the names of files of predictions, of a task that shares its directory.
      problem_type: Hugging Face's name for the kind of classifier; "" for other tasks.
      metric_names: The metrics that `scores` has on any labelled set; checkpoints can be compared
        by each.
    """

    inputs: tuple[str, ...] = ("input_ids", "input_mask", "segment_ids")
    labels: tuple[str, ...]
    prefix = ""
    problem_type = ""
    metric_names: tuple[str, ...]

    def __init__(
        self, options: ModelOptions | None, tokenizer: Tokenizer | None, max_seq_length: int
    ) -> None:
        self.options = options
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length

    # --- examples -> features ---------------------------------------------------------------

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings that affect the features of given examples, as JSON."""
        return {"tokenizer": self.tokenizer.digest, "max_seq_length": self.max_seq_length}

    @abc.abstractmethod
    def rows(self, examples: Sequence[Example], is_training: bool) -> Iterator[Mapping[str, Any]]:
        """Yields the features of examples, row by row, in the form of FeatureTable.from_rows."""

    # --- batches -> losses ------------------------------------------------------------------

    @abc.abstractmethod
    def example_losses(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns losses `<float32>[B]` by name; the mean of their sum is minimised."""

    def loss_weights(self, features: Features) -> dict[str, Array]:
        """Returns the number of examples, for each loss."""
        return dict.fromkeys(self.loss_names, ops.sum(example_weights(features)))

    def loss_sums(self, outputs: Any, features: Features) -> dict[str, Array]:
        """Returns each loss, summed over the examples."""
        weights = example_weights(features)
        losses = self.example_losses(outputs, features)
        return {name: ops.sum(loss * weights) for name, loss in losses.items()}

    # --- outputs -> predictions -------------------------------------------------------------

    def collect(self, features: FeatureTable, parts: Iterable[tuple[np.ndarray, Any]]) -> Any:
        """Returns what `predictions` needs of the outputs; by default all, in row order.

        Args:
          features: Those of the rows.
          parts: Row numbers and outputs, batch by batch; see RowOutputs.
        """
        return in_row_order(parts, len(features.lengths))

    @abc.abstractmethod
    def predictions(
        self, examples: Sequence[Example], features: FeatureTable, outputs: Any
    ) -> Predictions:
        """Turns the outputs that `collect` returns into predictions to be scored."""

    @abc.abstractmethod
    def scores(self, examples: Sequence[Example], predictions: Predictions) -> dict[str, float]:
        """Returns metrics by name, including `key_metric`; none if the examples have no labels."""

    def tuned(self, predictions: Predictions, dev_scores: Mapping[str, float]) -> Predictions:
        """Returns predictions of another set with what `scores` found to be best on "dev", if any.

        Args:
          predictions: Predictions of the other set.
          dev_scores: The scores of the same weights on "dev"; empty if unknown.
        """
        return predictions

    @abc.abstractmethod
    def write(
        self, directory: str, split: str, examples: Sequence[Example], predictions: Predictions
    ) -> None:
        """Writes a split's predictions to files: for users, leaderboards and `average`."""

    @abc.abstractmethod
    def average(
        self, directories: Sequence[str], split: str, examples: Sequence[Example]
    ) -> Predictions:
        """Returns the mean of the predictions that `write` wrote to several directories.

        Raises:
          FileNotFoundError: If a directory lacks them.
          ValueError: If they belong to other examples.
        """
