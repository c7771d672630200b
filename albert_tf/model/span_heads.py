"""The two heads of SQuAD 2.0. Axis letters: see model/__init__.py."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from albert_tf.config import AlbertConfig
from albert_tf.model import dropout, functional, layers
from albert_tf.types import Array

# The logit of a position where no answer can start or end.
_MASKED_LOGIT = -1e30


class ConditionalSpanHead(layers.AlbertLayer):
    """Scores where an answer starts, and where it ends if it starts at a given position.

    Source: squad_utils.py, create_v2_model.
    """

    @property
    def output_shape(self) -> tuple[int | None, ...]:
        """See AlbertLayer."""
        return (None, None)

    def build(self, input_shape: object = None) -> None:
        """Creates the maps of the start `[H, 1]` and of the end `[2H, H]`, `[H, 1]`."""
        width = self.config.hidden_size
        self.start = _add_dense(self, "start", width, 1)
        self.end_0 = _add_dense(self, "end_0", 2 * width, width)
        self.norm = self.add_norm("end_LayerNorm", width)
        self.end_1 = _add_dense(self, "end_1", width, 1)
        self.built = True

    def call(self, sequence_output: Array, p_mask: Array) -> Array:
        """Scores all positions as starts.

        Args:
          sequence_output: `<float>[B, S, H]`.
          p_mask: `<int32>[B, S]`, 1 where no answer can start or end.

        Returns:
          `<float32>[B, S]` logits, about -1e30 where masked.
        """
        logits = _dense(sequence_output, self.start)[..., 0]
        return _mask(ops.cast(logits, "float32"), p_mask)

    def end_logits(self, sequence_output: Array, starts: Array, p_mask: Array) -> Array:
        """Scores all positions as ends of answers that start at K given positions.

        Args:
          sequence_output: `<float>[B, S, H]`.
          starts: `<int32>[B, K]`; one outside [0, S) selects a vector of zeros.
          p_mask: `<int32>[B, S]`, 1 where no answer can start or end.

        Returns:
          `<float32>[B, K, S]` logits, about -1e30 where masked.
        """
        width = self.config.hidden_size
        chosen = ops.one_hot(starts, ops.shape(sequence_output)[1], dtype=sequence_output.dtype)
        start_features = ops.matmul(chosen, sequence_output)  # [B, K, S] x [B, S, H]
        # A dense layer on [position, start] in two halves: one is the same for all starts, the
        # other for all positions.
        kernel, bias = self.end_0
        kernel = ops.cast(kernel, sequence_output.dtype)
        x = ops.matmul(sequence_output, kernel[:width])[:, None]
        x = x + ops.matmul(start_features, kernel[width:])[:, :, None]
        x = ops.tanh(x + ops.cast(bias, x.dtype))
        x = functional.layer_norm(x, *self.norm)
        logits = ops.cast(_dense(x, self.end_1)[..., 0], "float32")
        return _mask(logits, p_mask[:, None])


class AnswerabilityHead(layers.AlbertLayer):
    """Scores "no answer" from [CLS] and the positions where an answer is likely to start.

    Args:
      config: The model's AlbertConfig.
      dropout_prob: Fraction of its hidden layer that is dropped in training.
      **kwargs: Passed to keras.layers.Layer.

    Source: squad_utils.py, create_v2_model.
    """

    def __init__(self, config: AlbertConfig, dropout_prob: float, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.dropout_prob = dropout_prob

    @property
    def output_shape(self) -> tuple[int | None, ...]:
        """See AlbertLayer."""
        return (None,)

    def build(self, input_shape: object = None) -> None:
        """Creates the maps `[2H, H]` and, without a bias, `[H, 1]`."""
        width = self.config.hidden_size
        self.dense_0 = _add_dense(self, "dense_0", 2 * width, width)
        self.dense_1_kernel = self.add_matrix("dense_1_kernel", width, 1)
        self.built = True

    def call(self, sequence_output: Array, start_logits: Array, seed: Array = None) -> Array:
        """Maps `<float>[B, S, H]` and masked `<float32>[B, S]` to `<float32>[B]` logits."""
        start_probs = ops.cast(ops.softmax(start_logits, axis=-1), sequence_output.dtype)
        start_feature = ops.matmul(start_probs[:, None], sequence_output)[:, 0]
        x = ops.concatenate([start_feature, sequence_output[:, 0]], axis=-1)
        x = dropout.apply(ops.tanh(_dense(x, self.dense_0)), self.dropout_prob, seed)
        logits = ops.matmul(x, ops.cast(self.dense_1_kernel, x.dtype))
        return ops.cast(logits[:, 0], "float32")


def _add_dense(
    layer: layers.AlbertLayer, name: str, inputs: int, outputs: int
) -> tuple[keras.Variable, keras.Variable]:
    kernel = layer.add_matrix(f"{name}_kernel", inputs, outputs)
    return kernel, layer.add_bias(f"{name}_bias", outputs)


def _dense(x: Array, weights: tuple[keras.Variable, keras.Variable]) -> Array:
    kernel, bias = weights
    # A product of two matrices: TensorFlow 2.21's batched product of [B, 1, S, H] overruns its
    # memory on a CPU (Keras 3.13 and later avoid it themselves).
    y = ops.matmul(ops.reshape(x, (-1, kernel.shape[0])), ops.cast(kernel, x.dtype))
    return ops.reshape(y, (*ops.shape(x)[:-1], kernel.shape[1])) + ops.cast(bias, x.dtype)


def _mask(logits: Array, p_mask: Array) -> Array:
    return ops.where(ops.cast(p_mask, "bool"), _MASKED_LOGIT, logits)
