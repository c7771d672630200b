"""The model for token classification. Axis letters: see model/__init__.py."""

from __future__ import annotations

from typing import Any

import keras

from albert_tf.config import ConfigSource
from albert_tf.model.finetuning import FineTunedModel
from albert_tf.types import Array


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForTokenClassification(FineTunedModel):
    """Classifies each position of a sequence, as for names in a text or parts of speech.

    Called on AlbertModel's inputs, it returns logits `<float32>[B, S, C]` for all positions, those
    of padding included.

    Args:
      config: See FineTunedModel.
      num_labels: Number of classes C.
      classifier_dropout_prob: Dropout of each position's vector.
      recompute: See ConfiguredModel.
      name: Name of the model.
      **kwargs: Passed to keras.Model.

    Differs: the release has no such model; its head is that of AlbertForSequenceClassification.
    """

    reads_pooler = False

    def __init__(
        self,
        config: ConfigSource,
        num_labels: int,
        classifier_dropout_prob: float = 0.1,
        recompute: bool = False,
        name: str = "albert_for_token_classification",
        **kwargs: Any,
    ) -> None:
        super().__init__(config, classifier_dropout_prob, recompute, name=name, **kwargs)
        self.num_labels = num_labels
        self.classifier = self.add_classifier(num_labels, "classifier")
        self.build()

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "num_labels": self.num_labels}

    def call(
        self, inputs: dict[str, Any], training: bool | None = None, dropout_seed: Array = None
    ) -> Array:
        """Scores the classes of each position; see AlbertModel.call."""
        outputs, seed = self.encode(inputs, training, dropout_seed)
        return self.classifier(outputs["sequence_output"], seed=seed)
