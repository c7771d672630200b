"""AlbertModel: embeddings -> E to H -> the shared block, called again and again -> pooler.

Axis letters, here and everywhere: B batch, S sequence, P masked-LM predictions, V vocabulary,
E embedding, H hidden, N heads, D head size, I intermediate, C classes or choices, K top-k, or
examples of a packed row.
"""

from __future__ import annotations

import itertools
from typing import Any

import keras
from keras import ops

from albert_tf.config import AlbertConfig
from albert_tf.model import dropout, functional, layers
from albert_tf.model.repetition import one_by_one, repeat

# Models of more layers apply them in a loop, which takes no longer to compile for more of them. Up
# to here, as many as the paper has, a step runs 1 % faster on a CPU, and on a TPU XLA keeps less
# than half as much for the gradient.
LAYERS_SIDE_BY_SIDE = 24


class Encoder(layers.AlbertLayer):
    """Maps E to H where they differ, then applies the groups of shared sublayers.

    Source: albert/modeling.py, transformer_model.
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

    def build(self, input_shape: Any = None) -> None:
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
        embeddings: Any,
        input_mask: Any,
        positions: Any,
        starts: Any = None,
        seed: Any = None,
    ) -> tuple[list[Any], Any]:
        """Runs all blocks, and the last one at some positions alone as well.

        Whoever reads only these positions saves most of the last block: a graph leaves out what
        nobody reads.

        Args:
          embeddings: `<float>[B, S, E]`.
          input_mask: `<int32>[B, S]`, 1 = attend to this position.
          positions: `<int32>[B, P]`.
          starts: `<int32>[B, S]`, where the example of each position begins, in packed rows;
            only positions of one example attend to each other.
          seed: `<int>[2]` of the forward pass; None when not training.

        Returns:
          num_hidden_layers * inner_group_num outputs `<float>[B, S, H]`, the last one last, and
          this one at `positions`, `<float>[B, P, H]`.
        """
        x = embeddings
        if self.config.embedding_size != self.config.hidden_size:
            kernel = ops.cast(self.mapping_kernel, x.dtype)
            x = ops.matmul(x, kernel) + ops.cast(self.mapping_bias, x.dtype)
        masked = 1.0 - ops.cast(input_mask, "float32")
        masked = ops.expand_dims(ops.expand_dims(masked, 1), 1)  # [B, 1, 1, S]
        if starts is not None:
            others = starts[:, None, :, None] != starts[:, None, None, :]  # [B, 1, S, S]
            masked = ops.maximum(masked, ops.cast(others, "float32"))
        masked_scores = masked * functional.MASKED_SCORE

        # Each weight is read once, however many layers share it.
        attention_weights = [sublayer.read() for sublayer in self.attention]
        ffn_weights = [sublayer.read() for sublayer in self.ffn]

        def apply(
            sublayers: tuple[int, int], number: Any, x: Any, masked_scores: Any, positions: Any
        ) -> Any:
            attention, ffn = sublayers
            site = 1 + dropout.SITES_PER_BLOCK * number
            block = self._block(attention, ffn, dropout.fold_in(seed, site), positions)
            return block(attention_weights[attention], ffn_weights[ffn], x, masked_scores)

        def block(sublayers: tuple[int, int], first: int, stride: int) -> Any:
            return lambda x, turn: apply(sublayers, first + stride * turn, x, masked_scores, None)

        # XLA merges a block's second computation with its first where they are not in a loop.
        in_a_loop = self.recompute or self.config.num_hidden_layers > LAYERS_SIDE_BY_SIDE
        apply_all = repeat if in_a_loop else one_by_one
        outputs = [x]
        for layer, turns in self.schedule():
            first = len(outputs) - 1
            blocks = [block(sublayers, first + i, len(layer)) for i, sublayers in enumerate(layer)]
            outputs += apply_all(blocks, outputs[-1], turns)
        last_masked_scores = masked_scores
        if starts is not None:  # Each position has masked scores of its own.
            last_masked_scores = ops.take_along_axis(
                masked_scores, positions[:, None, :, None], axis=2
            )
        last = apply(layer[-1], len(outputs) - 2, outputs[-2], last_masked_scores, positions)
        return outputs[1:], last

    def schedule(self) -> list[tuple[list[tuple[int, int]], int]]:
        """Returns layers and how often each is applied, the last of all alone.

        A layer is its sublayers, attention and feed-forward, block by block.
        """
        config, inner = self.config, self.config.inner_group_num
        count = config.num_hidden_layers
        groups = [
            (config.attention_group(layer), config.ffn_group(layer), layer == count - 1)
            for layer in range(count)
        ]
        return [
            ([(attention * inner + i, ffn * inner + i) for i in range(inner)], len(list(same)))
            for (attention, ffn, _), same in itertools.groupby(groups)
        ]

    def _block(self, attention: int, ffn: int, seed: Any, positions: Any) -> Any:
        # Seed and positions are no arguments: recomputation takes only tensors that can have a
        # gradient.
        def block(attention_weights: Any, ffn_weights: Any, x: Any, masked_scores: Any) -> Any:
            x = self.attention[attention].apply(
                attention_weights, x, masked_scores, seed, positions
            )
            return self.ffn[ffn].apply(ffn_weights, x, seed)

        return keras.remat(block) if self.recompute else block


class ConfiguredModel(keras.Model):
    """Base of the models: built when made, and rebuilt from its config when loaded.

    Args:
      config: The AlbertConfig, or its dictionary (as .keras files hold it).
      recompute: Whether the backward pass computes the inside of each block again instead of
        keeping it: memory grows by block boundaries only.
      **kwargs: keras.Model's; `dtype="mixed_bfloat16"` computes in bfloat16.
    """

    # Whether anything that the model returns depends on the pooler.
    reads_pooler = True

    def __init__(
        self, config: AlbertConfig | dict[str, Any], recompute: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.config = AlbertConfig.from_dict(config) if isinstance(config, dict) else config
        self.recompute = recompute

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        config = self.config.to_dict()
        return {**super().get_config(), "config": config, "recompute": self.recompute}


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertModel(ConfiguredModel):
    """The ALBERT encoder.

    Called on a dict of `input_ids` `<int32>[B, S]` and, optionally, `input_mask` (1 = keep; all
    ones if left out) and `segment_ids` (zeros), it returns a dict of

    - `sequence_output` `<float>[B, S, H]`,
    - `pooled_output` `<float>[B, H]`,
    - `all_encoder_layers`, a list of `<float>[B, S, H]`, one for each block applied,
    - `embedding_output` `<float>[B, S, E]`,
    - `gathered_output` `<float>[B, P, H]`, `sequence_output` at the positions of the call, if it
      has any.

    Padded positions are computed like any other; the mask only keeps keys from being attended to.

    Rows are packed, that is each holds up to K examples one after the other, where the inputs
    have `cls_positions` `<int32>[B, K]`: where each example begins, rising from 0; empty slots
    are 0. Each example then gets the numbers that it would get alone: it attends only to itself,
    its positions count from its [CLS], and `pooled_output` is `<float>[B, K, H]`, in empty slots
    a copy of the first.

    Args: see ConfiguredModel.

    Source: albert/modeling.py, AlbertModel.
    """

    def __init__(
        self,
        config: AlbertConfig | dict[str, Any],
        recompute: bool = False,
        name: str = "albert",
        **kwargs: Any,
    ) -> None:
        super().__init__(config, recompute, name=name, **kwargs)
        policy = self.dtype_policy
        self.embeddings = layers.Embeddings(self.config, name="embeddings", dtype=policy)
        self.encoder = Encoder(self.config, recompute, name="encoder", dtype=policy)
        self.pooler = layers.Pooler(self.config, name="pooler", dtype=policy)
        config = self.config
        if config.hidden_dropout_prob or config.attention_probs_dropout_prob:
            self.seed_generator = keras.random.SeedGenerator()
        else:
            self.seed_generator = None
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Creates all weights; their shapes follow from the config alone."""
        if not self.built:
            self.embeddings.build()
            self.encoder.build()
            self.pooler.build()
            self.built = True

    def call(
        self,
        inputs: dict[str, Any],
        training: bool | None = None,
        dropout_seed: Any = None,
        positions: Any = None,
    ) -> dict[str, Any]:
        """Encodes a batch.

        Args:
          inputs: See the class.
          training: Whether dropout acts.
          dropout_seed: `<int>[2]` from which all dropout masks of this call follow; drawn from
            the model's own generator if left out.
          positions: `<int32>[B, P]`. A graph that reads no more than `gathered_output` and
            `pooled_output` computes the last block at these positions and [CLS] alone.

        Returns:
          See the class.
        """
        # Integers already, but where fit builds a model under MirroredStrategy: of floats.
        input_ids = ops.cast(inputs["input_ids"], "int32")
        input_mask = inputs.get("input_mask")
        segment_ids = inputs.get("segment_ids")
        is_packed = inputs.get("cls_positions") is not None
        if input_mask is None:
            input_mask = ops.ones_like(input_ids)
        if segment_ids is None:
            segment_ids = ops.zeros_like(input_ids)
        segment_ids = ops.cast(segment_ids, "int32")
        if not training or self.seed_generator is None:
            dropout_seed = None
        elif dropout_seed is None:
            dropout_seed = self.seed_generator.next()
        if is_packed:
            wanted = firsts = inputs["cls_positions"]
            starts = functional.example_starts(firsts, ops.shape(input_ids)[1])
        else:
            wanted = firsts = ops.zeros_like(input_ids[:, 0])[:, None]
            starts = None
        if positions is not None:
            wanted = ops.concatenate([firsts, ops.cast(positions, firsts.dtype)], axis=1)
        embedding_output = self.embeddings(input_ids, segment_ids, starts, seed=dropout_seed)
        outputs, gathered = self.encoder(
            embedding_output, input_mask, wanted, starts, seed=dropout_seed
        )
        pooled_output = self.pooler(gathered[:, : firsts.shape[1]])
        result = {
            "sequence_output": outputs[-1],
            "pooled_output": pooled_output if is_packed else pooled_output[:, 0],
            "all_encoder_layers": outputs,
            "embedding_output": embedding_output,
        }
        if positions is not None:
            result["gathered_output"] = gathered[:, firsts.shape[1] :]
        return result
