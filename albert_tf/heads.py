"""What stands on the encoder: heads, and the models that put one on an AlbertModel."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from albert_tf import functional, layers
from albert_tf.config import AlbertConfig
from albert_tf.modeling import AlbertModel, ConfiguredModel


class MaskedLMHead(layers.AlbertLayer):
    """Predicts the piece at each masked position.

    Dense (H to E), activation, normalisation, then the word embeddings themselves as the output
    matrix, plus a bias for each piece.

    Source: run_pretraining.py, get_masked_lm_output.
    """

    def build(self, input_shape: Any = None) -> None:
        """Creates the transform `<float32>[H, E]` and the output bias `<float32>[V]`."""
        config = self.config
        self.transform_kernel = self.add_matrix(
            "transform_kernel", config.hidden_size, config.embedding_size
        )
        self.transform_bias = self.add_bias("transform_bias", config.embedding_size)
        self.norm = self.add_norm("transform_LayerNorm", config.embedding_size)
        self.output_bias = self.add_bias("output_bias", config.vocab_size)
        self.built = True

    def call(self, sequence_output: Any, positions: Any, word_embeddings: Any) -> Any:
        """Scores all pieces at some positions.

        Args:
          sequence_output: `<float>[B, S, H]`.
          positions: `<int32>[B, P]`.
          word_embeddings: `<float32>[V, E]`.

        Returns:
          `<float32>[B, P, V]` logits.
        """
        x = functional.gather_positions(sequence_output, positions)
        x = ops.matmul(x, ops.cast(self.transform_kernel, x.dtype))
        x = x + ops.cast(self.transform_bias, x.dtype)
        x = functional.layer_norm(functional.get_activation(self.config.hidden_act)(x), *self.norm)
        logits = ops.matmul(x, ops.transpose(ops.cast(word_embeddings, x.dtype)))
        return ops.cast(logits, "float32") + self.output_bias


class SentenceOrderHead(layers.AlbertLayer):
    """Tells segments in their order (0) from swapped ones (1).

    Source: run_pretraining.py, get_sentence_order_output.
    """

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights `<float32>[2, H]`, as the release lays them out, and a bias."""
        self.output_weights = self.add_matrix("output_weights", 2, self.config.hidden_size)
        self.output_bias = self.add_bias("output_bias", 2)
        self.built = True

    def call(self, pooled_output: Any) -> Any:
        """Maps `<float>[B, H]` to `<float32>[B, 2]` logits."""
        weights = ops.transpose(ops.cast(self.output_weights, pooled_output.dtype))
        return ops.cast(ops.matmul(pooled_output, weights), "float32") + self.output_bias


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForPreTraining(ConfiguredModel):
    """ALBERT with both heads of pre-training.

    Called on AlbertModel's inputs and `masked_lm_positions` `<int32>[B, P]`, it returns
    AlbertModel's outputs and

    - `masked_lm_logits` `<float32>[B, P, V]`,
    - `sentence_order_logits` `<float32>[B, 2]`, of which 1 means swapped.

    Args: see ConfiguredModel.
    """

    def __init__(
        self,
        config: AlbertConfig | dict[str, Any],
        recompute: bool = False,
        name: str = "albert_for_pretraining",
        **kwargs: Any,
    ) -> None:
        super().__init__(config, recompute, name=name, **kwargs)
        policy = self.dtype_policy
        self.albert = AlbertModel(self.config, recompute, dtype=policy)
        self.predictions = MaskedLMHead(self.config, name="predictions", dtype=policy)
        self.seq_relationship = SentenceOrderHead(
            self.config, name="seq_relationship", dtype=policy
        )
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Creates all weights; their shapes follow from the config alone."""
        if not self.built:
            self.predictions.build()
            self.seq_relationship.build()
            self.built = True

    def call(
        self, inputs: dict[str, Any], training: bool | None = None, dropout_seed: Any = None
    ) -> dict[str, Any]:
        """Encodes a batch and scores masked pieces and sentence order; see AlbertModel.call."""
        outputs = self.albert(inputs, training=training, dropout_seed=dropout_seed)
        masked_lm_logits = self.predictions(
            outputs["sequence_output"],
            inputs["masked_lm_positions"],
            self.albert.embeddings.word_embeddings,
        )
        return {
            **outputs,
            "masked_lm_logits": masked_lm_logits,
            "sentence_order_logits": self.seq_relationship(outputs["pooled_output"]),
        }
