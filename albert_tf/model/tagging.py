"""The model for token classification. Axis letters: see model/__init__.py."""

from __future__ import annotations

import keras

from albert_tf.model import output_specs
from albert_tf.model.finetuning_bases import ClassifierModel
from albert_tf.types import Array


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForTokenClassification(ClassifierModel):
    """Classifies each position of a sequence, as for names in a text or parts of speech.

    Called on AlbertModel's inputs, it returns logits `<float32>[B, S, C]` for all positions, those
    of padding included.

    Args: see ClassifierModel; the dropout acts on each position's vector.

    Differs: the release has no such model; its head is that of AlbertForSequenceClassification.
    """

    output_spec = output_specs.classes_of_pieces
    default_name = "albert_for_token_classification"
    reads_pooler = False

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> Array:
        """Scores the classes of each position; see AlbertModel.call."""
        outputs, seed = self.encode(inputs, training, dropout_seed)
        return self.classifier(outputs["sequence_output"], seed=seed)
