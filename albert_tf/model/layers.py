"""The building blocks: normalisation, embeddings, self-attention, feed-forward, pooler."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from albert_tf.config import LAYER_NORM_EPSILON, AlbertConfig
from albert_tf.model.dropout import apply_dropout, fold_in
from albert_tf.model.fusion import fused, on_jax
from albert_tf.types import Array

if on_jax:
    from albert_tf.model import jax_ops


class AlbertLayer(keras.layers.Layer):
    """Base class of ALBERT's layers: weights are float32, initialised as in the release.

    Args:
      config: The model's AlbertConfig.
      **kwargs: Passed to keras.layers.Layer.
    """

    def __init__(self, config: AlbertConfig, **kwargs: Any) -> None:
        # No autocast: layers cast their own inputs, and float32 masks stay exact.
        super().__init__(autocast=False, **kwargs)
        self.config = config
        # For summary(); None stands for the batch and for positions.
        self.output_shape: tuple[int | None, ...] = (None, None, config.hidden_size)

    def add_matrix(self, name: str, *shape: int, stddev: float | None = None) -> keras.Variable:
        """Adds a truncated normal weight; its stddev is `initializer_range` by default.

        As in the release, stddev is measured before the truncation at two standard deviations.
        """
        stddev = self.config.initializer_range if stddev is None else stddev
        return self._add(name, shape, keras.initializers.TruncatedNormal(stddev=stddev))

    def add_bias(self, name: str, size: int) -> keras.Variable:
        """Adds a zero-initialised weight `<float32>[size]`."""
        return self._add(name, (size,), "zeros")

    def add_norm(self, name: str, size: int) -> tuple[keras.Variable, keras.Variable]:
        """Adds gamma (ones) and beta (zeros) of a normalisation, each `<float32>[size]`."""
        gamma = self._add(f"{name}_gamma", (size,), "ones")
        beta = self._add(f"{name}_beta", (size,), "zeros")
        return gamma, beta

    def _add(self, name: str, shape: tuple[int, ...], initializer: Any) -> keras.Variable:
        # No autocast: layers cast their own weights, each once per pass.
        return self.add_weight(
            name=name, shape=shape, initializer=initializer, dtype="float32", autocast=False
        )


class Embeddings(AlbertLayer):
    """Sums the word, token-type and position embeddings and normalises them.

    Their width is E; the encoder maps them to H (factorized embedding parameterization).

    Source: albert/modeling.py, embedding_lookup and embedding_postprocessor.

    Example:
      >>> import numpy as np
      >>> config = AlbertConfig(31, embedding_size=5, hidden_size=12, num_attention_heads=3)
      >>> ids = np.array([[2, 7, 8, 3]])
      >>> tuple(Embeddings(config)(ids, segment_ids=np.zeros_like(ids)).shape)
      (1, 4, 5)
    """

    def build(self, input_shape: object = None) -> None:
        """Creates the three tables `<float32>[..., E]` and the normalisation."""
        config, width, add = self.config, self.config.embedding_size, self.add_matrix
        self.word_embeddings = add("word_embeddings", config.vocab_size, width)
        self.token_type_embeddings = add("token_type_embeddings", config.type_vocab_size, width)
        self.position_embeddings = add("position_embeddings", config.max_position_embeddings, width)
        self.norm = self.add_norm("LayerNorm", width)
        self.output_shape = (None, None, width)
        self.built = True

    def call(
        self, input_ids: Array, segment_ids: Array, starts: Array = None, seed: Array = None
    ) -> Array:
        """Embeds tokens.

        Args:
          input_ids: `<int32>[B, S]` in [0, V); padding is embedded like any piece.
          segment_ids: `<int32>[B, S]` in [0, type_vocab_size).
          starts: `<int32>[B, S]`, for packed rows: the start of each position's example.
          seed: `<int>[2]` of the forward pass; None when not training.

        Returns:
          `<float>[B, S, E]`.
        """
        # Otherwise the sum below would fail with a message about shapes or, if packed, not at all.
        length = input_ids.shape[1]
        if length is not None and length > self.config.max_position_embeddings:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the config's "
                f"max_position_embeddings ({self.config.max_position_embeddings}): shorten it"
            )
        words = ops.take(self.word_embeddings, input_ids, axis=0)
        # A one-hot product, not a gather: the table has two rows, and the gradient stays dense.
        types = ops.one_hot(segment_ids, self.config.type_vocab_size, dtype=words.dtype)
        types = ops.matmul(types, self.token_type_embeddings)
        # Positions count from the start of the row, or of the example in a packed row.
        positions = self.position_embeddings[: ops.shape(input_ids)[1]]
        if starts is not None:
            columns = ops.arange(ops.shape(input_ids)[1], dtype=starts.dtype)
            positions = ops.take(positions, columns - starts, axis=0)
        x = layer_norm(words + types + positions, *self.norm)
        return apply_dropout(ops.cast(x, self.compute_dtype), self.config.hidden_dropout_prob, seed)


class SublayerWeights(NamedTuple):
    """The weights of a sublayer; matrices and biases are in the compute dtype.

    Attributes:
      inner_kernel: `<float>[H, 3H]` in attention, for query, key and value as one product;
        `<float>[H, I]` in the feed-forward part.
      inner_bias: `<float>[3H]` or `<float>[I]`.
      output_kernel: `<float>[H, H]` or `<float>[I, H]`.
      output_bias: `<float>[H]`.
      gamma: `<float32>[H]` of the normalisation.
      beta: `<float32>[H]`.
    """

    inner_kernel: Array
    inner_bias: Array
    output_kernel: Array
    output_bias: Array
    gamma: Array
    beta: Array


class Sublayer(AlbertLayer):
    """Base class of the two sublayers of a block, which end alike."""

    def project_and_norm(
        self, x: Array, inner: Array, weights: SublayerWeights, seed: Array
    ) -> Array:
        """Projects inner `<float>[B * P, ...]` to x's shape, drops out, adds x, normalises."""
        output = ops.reshape(ops.matmul(inner, weights.output_kernel), ops.shape(x))
        return add_and_norm(
            x,
            output,
            weights.output_bias,
            weights.gamma,
            weights.beta,
            rate=self.config.hidden_dropout_prob,
            seed=seed,
        )


class SelfAttention(Sublayer):
    """Multi-head self-attention, its output projection, residual and normalisation.

    The encoder reads the weights once per forward pass and passes them to each call.

    Source: albert/modeling.py, attention_layer and attention_ffn_block.

    Example:
      >>> config = AlbertConfig(31, embedding_size=5, hidden_size=12, num_attention_heads=3)
      >>> layer = SelfAttention(config)
      >>> layer.build()
      >>> x, masked_scores = ops.ones([1, 4, 12]), ops.zeros([1, 1, 1, 4])
      >>> tuple(layer(x, layer.read(), masked_scores).shape)
      (1, 4, 12)
    """

    def build(self, input_shape: object = None) -> None:
        """Creates kernels `<float32>[H, H]`, biases `<float32>[H]` and the normalisation."""
        width = self.config.hidden_size
        self.query_kernel = self.add_matrix("query_kernel", width, width)
        self.query_bias = self.add_bias("query_bias", width)
        self.key_kernel = self.add_matrix("key_kernel", width, width)
        self.key_bias = self.add_bias("key_bias", width)
        self.value_kernel = self.add_matrix("value_kernel", width, width)
        self.value_bias = self.add_bias("value_bias", width)
        self.output_kernel = self.add_matrix("output_kernel", width, width)
        self.output_bias = self.add_bias("output_bias", width)
        self.norm = self.add_norm("LayerNorm", width)
        self.built = True

    def read(self) -> SublayerWeights:
        """Returns the weights in the dtypes of SublayerWeights."""
        dtype = self.compute_dtype
        kernels = [self.query_kernel, self.key_kernel, self.value_kernel]
        biases = [self.query_bias, self.key_bias, self.value_bias]
        # Query, key and value become one matrix, so that one product computes all three.
        return SublayerWeights(
            ops.cast(ops.concatenate([ops.convert_to_tensor(k) for k in kernels], axis=1), dtype),
            ops.cast(ops.concatenate([ops.convert_to_tensor(b) for b in biases], axis=0), dtype),
            ops.cast(self.output_kernel, dtype),
            ops.cast(self.output_bias, dtype),
            *(ops.cast(weight, "float32") for weight in self.norm),
        )

    def call(
        self,
        x: Array,
        weights: SublayerWeights,
        masked_scores: Array,
        seed: Array = None,
        positions: Array = None,
    ) -> Array:
        """Attends from each position to all unmasked ones.

        Args:
          x: `<float>[B, S, H]`.
          weights: The result of `read`.
          masked_scores: See masked_scores.
          seed: `<int>[2]` of this block; None when not training.
          positions: `<int32>[B, P]`, the only positions to compute; None for all, P = S.

        Returns:
          `<float>[B, P, H]`.
        """
        heads = self.config.num_attention_heads
        drops = seed is not None and self.config.attention_probs_dropout_prob > 0
        # A kernel attends if it needs neither dropout of the probabilities nor fewer positions.
        if positions is None and not drops and on_jax and jax_ops.attends(x, heads):
            kernel, bias = weights.inner_kernel, weights.inner_bias
            query, key, value = project(x, kernel, bias, heads, heads_first=False)
            context = jax_ops.attention(query, key, value, masked_scores)  # [B, S, N, D]
        else:
            probs, value = self.attend(x, weights, masked_scores, seed, positions)
            context = ops.transpose(ops.matmul(probs, value), (0, 2, 1, 3))  # [B, P, N, D]
        # Output projection, residual and normalisation, of the wanted positions only.
        if positions is not None:
            x = gather_positions(x, positions)
        context = ops.reshape(context, (-1, self.config.hidden_size))
        return self.project_and_norm(x, context, weights, fold_in(seed, 1))

    def attend(
        self,
        x: Array,
        weights: SublayerWeights,
        masked_scores: Array,
        seed: Array,
        positions: Array,
    ) -> tuple[Array, Array]:
        """Returns probabilities `<float>[B, N, P, S]`, values `<float>[B, N, S, D]`; see call."""
        config, width = self.config, self.config.hidden_size
        kernel, bias, heads = weights.inner_kernel, weights.inner_bias, config.num_attention_heads
        if positions is None:
            query, key, value = project(x, kernel, bias, heads)
        else:
            # Gather the inputs rather than the queries, which would be more work, and which libtpu
            # 0.0.42.1 can't compile for 16 heads on a v7x.
            asking = gather_positions(x, positions)
            (query,) = project(asking, kernel[:, :width], bias[:width], heads)
            key, value = project(x, kernel[:, width:], bias[width:], heads)
            # In packed rows each query has its own mask: take the masks of these positions.
            if masked_scores.shape[2] != 1:
                rows = gather_positions(masked_scores[:, 0], positions)
                masked_scores = ops.expand_dims(rows, 1)
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))  # [B, N, P, S]
        probs = _softmax(scores, scale=1 / math.sqrt(width // heads), masked_scores=masked_scores)
        return apply_dropout(probs, config.attention_probs_dropout_prob, seed), value


class FeedForward(Sublayer):
    """Two dense layers with an activation in between, residual and normalisation.

    As with SelfAttention, the encoder reads the weights once and passes them to each call.

    Source: albert/modeling.py, attention_ffn_block.

    Example:
      >>> config = AlbertConfig(31, embedding_size=5, hidden_size=12, num_attention_heads=3)
      >>> layer = FeedForward(config)
      >>> layer.build()
      >>> tuple(layer(ops.ones([1, 4, 12]), layer.read()).shape)
      (1, 4, 12)
    """

    def build(self, input_shape: object = None) -> None:
        """Creates kernels `<float32>[H, I]`, `<float32>[I, H]`, biases and the normalisation."""
        width, inner = self.config.hidden_size, self.config.intermediate_size
        self.intermediate_kernel = self.add_matrix("intermediate_kernel", width, inner)
        self.intermediate_bias = self.add_bias("intermediate_bias", inner)
        self.output_kernel = self.add_matrix("output_kernel", inner, width)
        self.output_bias = self.add_bias("output_bias", width)
        self.norm = self.add_norm("LayerNorm_1", width)
        self.built = True

    def read(self) -> SublayerWeights:
        """Returns the weights in the dtypes of SublayerWeights."""
        inner = (self.intermediate_kernel, self.intermediate_bias)
        matrices = (*inner, self.output_kernel, self.output_bias)
        return SublayerWeights(
            *(ops.cast(weight, self.compute_dtype) for weight in matrices),
            *(ops.cast(weight, "float32") for weight in self.norm),
        )

    def call(self, x: Array, weights: SublayerWeights, seed: Array = None) -> Array:
        """Transforms each position of x `<float>[B, S, H]`; arguments as in SelfAttention."""
        config = self.config
        inner = ops.matmul(ops.reshape(x, (-1, config.hidden_size)), weights.inner_kernel)
        inner = biased_activation(inner, weights.inner_bias, name=config.hidden_act)
        return self.project_and_norm(x, inner, weights, fold_in(seed, 2))


class Pooler(AlbertLayer):
    """Summarises an example: a dense layer and tanh on the vector at [CLS].

    Example:
      >>> config = AlbertConfig(31, embedding_size=5, hidden_size=12, num_attention_heads=3)
      >>> tuple(Pooler(config)(ops.ones([1, 12])).shape)
      (1, 12)
    """

    def build(self, input_shape: object = None) -> None:
        """Creates the kernel `<float32>[H, H]` and the bias `<float32>[H]`."""
        self.kernel = self.add_matrix("kernel", self.config.hidden_size, self.config.hidden_size)
        self.bias = self.add_bias("bias", self.config.hidden_size)
        self.built = True

    def call(self, x: Array) -> Array:
        """Maps `<float>[..., H]` to `<float>[..., H]`."""
        pooled = product(x, ops.cast(self.kernel, x.dtype))
        return ops.tanh(plus_bias(pooled, self.bias))


# --- dense layers ---------------------------------------------------------------------------


def product(x: Array, kernel: Array) -> Array:
    """Multiplies x `<float>[..., N]` by a kernel `<float>[N, M]`.

    On JAX x becomes a matrix first: with more axes, the kernel's gradient loses up to a fifth of
    its size in bfloat16 on a CPU with jax 0.12.0.
    """
    if not on_jax:
        return ops.matmul(x, kernel)
    y = ops.matmul(ops.reshape(x, (-1, kernel.shape[0])), kernel)
    return ops.reshape(y, (*ops.shape(x)[:-1], kernel.shape[1]))


def plus_bias(x: Array, bias: Any) -> Array:
    """Adds a bias `<float>[N]` to x `<float>[..., N]`, in x's dtype."""
    if on_jax:
        return jax_ops.plus_bias(x, ops.convert_to_tensor(bias))
    return x + ops.cast(bias, x.dtype)


# --- self-attention -------------------------------------------------------------------------


# Added to the attention score of a masked key, as in the release. It is not -inf: a row whose keys
# are all masked must give finite numbers, the release's.
MASKED_SCORE = -10000.0


def masked_scores(input_mask: Array, starts: Array = None) -> Array:
    """Returns the additive attention mask: 0, or MASKED_SCORE for masked keys.

    For an input_mask `<int32>[B, S]` (1 = attend) it is `<float32>[B, 1, 1, S]`. With the starts
    `<int32>[B, S]` of packed rows it is `[B, 1, S, S]`, because only positions of the same example
    attend to each other.
    """
    # TFLite can't slice with new axes.
    masked = 1.0 - ops.expand_dims(ops.cast(input_mask, "float32"), (1, 2))
    if starts is not None:
        others = ops.expand_dims(starts, (1, 3)) != ops.expand_dims(starts, (1, 2))
        masked = ops.maximum(masked, ops.cast(others, "float32"))
    return masked * MASKED_SCORE


def project(
    x: Array, kernel: Array, bias: Array, heads: int, heads_first: bool = True
) -> list[Array]:
    """Returns several projections of x `<float>[B, S, H]`, computed as one product.

    The kernel is `<float>[H, count * H]`; each H of its columns give one projection of shape
    `<float>[B, N, S, D]`, or `[B, S, N, D]` without `heads_first`.
    """
    # One product for all heads and projections, then one axis for each.
    batch, length, width = ops.shape(x)
    count = kernel.shape[1] // width
    y = plus_bias(ops.matmul(ops.reshape(x, (-1, width)), kernel), bias)
    y = ops.reshape(y, (batch, length, count, heads, width // heads))
    if not heads_first:
        return ops.unstack(y, count, axis=2)
    return ops.unstack(ops.transpose(y, (2, 0, 3, 1, 4)), count)


def _softmax_gradient(probs: Array, upstream: Array, scale: float, masked_scores: Array) -> Array:
    del masked_scores  # Masked keys have probability 0, and with it gradient 0.
    probs = ops.cast(probs, "float32")
    products = probs * ops.cast(upstream, "float32")
    gradient = (products - probs * ops.sum(products, axis=-1, keepdims=True)) * scale
    return ops.cast(gradient, upstream.dtype)


@functools.partial(fused, gradient=_softmax_gradient)
def _softmax(scores: Array, scale: float, masked_scores: Array) -> Array:
    """Turns query-key products `<float>[B, N, P, S]` into attention probabilities."""
    probs = ops.softmax(ops.cast(scores, "float32") * scale + masked_scores, axis=-1)
    return ops.cast(probs, scores.dtype)


# --- the end of a sublayer, and activations -------------------------------------------------


def layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
    """Normalises the last axis of x `<float>[..., H]`, in float32 whatever its dtype.

    Source: tf.contrib.layers.layer_norm: epsilon 1e-12, biased variance.
    """
    y = ops.cast(x, "float32")
    mean = ops.mean(y, axis=-1, keepdims=True)
    centred = y - mean
    variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
    y = centred * (ops.rsqrt(variance + LAYER_NORM_EPSILON) * gamma) + beta
    return ops.cast(y, x.dtype)


@fused
def add_and_norm(
    x: Array,
    y: Array,
    bias: Array,
    gamma: Array,
    beta: Array,
    rate: float = 0.0,
    seed: Array = None,
) -> Array:
    """Ends a sublayer: normalises x `<float>[..., H]` plus dropout of its product y plus bias."""
    y = apply_dropout(ops.cast(y, "float32") + ops.cast(bias, "float32"), rate, seed)
    return ops.cast(layer_norm(ops.cast(x, "float32") + y, gamma, beta), x.dtype)


def get_activation(name: str) -> Callable[[Array], Array]:
    """Returns the function of a config's `hidden_act`; gelu is the tanh approximation."""
    if name == "gelu":
        return lambda x: ops.gelu(x, approximate=True)
    return keras.activations.get(name)


@fused
def biased_activation(x: Array, bias: Array, name: str) -> Array:
    """Applies `hidden_act`, in float32, to a product x `<float>[..., I]` plus its bias."""
    x_and_bias = ops.cast(x, "float32") + ops.cast(bias, "float32")
    return ops.cast(get_activation(name)(x_and_bias), x.dtype)


# --- positions ------------------------------------------------------------------------------


def gather_positions(sequence: Array, positions: Array) -> Array:
    """Returns the vectors `<float>[B, P, H]` at positions `<int32>[B, P]` of each sequence."""
    batch, length, width = ops.shape(sequence)
    first_rows = ops.expand_dims(ops.arange(batch, dtype=positions.dtype) * length, 1)
    # On TensorFlow take_along_axis would gather, and in the gradient scatter, single numbers.
    vectors = ops.take(ops.reshape(sequence, (-1, width)), first_rows + positions, axis=0)
    # JAX drops an axis when there are no rows.
    return ops.reshape(vectors, (*ops.shape(positions), width))


def example_starts(cls_positions: Array, length: int) -> Array:
    """Returns the start of the example that each position belongs to, `<int32>[B, S]`.

    Examples start at `cls_positions` `<int32>[B, K]`, the first at 0; empty slots are 0, too.
    Padding after the last example counts as part of it.
    """
    firsts = cls_positions[:, :, None]
    # The last start at or before each position.
    begun = firsts <= ops.arange(length, dtype=cls_positions.dtype)  # [B, K, S]
    return ops.max(ops.where(begun, firsts, 0), axis=1)
