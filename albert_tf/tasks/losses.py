"""Per-example losses, and the weights of examples; a task computes the weighted sums."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from albert_tf.model.heads import unit_length
from albert_tf.types import Array, Features

# Name of the feature that holds a teacher's probabilities.
TEACHER_PROBABILITIES = "teacher_probabilities"


def example_weights(features: Features) -> Array:
    """Returns the weights `<float32>[B]` of rows; rows that only fill up a batch have 0."""
    weights = features.get("example_weights")
    if weights is None:
        # With several workers the static batch size is unknown to TensorFlow.
        return ops.ones(ops.shape(features["input_ids"])[:1], "float32")
    return ops.cast(weights, "float32")


@dataclasses.dataclass(frozen=True)
class Distillation:
    """How a student weighs its teacher's probabilities against the labels.

    Source: Hinton et al. 2015, Distilling the Knowledge in a Neural Network (arXiv 1503.02531).
    """

    weight: float  # The teacher's share of the loss; labels have the rest.
    # Divides the logits of both models in the teacher's part, which is multiplied by the square of
    # the temperature so that its gradient keeps its size.
    temperature: float

    def mix(self, loss: Array, probabilities: Array, logits: Array) -> Array:
        """Mixes the loss on labels, `<float32>[...]`, with the loss on the teacher's probabilities.

        Args:
          loss: The student's loss on the labels.
          probabilities: The teacher's, `<float32>[..., C]`.
          logits: The student's, `<float32>[..., C]`.
        """
        # The teacher's logits, up to a constant.
        theirs = ops.log(ops.maximum(probabilities, 1e-30)) / self.temperature
        ours = ops.log_softmax(logits / self.temperature, axis=-1)
        soft = -ops.sum(ops.softmax(theirs, axis=-1) * ours, axis=-1)
        return (1 - self.weight) * loss + self.weight * self.temperature**2 * soft


def classification_loss(labels: Array, logits: Array) -> Array:
    """Returns the cross entropy `<float32>[B]` of labels `<int32>[B]` and logits `[B, C]`."""
    return position_loss(labels, ops.log_softmax(logits, axis=-1))


def multilabel_loss(targets: Array, logits: Array) -> Array:
    """Returns the binary cross entropy `<float32>[B]`, the mean over C classes.

    Targets and logits are `<float32>[B, C]`; a target is 1 if the example has the label.
    """
    return ops.mean(ops.binary_crossentropy(targets, logits, from_logits=True), axis=-1)


def regression_loss(labels: Array, logits: Array) -> Array:
    """Returns the squared error `<float32>[B]` of labels `<float32>[B]` and logits `[B, 1]`."""
    return ops.square(logits[:, 0] - labels)


def position_loss(positions: Array, log_probs: Array) -> Array:
    """Returns the negative log-likelihood `<float32>[B]` of positions `<int32>[B]`.

    A position outside [0, S) of the log-probabilities `<float32>[B, S]` costs nothing.

    Source: run_squad_v1.py and run_squad_v2.py, compute_loss.
    """
    # A gather would read beyond the sequence, or fail.
    chosen = ops.one_hot(positions, ops.shape(log_probs)[-1], dtype=log_probs.dtype)
    return -ops.sum(chosen * log_probs, axis=-1)


def span_losses(outputs: dict[str, Array], features: Features) -> dict[str, Array]:
    """Returns the losses `<float32>[B]` of start and end, halved: training minimises their sum.

    Args:
      outputs: Outputs of AlbertForQuestionAnswering, or of AlbertForQuestionAnsweringV2 given the
        true starts.
      features: `start_positions` and `end_positions`, `<int32>[B]`.
    """
    losses = {}
    for side in ("start", "end"):
        log_probs = outputs.get(f"{side}_log_probs")
        if log_probs is None:
            log_probs = ops.log_softmax(outputs[f"{side}_logits"], axis=-1)
        losses[f"{side}_loss"] = 0.5 * position_loss(features[f"{side}_positions"], log_probs)
    return losses


def answerability_loss(outputs: dict[str, Array], features: Features) -> Array:
    """Returns half the cross entropy `<float32>[B]` of `cls_logits` and `is_impossible`.

    The outputs are those of AlbertForQuestionAnsweringV2; the feature `is_impossible` `<int32>[B]`
    is 1 if the question has no answer.

    Source: run_squad_v2.py, model_fn.
    """
    logits = outputs["cls_logits"]
    labels = ops.cast(features["is_impossible"], logits.dtype)
    return 0.5 * ops.binary_crossentropy(labels, logits, from_logits=True)


class VectorLoss(keras.losses.Loss):
    """Base class of losses of vectors `<float>[B, C, D]`, one for each of C texts of B examples.

    Args:
      matryoshka_dimensions: Sizes n: the losses on the first n numbers of the vectors are added
        to the loss on whole vectors (Kusupati et al. 2022, arXiv 2205.13147).
      **kwargs: Arguments of keras.losses.Loss.
    """

    default_name: str
    # Whether an example's loss depends on the others of its batch.
    compares_examples = False

    def __init__(self, matryoshka_dimensions: Sequence[int] = (), **kwargs: Any) -> None:
        super().__init__(**{"name": self.default_name, **kwargs})
        self.matryoshka_dimensions = tuple(matryoshka_dimensions)

    def call(self, y_true: Array, y_pred: Array) -> Array:
        """Returns the loss of each example, `<float>[B]`."""
        if len(y_pred.shape) != 3:
            raise ValueError(
                f"expected vectors [B, C, D] of several texts each, got {tuple(y_pred.shape)}: "
                "give pairs, of a Preprocessor with `two_towers=True`"
            )
        self.check_width(width := y_pred.shape[-1])
        sizes = {*self.matryoshka_dimensions, width}
        return sum(self.of_units(y_true, unit_length(y_pred[..., :n])) for n in sorted(sizes))

    def check_width(self, width: int) -> None:
        """Checks that `matryoshka_dimensions` are numbers from 1 to the vectors' width."""
        if any(isinstance(n, str) or not 0 < n <= width for n in self.matryoshka_dimensions):
            raise ValueError(
                f"`matryoshka_dimensions` must be numbers from 1 to {width}, got "
                f"{','.join(map(str, self.matryoshka_dimensions))}"
            )

    def of_units(self, y_true: Array, vectors: Array) -> Array:
        """Returns the loss of each example, given unit vectors."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        own = {"matryoshka_dimensions": list(self.matryoshka_dimensions)}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="albert_tf")
class CosineSimilarityLoss(VectorLoss):
    """The squared difference between the cosine of two vectors and their score `<float>[B]`.

    Args: see VectorLoss.

    Source: Reimers and Gurevych 2019, Sentence-BERT (arXiv 1908.10084), its regression objective.

    Example:
      >>> vectors = ops.array([[[1.0, 0.0], [3.0, 4.0]]])
      >>> round(float(CosineSimilarityLoss()(ops.array([0.5]), vectors)), 3)
      0.01
    """

    default_name = "cosine_loss"

    def of_units(self, y_true: Array, vectors: Array) -> Array:
        return ops.square(ops.sum(vectors[:, 0] * vectors[:, 1], axis=-1) - y_true)


@keras.saving.register_keras_serializable(package="albert_tf")
class MultipleNegativesRankingLoss(VectorLoss):
    """In-batch contrastive loss: each text must find its second in the batch, and vice versa.

    It is the mean of two cross entropies over scaled cosines. Further vectors of all examples, the
    hard negatives, are also candidates for each first text. Labels are ignored.

    Args:
      scale: Multiplies the cosines; 1 / temperature.
      matryoshka_dimensions: See VectorLoss.
      **kwargs: Arguments of keras.losses.Loss.

    Source: Henderson et al. 2017 (arXiv 1705.00652); both directions: Radford et al. 2021, CLIP.

    Example:
      >>> vectors = ops.array([[[1.0, 0.0], [3.0, 4.0]], [[0.0, 1.0], [0.0, 2.0]]])
      >>> round(float(MultipleNegativesRankingLoss(scale=2)(ops.zeros(2), vectors)), 3)
      0.454
    """

    default_name = "ranking_loss"
    compares_examples = True

    def __init__(self, scale: float = 20.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = scale

    def of_units(self, y_true: Array, vectors: Array) -> Array:
        first, second = vectors[:, 0], vectors[:, 1]
        # The second texts of all examples precede the hard negatives.
        candidates = ops.transpose(vectors[:, 1:], (1, 0, 2))
        candidates = ops.reshape(candidates, (-1, vectors.shape[-1]))
        found = self.scale * ops.matmul(first, ops.transpose(candidates))
        back = self.scale * ops.matmul(second, ops.transpose(first))
        right = self.scale * ops.sum(first * second, axis=-1)
        return (ops.logsumexp(found, axis=-1) + ops.logsumexp(back, axis=-1)) / 2 - right

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}
