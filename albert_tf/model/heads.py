"""Heads on an AlbertModel, and the model for pre-training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import KerasTensor, ops

from albert_tf.config import AlbertConfig, ConfigSource
from albert_tf.model import albert, dropout, layers
from albert_tf.model.albert import AlbertModel
from albert_tf.model.configured import ConfiguredModel
from albert_tf.types import Array


class MaskedLMHead(layers.AlbertLayer):
    """Predicts the piece at each masked position.

    Dense (H to E), activation and normalisation; then the tied word embeddings as output matrix
    (E x V, factorized like the input), plus a bias for each piece.

    Source: run_pretraining.py, get_masked_lm_output.

    Example:
      >>> config = AlbertConfig(31, embedding_size=5, hidden_size=12, num_attention_heads=3)
      >>> word_embeddings = ops.ones([31, 5])
      >>> tuple(MaskedLMHead(config)(ops.ones([1, 2, 12]), word_embeddings).shape)
      (1, 2, 31)
    """

    def build(self, input_shape: object = None) -> None:
        """Creates the transform `<float32>[H, E]` and the output bias `<float32>[V]`."""
        config = self.config
        self.transform_kernel = self.add_matrix(
            "transform_kernel", config.hidden_size, config.embedding_size
        )
        self.transform_bias = self.add_bias("transform_bias", config.embedding_size)
        self.norm = self.add_norm("transform_LayerNorm", config.embedding_size)
        self.output_bias = self.add_bias("output_bias", config.vocab_size)
        self.output_shape = (None, None, config.vocab_size)
        self.built = True

    def call(self, x: Array, word_embeddings: Array) -> Array:
        """Maps the encoder's outputs `<float>[B, P, H]` to logits `<float32>[B, P, V]`."""
        # H -> E.
        x = layers.product(x, ops.cast(self.transform_kernel, x.dtype))
        x = layers.plus_bias(x, self.transform_bias)
        x = layers.layer_norm(layers.get_activation(self.config.hidden_act)(x), *self.norm)
        # E -> V, by the tied embeddings.
        logits = layers.product(x, ops.transpose(ops.cast(word_embeddings, x.dtype)))
        return ops.cast(logits, "float32") + self.output_bias


class SentenceOrderHead(layers.AlbertLayer):
    """Classifies two segments as in order (0) or swapped (1): the inter-sentence coherence loss.

    Source: run_pretraining.py, get_sentence_order_output.

    Example:
      >>> config = AlbertConfig(31, embedding_size=5, hidden_size=12, num_attention_heads=3)
      >>> tuple(SentenceOrderHead(config)(ops.ones([1, 12])).shape)
      (1, 2)
    """

    def build(self, input_shape: object = None) -> None:
        """Creates the weights `<float32>[2, H]`, as the release lays them out, and a bias."""
        self.output_weights = self.add_matrix("output_weights", 2, self.config.hidden_size)
        self.output_bias = self.add_bias("output_bias", 2)
        self.output_shape = (None, 2)
        self.built = True

    def call(self, pooled_output: Array) -> Array:
        """Maps `<float>[..., H]` to `<float32>[..., 2]` logits."""
        weights = ops.transpose(ops.cast(self.output_weights, pooled_output.dtype))
        return ops.cast(layers.product(pooled_output, weights), "float32") + self.output_bias


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForPreTraining(ConfiguredModel):
    """ALBERT with both pre-training heads.

    Called on AlbertModel's inputs and `masked_lm_positions` `<int32>[B, P]`, it returns
    AlbertModel's outputs and

    - `masked_lm_logits` `<float32>[B, P, V]`,
    - `sentence_order_logits` `<float32>[B, 2]` (`[B, K, 2]` for packed rows), class 1 = swapped.

    Args: see ConfiguredModel.

    Example:
      >>> import numpy as np
      >>> import albert_tf
      >>> config = albert_tf.AlbertConfig(vocab_size=31, hidden_size=12, num_attention_heads=3)
      >>> model = albert_tf.AlbertForPreTraining(config)
      >>> ids, positions = np.array([[2, 4, 8, 3]]), np.array([[1]])  # 4 is [MASK].
      >>> outputs = model({"input_ids": ids, "masked_lm_positions": positions})
      >>> tuple(outputs["masked_lm_logits"].shape), tuple(outputs["sentence_order_logits"].shape)
      ((1, 1, 31), (1, 2))
    """

    input_axes = {**ConfiguredModel.input_axes, "masked_lm_positions": "B, P"}
    needed_inputs = ("input_ids", "masked_lm_positions")

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
        self.build_all()

    def build(self, input_shape: object = None) -> None:
        if not self.built:
            self.predictions.build((None, None, self.config.hidden_size))
            self.seq_relationship.build((None, self.config.hidden_size))
            self.built = True

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> dict[str, Any]:
        """Encodes a batch and scores masked pieces and sentence order; see AlbertModel.call."""
        self.check_inputs(inputs)
        inputs = dict(inputs)
        # The encoder computes its last block only at the positions that are predicted.
        positions = inputs.pop("masked_lm_positions")
        outputs = self.albert(
            inputs, training=training, dropout_seed=dropout_seed, positions=positions
        )
        masked_lm_logits = self.predictions(
            outputs.pop("gathered_output"), self.albert.embeddings.word_embeddings
        )
        return {
            **outputs,
            "masked_lm_logits": masked_lm_logits,
            "sentence_order_logits": self.seq_relationship(outputs["pooled_output"]),
        }

    def output_spec(self, inputs: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        batch, predictions = inputs["masked_lm_positions"].shape
        return {
            **self.albert.output_spec(inputs),
            "masked_lm_logits": KerasTensor((batch, predictions, self.config.vocab_size)),
            "sentence_order_logits": KerasTensor((batch, *albert.packed_axis(inputs), 2)),
        }


# The release's value for classes and spans, which ignores the config's initializer_range.
_CLASSIFIER_STDDEV = 0.02
# The logit of a position where no answer can start or end.
_MASKED_LOGIT = -1e30


class ClassifierHead(layers.AlbertLayer):
    """Scores classes: dropout and one dense layer, over the last axis of its input.

    Args:
      config: The model's AlbertConfig.
      num_outputs: Number of classes C.
      dropout_prob: Dropout rate of its input.
      **kwargs: Passed to keras.layers.Layer.

    Source: classifier_utils.py, race_utils.py and squad_utils.py (v1), create_model.

    Example:
      >>> config = AlbertConfig(31, embedding_size=5, hidden_size=12, num_attention_heads=3)
      >>> tuple(ClassifierHead(config, num_outputs=3, dropout_prob=0.1)(ops.ones([1, 12])).shape)
      (1, 3)
    """

    def __init__(
        self, config: AlbertConfig, num_outputs: int, dropout_prob: float, **kwargs: Any
    ) -> None:
        super().__init__(config, **kwargs)
        self.num_outputs = num_outputs
        self.dropout_prob = dropout_prob

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        """Creates the weights `<float32>[C, H]`, as the release lays them out, and a bias."""
        self.output_weights = self.add_matrix(
            "output_weights", self.num_outputs, self.config.hidden_size, stddev=_CLASSIFIER_STDDEV
        )
        self.output_bias = self.add_bias("output_bias", self.num_outputs)
        self.output_shape = (*(input_shape or (None, None))[:-1], self.num_outputs)
        self.built = True

    def call(self, x: Array, seed: Array = None) -> Array:
        """Maps `<float>[..., H]` to logits `<float32>[..., C]`; a seed `<int>[2]` drops out."""
        x = dropout.apply_dropout(x, self.dropout_prob, seed)
        weights = ops.transpose(ops.cast(self.output_weights, x.dtype))
        return ops.cast(layers.product(x, weights), "float32") + self.output_bias


class ConditionalSpanHead(layers.AlbertLayer):
    """Scores where an answer starts, and where it ends if it starts at a given position.

    Source: squad_utils.py, create_v2_model.

    Example:
      >>> config = AlbertConfig(31, embedding_size=5, hidden_size=12, num_attention_heads=3)
      >>> head = ConditionalSpanHead(config)
      >>> tuple(head(ops.ones([1, 4, 12]), p_mask=ops.zeros([1, 4])).shape)
      (1, 4)
    """

    def build(self, input_shape: object = None) -> None:
        """Creates the maps of the start `[H, 1]` and of the end `[2H, H]`, `[H, 1]`."""
        width = self.config.hidden_size
        self.start = _add_dense(self, "start", width, 1)
        self.end_0 = _add_dense(self, "end_0", 2 * width, width)
        self.norm = self.add_norm("end_LayerNorm", width)
        self.end_1 = _add_dense(self, "end_1", width, 1)
        self.output_shape = (None, None)
        self.built = True

    def call(self, sequence_output: Array, p_mask: Array) -> Array:
        """Scores all positions as starts.

        Maps `<float>[B, S, H]` to logits `<float32>[B, S]`, which are -1e30 where p_mask
        `<int32>[B, S]` is 1: no answer can start or end there.
        """
        logits = _dense(sequence_output, self.start)[..., 0]
        return _mask(ops.cast(logits, "float32"), p_mask)

    def end_logits(self, sequence_output: Array, starts: Array, p_mask: Array) -> Array:
        """Scores all positions as ends of answers that start at K given positions.

        A start `<int32>[B, K]` outside [0, S) selects a vector of zeros. Returns logits
        `<float32>[B, K, S]`. For the other arguments see `call`.
        """
        width = self.config.hidden_size
        chosen = ops.one_hot(starts, ops.shape(sequence_output)[1], dtype=sequence_output.dtype)
        start_features = ops.matmul(chosen, sequence_output)  # [B, K, S] x [B, S, H]
        # A dense layer on [position, start] in two halves: the first is the same for all starts,
        # the second for all positions.
        kernel, bias = self.end_0
        kernel = ops.cast(kernel, sequence_output.dtype)
        x = layers.product(sequence_output, kernel[:width])[:, None]
        x = x + layers.product(start_features, kernel[width:])[:, :, None]
        x = ops.tanh(layers.plus_bias(x, bias))
        # One logit per pair of start and end.
        x = layers.layer_norm(x, *self.norm)
        logits = ops.cast(_dense(x, self.end_1)[..., 0], "float32")
        return _mask(logits, p_mask[:, None])


class AnswerabilityHead(layers.AlbertLayer):
    """Scores "no answer" from [CLS] and the positions where an answer is likely to start.

    Args:
      config: The model's AlbertConfig.
      dropout_prob: Dropout rate of its hidden layer.
      **kwargs: Passed to keras.layers.Layer.

    Source: squad_utils.py, create_v2_model.

    Example:
      >>> config = AlbertConfig(31, embedding_size=5, hidden_size=12, num_attention_heads=3)
      >>> head = AnswerabilityHead(config, dropout_prob=0.1)
      >>> tuple(head(ops.ones([1, 4, 12]), start_logits=ops.zeros([1, 4])).shape)
      (1,)
    """

    def __init__(self, config: AlbertConfig, dropout_prob: float, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.dropout_prob = dropout_prob

    def build(self, input_shape: object = None) -> None:
        """Creates the maps `[2H, H]` and, without a bias, `[H, 1]`."""
        width = self.config.hidden_size
        self.dense_0 = _add_dense(self, "dense_0", 2 * width, width)
        self.dense_1_kernel = self.add_matrix("dense_1_kernel", width, 1)
        self.output_shape = (None,)
        self.built = True

    def call(self, sequence_output: Array, start_logits: Array, seed: Array = None) -> Array:
        """Maps `<float>[B, S, H]` and masked `<float32>[B, S]` to `<float32>[B]` logits."""
        # The mean of all positions, weighted by the probability that an answer starts there.
        start_probs = ops.cast(ops.softmax(start_logits, axis=-1), sequence_output.dtype)
        start_feature = ops.matmul(start_probs[:, None], sequence_output)[:, 0]
        x = ops.concatenate([start_feature, sequence_output[:, 0]], axis=-1)
        x = dropout.apply_dropout(ops.tanh(_dense(x, self.dense_0)), self.dropout_prob, seed)
        logits = ops.matmul(x, ops.cast(self.dense_1_kernel, x.dtype))
        return ops.cast(logits[:, 0], "float32")


def _add_dense(
    layer: layers.AlbertLayer, name: str, inputs: int, outputs: int
) -> tuple[keras.Variable, keras.Variable]:
    kernel = layer.add_matrix(f"{name}_kernel", inputs, outputs)
    return kernel, layer.add_bias(f"{name}_bias", outputs)


def _dense(x: Array, weights: tuple[keras.Variable, keras.Variable]) -> Array:
    kernel, bias = weights
    # Two matrices: TensorFlow 2.21's batched product of [B, 1, S, H] overruns its memory on
    # a CPU (Keras 3.13 and later avoid it themselves).
    y = ops.matmul(ops.reshape(x, (-1, kernel.shape[0])), ops.cast(kernel, x.dtype))
    return layers.plus_bias(ops.reshape(y, (*ops.shape(x)[:-1], kernel.shape[1])), bias)


def _mask(logits: Array, p_mask: Array) -> Array:
    return ops.where(ops.cast(p_mask, "bool"), _MASKED_LOGIT, logits)


def with_positions(sequence: Array, p_mask: Array, least: int) -> tuple[Array, Array]:
    """Pads a sequence `<float>[B, S, H]` to a beam's width; no answer can be in the padding."""
    # A graph may know the length only when it runs.
    length = ops.shape(sequence)[1]
    if not isinstance(length, int):
        lacking = ops.maximum(least - length, 0)
    elif length < least:
        lacking = least - length
    else:
        return sequence, p_mask
    sequence = ops.pad(sequence, [[0, 0], [0, lacking], [0, 0]])
    return sequence, ops.pad(p_mask, [[0, 0], [0, lacking]], constant_values=1)


def pool(sequence: Array, mask: Array, pooling: str) -> Array:
    """Returns a vector `<float32>[B, H]` of each text.

    Args:
      sequence: The vectors of its pieces, `<float32>[B, S, H]`.
      mask: 1 for pieces, 0 for padding (or 0 and a value far below it), `<int>[B, S]`.
      pooling: One of POOLINGS.

    Example:
      >>> vectors = ops.convert_to_tensor([[[1.0, 4.0], [3.0, 0.0], [9.0, 9.0]]])
      >>> [float(x) for x in pool(vectors, ops.convert_to_tensor([[1, 1, 0]]), "mean")[0]]
      [2.0, 2.0]
    """
    if pooling == "cls":
        return sequence[:, 0]
    is_piece = mask == ops.max(mask, axis=1, keepdims=True)
    weights = ops.expand_dims(ops.cast(is_piece, "float32"), -1)
    if pooling == "max":
        return ops.max(ops.where(weights > 0, sequence, -1e9), axis=1)
    count = ops.sum(weights, axis=1)
    total = ops.sum(sequence * weights, axis=1)
    return total / (count if pooling == "mean" else ops.sqrt(count))


def unit_length(vectors: Array) -> Array:
    """Returns vectors `<float32>[..., D]` scaled to length 1; zero vectors stay zero.

    Example:
      >>> [round(float(x), 1) for x in unit_length(ops.convert_to_tensor([3.0, 4.0]))]
      [0.6, 0.8]
    """
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors / ops.sqrt(ops.maximum(squares, 1e-24))
