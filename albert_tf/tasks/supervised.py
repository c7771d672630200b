"""The contract of tasks on labelled examples: examples -> features -> outputs -> predictions."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras import ops

from albert_tf.config import AlbertConfig
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.text.tokenization import Tokenizer
from albert_tf.training.task import Features, Task


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """What the models of all tasks take.

    Attributes:
      config: The model's config.
      dropout_prob: Of the head; see FineTunedModel.
      dtype: keras dtype policy: "float32" or "mixed_bfloat16".
      recompute: See ConfiguredModel.
    """

    config: AlbertConfig
    dropout_prob: float = 0.1
    dtype: str = "float32"
    recompute: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a FineTunedModel."""
        return {
            "config": self.config,
            "classifier_dropout_prob": self.dropout_prob,
            "dtype": self.dtype,
            "recompute": self.recompute,
        }


class SupervisedTask(Task):
    """A task whose metrics need the predictions of a whole set.

    Args:
      options: Of the model; None if none is built.
      tokenizer: The model's; None if no features are made.
      max_seq_length: Most pieces of a sequence.

    Attributes:
      inputs: Names of the features that the model reads.
      labels: Names of the features that only training reads, beside them.
    """

    inputs: tuple[str, ...] = ("input_ids", "input_mask", "segment_ids")
    labels: tuple[str, ...]

    def __init__(
        self, options: ModelOptions | None, tokenizer: Tokenizer | None, max_seq_length: int
    ) -> None:
        self.options = options
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length

    # --- examples -> features ---------------------------------------------------------------

    @property
    def settings(self) -> dict[str, Any]:
        """What shapes the features of given examples, as JSON."""
        return {"tokenizer": self.tokenizer.digest, "max_seq_length": self.max_seq_length}

    @abc.abstractmethod
    def rows(self, examples: Sequence[Any], is_training: bool) -> Iterator[Mapping[str, Any]]:
        """Yields the features of examples, row by row, as FeatureTable.from_rows takes them."""

    # --- batches -> losses ------------------------------------------------------------------

    @abc.abstractmethod
    def example_losses(self, outputs: Any, features: Features) -> dict[str, Any]:
        """Returns losses `<float32>[B]` by name; the mean of their sum is what is minimised."""

    def loss_weights(self, features: Features) -> dict[str, Any]:
        """Returns the number of examples, for each loss."""
        return dict.fromkeys(self.loss_names, ops.sum(_example_weights(features)))

    def loss_sums(self, outputs: Any, features: Features) -> dict[str, Any]:
        """Returns each loss, summed over the examples."""
        weights = _example_weights(features)
        losses = self.example_losses(outputs, features)
        return {name: ops.sum(loss * weights) for name, loss in losses.items()}

    # --- outputs -> predictions -------------------------------------------------------------

    @abc.abstractmethod
    def predictions(self, examples: Sequence[Any], features: FeatureTable, outputs: Any) -> Any:
        """Turns the model's outputs, a row for each of the features', into what is scored."""

    @abc.abstractmethod
    def scores(self, examples: Sequence[Any], predictions: Any) -> dict[str, float]:
        """Returns metrics by name, `key_metric` among them; none if the examples have no labels."""

    @abc.abstractmethod
    def write(self, directory: str, split: str, examples: Sequence[Any], predictions: Any) -> None:
        """Writes the files of a split's predictions: for people, leaderboards and `average`."""

    @abc.abstractmethod
    def average(self, directories: Sequence[str], split: str, examples: Sequence[Any]) -> Any:
        """Returns the mean of the predictions that `write` wrote into several directories.

        Raises:
          FileNotFoundError: A directory lacks them.
          ValueError: They are of other examples.
        """


def _example_weights(features: Features) -> Any:
    weights = features.get("example_weights")
    if weights is None:
        # Among several workers TensorFlow does not know a batch's static size.
        return ops.ones(ops.shape(features["input_ids"])[:1], "float32")
    return ops.cast(weights, "float32")
