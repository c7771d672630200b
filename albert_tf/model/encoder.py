"""The encoder: the paper's idea, one block of shared weights applied repeatedly."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from albert_tf.config import AlbertConfig
from albert_tf.model import layers
from albert_tf.types import Array

Step = Callable[[Any, Any], Any]


def loop(blocks: Sequence[Step], x: Array, times: int) -> list[Array]:
    """Applies blocks in sequence, and the whole sequence `times` times.

    A block is traced once, whatever `times` is: neither the size of the program nor the time to
    trace and compile it grows.

    Args:
      blocks: Each maps `<float>[...]` and the iteration `<int32>[]` to `<float>[...]` of the same
        shape and dtype.
      x: `<float>[...]`, the input of the first block.
      times: Number of iterations.

    Returns:
      The outputs of all blocks, `times * len(blocks)`, in order.
    """
    if times == 1:
        return unroll(blocks, x, times)
    run = _run_tensorflow if keras.backend.backend() == "tensorflow" else _run
    last, by_block = run(blocks, x, times)
    by_block = [ops.unstack(results, times) for results in by_block]
    results = [result for turn in zip(*by_block, strict=True) for result in turn]
    # The same as results[-1], whose gradient would be one of all iterations.
    return [*results[:-1], last]


def unroll(blocks: Sequence[Step], x: Array, times: int) -> list[Array]:
    """Like `loop`, but unrolled: each block is traced again in each iteration."""
    results = [x]
    for number in range(times):
        results += _in_turn(blocks, results[-1], number)
    return results[1:]


def _run(blocks: Sequence[Step], x: Array, times: int) -> tuple[Array, list[Array]]:
    def turn(x: Array, number: Array) -> tuple[Array, list[Array]]:
        results = _in_turn(blocks, x, number)
        return results[-1], results

    return ops.scan(turn, x, ops.arange(times))


def _run_tensorflow(blocks: Sequence[Step], x: Array, times: int) -> tuple[Array, list[Array]]:
    # Not keras.ops.scan: XLA needs a bound on the loop for its gradient, and scan sets none.
    import tensorflow as tf

    def turn(number: Array, x: Array, arrays: list[Any]) -> tuple[Array, Array, list[Any]]:
        results = [tf.ensure_shape(y, x.shape) for y in _in_turn(blocks, x, number)]
        written = [a.write(number, y) for a, y in zip(arrays, results, strict=True)]
        return number + 1, results[-1], written

    arrays = [tf.TensorArray(x.dtype, times, element_shape=x.shape) for _ in blocks]
    _, last, arrays = tf.while_loop(
        lambda number, *_: number < times, turn, (0, x, arrays), maximum_iterations=times
    )
    return last, [array.stack() for array in arrays]


def _in_turn(blocks: Sequence[Step], x: Array, number: Array) -> list[Array]:
    results = []
    for block in blocks:
        x = block(x, number)
        results.append(x)
    return results


# Deeper models apply their layers in a loop, whose compile time does not grow with their number. Up
# to this depth, the paper's largest, an unrolled step runs 1 % faster on a CPU, and on a TPU XLA
# stores less than half as much for the gradient.
MOST_UNROLLED_LAYERS = 24


class Block(NamedTuple):
    """Which of the encoder's sublayers form a block: their indices in its lists."""

    attention: int
    ffn: int


class Encoder(layers.AlbertLayer):
    """Maps E to H where they differ, then applies the groups of shared blocks.

    Args:
      config: The model's AlbertConfig.
      recompute: Whether the backward pass recomputes the inside of each block.
      **kwargs: Passed to keras.layers.Layer.

    Source: albert/modeling.py, transformer_model.

    Example:
      >>> config = AlbertConfig(31, embedding_size=5, hidden_size=12, num_attention_heads=3)
      >>> encoder = Encoder(config)
      >>> mask, cls_position = ops.ones([1, 4]), ops.zeros([1, 1], "int32")
      >>> outputs, at_cls = encoder(ops.ones([1, 4, 5]), mask, cls_position)
      >>> len(outputs), tuple(outputs[-1].shape), tuple(at_cls.shape)
      (12, (1, 4, 12), (1, 1, 12))
    """

    def __init__(self, config: AlbertConfig, recompute: bool = False, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.recompute = recompute
        inner = range(config.inner_group_num)
        policy = self.dtype_policy
        # Flat lists, [group * inner_group_num + inner]: keras does not save nested ones.
        self.attention = [
            layers.SelfAttention(config, name=f"attention_{group}_{i}", dtype=policy)
            for group in range(config.num_attention_groups)
            for i in inner
        ]
        self.ffn = [
            layers.FeedForward(config, name=f"ffn_{group}_{i}", dtype=policy)
            for group in range(config.num_ffn_groups)
            for i in inner
        ]

    def build(self, input_shape: object = None) -> None:
        """Creates the E to H map (only if E is not H, as in the release) and the sublayers."""
        config = self.config
        if config.embedding_size != config.hidden_size:
            self.mapping_kernel = self.add_matrix(
                "embedding_hidden_mapping_in_kernel", config.embedding_size, config.hidden_size
            )
            self.mapping_bias = self.add_bias(
                "embedding_hidden_mapping_in_bias", config.hidden_size
            )
        for sublayer in (*self.attention, *self.ffn):
            sublayer.build()
        self.built = True

    def call(
        self,
        embeddings: Array,
        input_mask: Array,
        positions: Array,
        starts: Array = None,
        seed: Array = None,
    ) -> tuple[list[Array], Array]:
        """Applies all blocks, and the last one also at a few positions only.

        A caller that reads only these positions saves most of the last block: a graph drops
        outputs that are never read.

        Args:
          embeddings: `<float>[B, S, E]`.
          input_mask: `<int32>[B, S]`, 1 = attend to this position.
          positions: `<int32>[B, P]`.
          starts: `<int32>[B, S]`, for packed rows: where the example of each position begins.
            Only positions of the same example attend to each other.
          seed: `<int>[2]` of the forward pass; None when not training.

        Returns:
          num_hidden_layers * inner_group_num outputs `<float>[B, S, H]`, in order, and the last
          of them at `positions`, `<float>[B, P, H]`.
        """
        apply_block = _BlockCaller(self, layers.masked_scores(input_mask, starts), seed)
        outputs = [self.to_hidden_size(embeddings)]
        for layer, times in self.schedule():
            outputs += self._apply_layer(apply_block, layer, times, outputs)
        last_block, its_number = layer[-1], len(outputs) - 2
        at_positions = apply_block(last_block, its_number, outputs[-2], positions)
        return outputs[1:], at_positions

    def schedule(self) -> list[tuple[list[Block], int]]:
        """Returns the layers and how often each is applied; the last one is a separate entry.

        A layer is a list of `inner_group_num` blocks. With the paper's sharing there is a single
        layer, applied `num_hidden_layers` times.
        """
        config, inner = self.config, self.config.inner_group_num
        count = config.num_hidden_layers
        groups = [
            (config.attention_group(layer), config.ffn_group(layer), layer == count - 1)
            for layer in range(count)
        ]
        return [
            ([Block(attention * inner + i, ffn * inner + i) for i in range(inner)], len(list(same)))
            for (attention, ffn, _), same in itertools.groupby(groups)
        ]

    def to_hidden_size(self, x: Array) -> Array:
        """Maps embeddings `<float>[B, S, E]` to the first layer's input, `<float>[B, S, H]`."""
        if self.config.embedding_size == self.config.hidden_size:
            return x
        kernel = ops.cast(self.mapping_kernel, x.dtype)
        return ops.matmul(x, kernel) + ops.cast(self.mapping_bias, x.dtype)

    def _apply_layer(
        self, apply_block: _BlockCaller, layer: list[Block], times: int, outputs: list[Array]
    ) -> list[Array]:
        """Returns the outputs of the layer's blocks for each time it is applied."""

        def step(x: Array, turn: Array, block: Block, first: int) -> Array:
            return apply_block(block, first + len(layer) * turn, x)

        steps = [
            functools.partial(step, block=block, first=len(outputs) - 1 + i)
            for i, block in enumerate(layer)
        ]
        # Outside a loop XLA would merge a recomputed block with its first computation.
        in_a_loop = self.recompute or self.config.num_hidden_layers > MOST_UNROLLED_LAYERS
        return (loop if in_a_loop else unroll)(steps, outputs[-1], times)


class _BlockCaller:
    """Applies an encoder's blocks in one forward pass.

    Each weight is read once, however many layers share it.
    """

    def __init__(self, encoder: Encoder, masked_scores: Array, seed: Array) -> None:
        self._attention = [(sublayer, sublayer.read()) for sublayer in encoder.attention]
        self._ffn = [(sublayer, sublayer.read()) for sublayer in encoder.ffn]
        self._recompute = encoder.recompute
        self._masked_scores = masked_scores
        self._seed = seed

    def __call__(self, block: Block, number: Array, x: Array, positions: Array = None) -> Array:
        """Applies a block to x; `number` is its place in the order of application."""
        attention, attention_weights = self._attention[block.attention]
        ffn, ffn_weights = self._ffn[block.ffn]
        seed = layers.fold_in(self._seed, 1 + layers.SITES_PER_BLOCK * number)

        # Seed and positions are captured: recomputation takes only differentiable tensors as
        # arguments.
        def apply(
            x: Array,
            attention_weights: layers.SublayerWeights,
            ffn_weights: layers.SublayerWeights,
            masked_scores: Array,
        ) -> Array:
            x = attention(x, attention_weights, masked_scores, seed, positions)
            return ffn(x, ffn_weights, seed)

        apply = keras.remat(apply) if self._recompute else apply
        return apply(x, attention_weights, ffn_weights, self._masked_scores)
