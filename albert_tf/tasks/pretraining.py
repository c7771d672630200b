"""Pre-training: the losses and metrics of masked LM and sentence order."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from albert_tf.config import AlbertConfig
from albert_tf.model.heads import AlbertForPreTraining
from albert_tf.model.initial_attention import attend_nearby
from albert_tf.tasks.losses import example_weights
from albert_tf.training.interfaces import Task
from albert_tf.types import Array, Features


class PretrainingTask(Task):
    """Masked LM and sentence order on AlbertForPreTraining.

    Features are those of records.pretraining_spec: AlbertModel's inputs, `masked_lm_positions`,
    `masked_lm_ids`, `masked_lm_weights` `[B, P]` and `sentence_order_labels` `<int32>[B]`, or, for
    packed rows, `[B, K]` with `sentence_order_weights` `<float32>[B, K]` that are 0 in empty slots.
    An `example_weights` `<float32>[B]` of 0 marks a row that only fills up the last batch.

    Args:
      config: The model's config.
      dtype: Keras dtype policy of the model: "float32" or "mixed_bfloat16".
      recompute: See AlbertForPreTraining.
      sentence_order_weight: Factor of the sentence-order loss, in reports too. 0 leaves masked LM
        alone: the order head and the pooler get no gradient, and have no metrics.
      nearby_attention: Whether attention of random weights begins nearby; see attend_nearby.

    Source: run_pretraining.py, get_masked_lm_output, get_sentence_order_output and model_fn.
    """

    # As in the release, a batch without masked pieces has a loss of 0, not NaN.
    loss_epsilon = {"masked_lm_loss": 1e-5}
    key_metric = "masked_lm_accuracy"

    def __init__(
        self,
        config: AlbertConfig,
        dtype: str = "float32",
        recompute: bool = False,
        sentence_order_weight: float = 1.0,
        nearby_attention: bool = False,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.recompute = recompute
        self.sentence_order_weight = sentence_order_weight
        self.nearby_attention = nearby_attention
        orders = ("sentence_order_loss",) if sentence_order_weight else ()
        self.loss_names = ("masked_lm_loss", *orders)

    def build_model(self) -> keras.Model:
        model = AlbertForPreTraining(self.config, recompute=self.recompute, dtype=self.dtype)
        if self.nearby_attention:
            attend_nearby(model.albert)
        return model

    def loss_weights(self, features: Features) -> dict[str, Array]:
        weights = {"masked_lm_loss": ops.sum(_piece_weights(features))}
        if self.sentence_order_weight:
            weights["sentence_order_loss"] = ops.sum(_order_weights(features))
        return weights

    def loss_sums(self, outputs: Any, features: Features) -> dict[str, Array]:
        pieces = nll(features["masked_lm_ids"], outputs["masked_lm_logits"])
        sums = {"masked_lm_loss": ops.sum(pieces * _piece_weights(features))}
        if self.sentence_order_weight:
            orders = nll(features["sentence_order_labels"], outputs["sentence_order_logits"])
            order_sum = ops.sum(orders * _order_weights(features))
            sums["sentence_order_loss"] = self.sentence_order_weight * order_sum
        return sums

    def metrics(self, outputs: Any, features: Features) -> dict[str, tuple[Array, Array]]:
        sums, weights = self.loss_sums(outputs, features), self.loss_weights(features)
        # Accuracies, with the weights of the losses.
        pieces = hits(features["masked_lm_ids"], outputs["masked_lm_logits"])
        sums["masked_lm_accuracy"] = ops.sum(pieces * _piece_weights(features))
        weights["masked_lm_accuracy"] = weights["masked_lm_loss"]
        if self.sentence_order_weight:
            orders = hits(features["sentence_order_labels"], outputs["sentence_order_logits"])
            sums["sentence_order_accuracy"] = ops.sum(orders * _order_weights(features))
            weights["sentence_order_accuracy"] = weights["sentence_order_loss"]
        return {name: (sums[name], weights[name]) for name in sums}


def nll(labels: Array, logits: Array) -> Array:
    """Returns the negative log-likelihoods `[...]` of labels `[...]` by logits `[..., C]`."""
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def hits(labels: Array, logits: Array) -> Array:
    """Returns 1 where the label `[...]` has the largest of the logits `[..., C]`, 0 elsewhere."""
    return ops.cast(
        ops.equal(ops.cast(ops.argmax(logits, axis=-1), labels.dtype), labels), "float32"
    )


def _piece_weights(features: Features) -> Array:
    return features["masked_lm_weights"] * example_weights(features)[:, None]


def _order_weights(features: Features) -> Array:
    weights = example_weights(features)
    if "sentence_order_weights" in features:
        return features["sentence_order_weights"] * weights[:, None]
    return weights
