"""Heads on top of the encoder, and the model for pre-training."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from albert_tf.config import AlbertConfig, ConfigSource
from albert_tf.model import dropout, functional, layers, model_inputs, output_specs
from albert_tf.model.albert import AlbertModel, ConfiguredModel
from albert_tf.types import Array

# As in the release for classes and spans, whatever the config's initializer_range.
_CLASSIFIER_STDDEV = 0.02


class MaskedLMHead(layers.AlbertLayer):
    """Predicts the piece at each masked position.

    Dense (H to E), activation, normalisation, then the tied word embeddings as output matrix, plus
    a bias for each piece.

    Source: run_pretraining.py, get_masked_lm_output.
    """

    @property
    def output_shape(self) -> tuple[int | None, ...]:
        """See AlbertLayer."""
        return (None, None, self.config.vocab_size)

    def build(self, input_shape: object = None) -> None:
        """Creates the transform `<float32>[H, E]` and the output bias `<float32>[V]`."""
        config = self.config
        self.transform_kernel = self.add_matrix(
            "transform_kernel", config.hidden_size, config.embedding_size
        )
        self.transform_bias = self.add_bias("transform_bias", config.embedding_size)
        self.norm = self.add_norm("transform_LayerNorm", config.embedding_size)
        self.output_bias = self.add_bias("output_bias", config.vocab_size)
        self.built = True

    def call(self, x: Array, word_embeddings: Array) -> Array:
        """Scores all pieces at the given positions.

        Args:
          x: `<float>[B, P, H]`, the encoder's output at these positions.
          word_embeddings: `<float32>[V, E]`.

        Returns:
          `<float32>[B, P, V]` logits.
        """
        x = ops.matmul(x, ops.cast(self.transform_kernel, x.dtype))
        x = x + ops.cast(self.transform_bias, x.dtype)
        x = functional.layer_norm(functional.get_activation(self.config.hidden_act)(x), *self.norm)
        logits = ops.matmul(x, ops.transpose(ops.cast(word_embeddings, x.dtype)))
        return ops.cast(logits, "float32") + self.output_bias


class SentenceOrderHead(layers.AlbertLayer):
    """Classifies two segments as in order (0) or swapped (1).

    Source: run_pretraining.py, get_sentence_order_output.
    """

    @property
    def output_shape(self) -> tuple[int | None, ...]:
        """See AlbertLayer."""
        return (None, 2)

    def build(self, input_shape: object = None) -> None:
        """Creates the weights `<float32>[2, H]`, as the release lays them out, and a bias."""
        self.output_weights = self.add_matrix("output_weights", 2, self.config.hidden_size)
        self.output_bias = self.add_bias("output_bias", 2)
        self.built = True

    def call(self, pooled_output: Array) -> Array:
        """Maps `<float>[..., H]` to `<float32>[..., 2]` logits."""
        weights = ops.transpose(ops.cast(self.output_weights, pooled_output.dtype))
        return ops.cast(ops.matmul(pooled_output, weights), "float32") + self.output_bias


class ClassifierHead(layers.AlbertLayer):
    """Scores classes: dropout and one dense layer, over the last axis of its input.

    Args:
      config: The model's AlbertConfig.
      num_outputs: Number of classes C.
      dropout_prob: Fraction of its input that is dropped in training.
      **kwargs: Passed to keras.layers.Layer.

    Source: classifier_utils.py, race_utils.py and squad_utils.py (v1), create_model.
    """

    def __init__(
        self, config: AlbertConfig, num_outputs: int, dropout_prob: float, **kwargs: Any
    ) -> None:
        super().__init__(config, **kwargs)
        self.num_outputs = num_outputs
        self.dropout_prob = dropout_prob

    @property
    def output_shape(self) -> tuple[int | None, ...]:
        """See AlbertLayer."""
        return (*self._input_shape[:-1], self.num_outputs)

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        """Creates the weights `<float32>[C, H]`, as the release lays them out, and a bias."""
        self.output_weights = self.add_matrix(
            "output_weights", self.num_outputs, self.config.hidden_size, stddev=_CLASSIFIER_STDDEV
        )
        self.output_bias = self.add_bias("output_bias", self.num_outputs)
        self._input_shape = input_shape or (None, self.config.hidden_size)
        self.built = True

    def call(self, x: Array, seed: Array = None) -> Array:
        """Maps `<float>[..., H]` to `<float32>[..., C]` logits; dropout if a seed `<int>[2]`."""
        x = dropout.apply(x, self.dropout_prob, seed)
        weights = ops.transpose(ops.cast(self.output_weights, x.dtype))
        return ops.cast(ops.matmul(x, weights), "float32") + self.output_bias


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForPreTraining(ConfiguredModel):
    """ALBERT with both pre-training heads.

    Called on AlbertModel's inputs and `masked_lm_positions` `<int32>[B, P]`, it returns
    AlbertModel's outputs and

    - `masked_lm_logits` `<float32>[B, P, V]`,
    - `sentence_order_logits` `<float32>[B, 2]` (`[B, K, 2]` for packed rows), class 1 = swapped.

    Args: see ConfiguredModel.
    """

    output_spec = output_specs.pretraining

    def __init__(
        self,
        config: ConfigSource,
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

    def build(self, input_shape: object = None) -> None:
        """Creates all weights; their shapes follow from the config alone."""
        if not self.built:
            self.predictions.build((None, None, self.config.hidden_size))
            self.seq_relationship.build((None, self.config.hidden_size))
            self.built = True

    def symbolic_inputs(self) -> dict[str, keras.KerasTensor]:
        """See ConfiguredModel."""
        name = "masked_lm_positions"
        positions = keras.Input(batch_shape=(None, None), dtype="int32", name=name)
        return {**super().symbolic_inputs(), name: positions}

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> dict[str, Any]:
        """Encodes a batch and scores masked pieces and sentence order; see AlbertModel.call."""
        model_inputs.check(inputs, "masked_lm_positions")
        outputs = self.albert(
            inputs,
            training=training,
            dropout_seed=dropout_seed,
            positions=inputs["masked_lm_positions"],
        )
        masked_lm_logits = self.predictions(
            outputs.pop("gathered_output"), self.albert.embeddings.word_embeddings
        )
        return {
            **outputs,
            "masked_lm_logits": masked_lm_logits,
            "sentence_order_logits": self.seq_relationship(outputs["pooled_output"]),
        }
