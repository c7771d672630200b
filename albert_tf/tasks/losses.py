"""The tasks' losses, per example, and the examples' weights; a task sums them."""

from __future__ import annotations

import dataclasses

from keras import ops

from albert_tf.types import Array, Features

# The feature with a teacher's probabilities.
TEACHER_PROBABILITIES = "teacher_probabilities"


def example_weights(features: Features) -> Array:
    """Returns the rows' weights `<float32>[B]`, 0 for those that only fill a batch up."""
    weights = features.get("example_weights")
    if weights is None:
        # Among several workers TensorFlow does not know a batch's static size.
        return ops.ones(ops.shape(features["input_ids"])[:1], "float32")
    return ops.cast(weights, "float32")


@dataclasses.dataclass(frozen=True)
class Distillation:
    """How much a student learns from its teacher, and how much from the labels.

    Source: Hinton et al. 2015, Distilling the Knowledge in a Neural Network (arXiv 1503.02531).
    """

    weight: float  # Share of the teacher's part in the loss; the labels' is the rest.
    # What the logits of both are divided by in the teacher's part. It is multiplied by the
    # temperature's square, so that its gradient stays as large.
    temperature: float

    def mix(self, loss: Array, probabilities: Array, logits: Array) -> Array:
        """Returns the student's loss: that on the labels, `<float32>[...]`, and the teacher's part.

        The probabilities `<float32>[..., C]` are the teacher's, the logits the student's.
        """
        # Logits of the teacher, up to a constant.
        theirs = ops.log(ops.maximum(probabilities, 1e-30)) / self.temperature
        ours = ops.log_softmax(logits / self.temperature, axis=-1)
        soft = -ops.sum(ops.softmax(theirs, axis=-1) * ours, axis=-1)
        return (1 - self.weight) * loss + self.weight * self.temperature**2 * soft


def classification_loss(labels: Array, logits: Array) -> Array:
    """Returns the cross entropy `<float32>[B]` of labels `<int32>[B]` and logits `[B, C]`."""
    return position_loss(labels, ops.log_softmax(logits, axis=-1))


def multilabel_loss(targets: Array, logits: Array) -> Array:
    """Returns the binary cross entropy `<float32>[B]`, the mean over C classes.

    Targets and logits are `<float32>[B, C]`; a target of 1 = the example has the label.
    """
    return ops.mean(ops.binary_crossentropy(targets, logits, from_logits=True), axis=-1)


def regression_loss(labels: Array, logits: Array) -> Array:
    """Returns the squared error `<float32>[B]` of labels `<float32>[B]` and logits `[B, 1]`."""
    return ops.square(logits[:, 0] - labels)


def position_loss(positions: Array, log_probs: Array) -> Array:
    """Returns the negative log-likelihood `<float32>[B]` of positions `<int32>[B]`.

    One outside [0, S) of the log-probabilities `<float32>[B, S]` costs nothing.

    Source: run_squad_v1.py and run_squad_v2.py, compute_loss.
    """
    # Not a gather: it would read beyond the sequence, or fail.
    chosen = ops.one_hot(positions, ops.shape(log_probs)[-1], dtype=log_probs.dtype)
    return -ops.sum(chosen * log_probs, axis=-1)


def span_losses(outputs: dict[str, Array], features: Features) -> dict[str, Array]:
    """Returns the two losses of a span, each halved: their sum is the loss that is minimised.

    They are `<float32>[B]`. The outputs are those of AlbertForQuestionAnswering, or of
    AlbertForQuestionAnsweringV2 given the true starts; the features, `start_positions` and
    `end_positions` `<int32>[B]`.
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

    The outputs are AlbertForQuestionAnsweringV2's; of the feature `is_impossible` `<int32>[B]`, 1 =
    the question has no answer.

    Source: run_squad_v2.py, model_fn.
    """
    logits = outputs["cls_logits"]
    labels = ops.cast(features["is_impossible"], logits.dtype)
    return 0.5 * ops.binary_crossentropy(labels, logits, from_logits=True)
