"""The encoder: cross-layer parameter sharing, one block of weights applied repeatedly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from albert_tf.config import AlbertConfig
from albert_tf.model import dropout, layers
from albert_tf.types import Array

# Deeper models apply their layers in a loop, whose compile time does not grow with the depth. Up to
# this depth, the paper's largest, an unrolled step is 1 % faster on a CPU, and on a TPU XLA stores
# less than half as much for the gradient.
MOST_UNROLLED_LAYERS = 24


class Block(NamedTuple):
    """The sublayers that form a block: their indices in the encoder's lists."""

    attention: int
    ffn: int


class Encoder(layers.AlbertLayer):
    """Maps E to H where they differ, then applies the groups of shared blocks.

    The map is the second factor of the factorized embedding parameterization; the first factor is
    the tables of layers.Embeddings. `schedule` says which layers share their blocks.

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
        # Flat lists, [group * inner_group_num + inner], since Keras does not save nested lists.
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
        depth: Array = None,
    ) -> tuple[list[Array], Array]:
        """Applies all blocks, and the last one once more at a few positions only.

        A caller that reads only these positions saves most of the last block, because a graph drops
        outputs that are never read.

        Args:
          embeddings: `<float>[B, S, E]`.
          input_mask: `<int32>[B, S]`, 1 = attend to this position.
          positions: `<int32>[B, P]`.
          starts: `<int32>[B, S]`, for packed rows: the start of each position's example. Only
            positions of the same example attend to each other.
          seed: `<int>[2]` of the forward pass; None when not training.
          depth: `<int32>[]`, the number of layers to apply, which the graph need not know; by
            default the config's. Only for layers that share all weights, and not for training.

        Returns:
          num_hidden_layers * inner_group_num outputs `<float>[B, S, H]`, in order, and the last
          of them at `positions`, `<float>[B, P, H]`. With `depth` only the last layer's outputs.
        """
        if depth is not None and not (seed is None and self.config.fits_any_depth):
            raise ValueError("`depth` needs layers that share all weights, and no dropout")
        # Outside a loop XLA would merge a recomputed block with its first computation.
        in_a_loop = self.recompute or self.config.num_hidden_layers > MOST_UNROLLED_LAYERS
        repeat = loop if in_a_loop else unroll

        # Read and cast each weight once per forward pass, however many layers share it.
        masked_scores = layers.masked_scores(input_mask, starts)
        attention_weights = [sublayer.read() for sublayer in self.attention]
        ffn_weights = [sublayer.read() for sublayer in self.ffn]

        def apply(block: Block, x: Array, number: Array, only_at: Array = None) -> Array:
            """Attends, then transforms each position; `number` blocks were applied before."""
            attention, ffn = self.attention[block.attention], self.ffn[block.ffn]
            # Blocks share weights but no dropout masks: the number of the application enters the
            # seed.
            own_seed = dropout.fold_in(seed, 1 + dropout.SITES_PER_BLOCK * number)

            # keras.remat takes differentiable arguments only: not the seed, nor the positions.
            def sublayers(x: Array, of_attention: Any, of_ffn: Any, masked_scores: Array) -> Array:
                x = attention(x, of_attention, masked_scores, own_seed, only_at)
                return ffn(x, of_ffn, own_seed)

            if self.recompute:
                sublayers = keras.remat(sublayers)
            weights = attention_weights[block.attention], ffn_weights[block.ffn]
            return sublayers(x, *weights, masked_scores)

        # Cross-layer parameter sharing: apply the same layer, or one per group, again and again.
        outputs = [self.to_hidden_size(embeddings)]
        schedule = self.schedule()
        layer, _ = schedule[-1]
        if depth is None:
            for each, times in schedule:
                outputs += repeat(apply, each, outputs[-1], len(outputs) - 1, times)
        else:
            x = _repeat_unkept(apply, layer, outputs[0], depth - 1)
            outputs = [x, *unroll(apply, layer, x, 0, 1)]
        # Apply the last block once more, at the few positions that most heads read.
        at_positions = apply(layer[-1], outputs[-2], len(outputs) - 2, only_at=positions)
        return outputs[1:], at_positions

    def schedule(self) -> list[tuple[list[Block], int]]:
        """Returns each distinct layer with the number of times to apply it.

        A layer is a list of `inner_group_num` blocks. The last application is always an entry of
        its own: if all layers share their parameters, there are two entries with the same layer.
        """
        config, inner = self.config, self.config.inner_group_num
        count = config.num_hidden_layers
        # Consecutive layers with the same groups are one entry; the flag sets the last layer apart.
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
        return layers.plus_bias(layers.product(x, kernel), self.mapping_bias)


def unroll(
    apply: Callable[[Any, Array, Array], Array],
    blocks: Sequence[Any],
    x: Array,
    first: Array,
    times: int,
) -> list[Array]:
    """Applies blocks in sequence, and the whole sequence `times` times; returns all outputs.

    `apply` maps a block, `<float>[...]` and the block's number, counted from `first`, to
    `<float>[...]` of the same shape and dtype.
    """
    results = [x]
    for i, block in enumerate([*blocks] * times):
        results.append(apply(block, results[-1], first + i))
    return results[1:]


def loop(
    apply: Callable[[Any, Array, Array], Array],
    blocks: Sequence[Any],
    x: Array,
    first: int,
    times: int,
) -> list[Array]:
    """Like `unroll`, but as a loop of the compiled program.

    Each block is traced once, so neither the size of the program nor its compile time grows with
    `times`.
    """
    if times == 1:
        return unroll(apply, blocks, x, first, times)

    # One iteration applies all blocks of a layer, and keeps the output of each.
    def turn(x: Array, number: Array) -> tuple[Array, list[Array]]:
        results = unroll(apply, blocks, x, first + len(blocks) * number, 1)
        return results[-1], results

    # Each entry of by_block stacks one block's outputs, `<float>[times, B, S, H]`.
    if keras.backend.backend() == "tensorflow":
        last, by_block = _scan_tensorflow(turn, x, times, len(blocks))
    else:
        last, by_block = ops.scan(turn, x, ops.arange(times))
    # Interleave them again, into the order in which the blocks were applied.
    by_block = [ops.unstack(results, times) for results in by_block]
    results = [result for turn in zip(*by_block, strict=True) for result in turn]
    # results[-1] equals `last`, but its gradient would run through the outputs of all iterations.
    return [*results[:-1], last]


def _repeat_unkept(
    apply: Callable[[Any, Array, Array], Array], blocks: Sequence[Any], x: Array, times: Array
) -> Array:
    """Like `loop`, but `times` may be a tensor, and only the last output is returned."""

    def turn(number: Array, x: Array) -> tuple[Array, Array]:
        return number + 1, unroll(apply, blocks, x, number * len(blocks), 1)[-1]

    return ops.while_loop(lambda number, _: number < times, turn, (0, x))[1]


def _scan_tensorflow(
    turn: Callable[[Array, Array], tuple[Array, list[Array]]], x: Array, times: int, width: int
) -> tuple[Array, list[Array]]:
    # keras.ops.scan sets no bound on the loop, and XLA needs one for the gradient.
    import tensorflow as tf

    def body(number: Array, x: Array, arrays: list[Any]) -> tuple[Array, Array, list[Any]]:
        results = [tf.ensure_shape(y, x.shape) for y in turn(x, number)[1]]
        written = [a.write(number, y) for a, y in zip(arrays, results, strict=True)]
        return number + 1, results[-1], written

    arrays = [tf.TensorArray(x.dtype, times, element_shape=x.shape) for _ in range(width)]
    _, last, arrays = tf.while_loop(
        lambda number, *_: number < times, body, (0, x, arrays), maximum_iterations=times
    )
    return last, [array.stack() for array in arrays]
