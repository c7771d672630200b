"""Losses of each example, and the weights of examples; a task sums them."""

from __future__ import annotations

import dataclasses

from keras import ops

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
