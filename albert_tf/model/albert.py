"""AlbertModel: embeddings -> E to H -> encoder -> pooler, with its inputs and output shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import KerasTensor, ops

from albert_tf.config import ConfigSource
from albert_tf.model import dropout, layers
from albert_tf.model.configured import ConfiguredModel
from albert_tf.model.encoder import Encoder
from albert_tf.types import Array


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertModel(ConfiguredModel):
    """The ALBERT encoder.

    Called on a dict of `input_ids` `<int32>[B, S]` and, optionally, `input_mask` (1 = keep;
    default: all ones) and `segment_ids` (default: zeros), it returns a dict of

    - `sequence_output` `<float>[B, S, H]`,
    - `pooled_output` `<float>[B, H]`,
    - `all_encoder_layers`, a list of `<float>[B, S, H]`, one for each block applied,
    - `embedding_output` `<float>[B, S, E]`,
    - `gathered_output` `<float>[B, P, H]`, `sequence_output` at `positions`, if the call has any.

    Padded positions are computed like any other; the mask only excludes keys from attention.

    If the inputs have `cls_positions` `<int32>[B, K]`, rows are packed: each holds up to K
    examples, one after the other. `cls_positions` gives the start of each example, ascending from
    0; empty slots are 0. Each example gets the same numbers as it would alone: it attends only to
    itself, and its positions count from its [CLS]. `pooled_output` is `<float>[B, K, H]`, with a
    copy of the first example's vector in empty slots.

    If the inputs have `depths` `<int32>[B, D]`, rows are also read after fewer layers, each number
    one of the attribute `readable_depths`: `sequence_output`, `pooled_output` and `gathered_output`
    have D times B more rows, those of the first column of `depths` first.

    If the inputs have `depth` `<int32>[]`, that many layers are applied, in a graph loop, and
    `all_encoder_layers` has only the last one. Not for training, nor for layers of several groups.

    Args: see ConfiguredModel.

    Source: albert/modeling.py, AlbertModel.

    Example:
      >>> import numpy as np
      >>> import albert_tf
      >>> config = albert_tf.AlbertConfig(vocab_size=31, hidden_size=12, num_attention_heads=3)
      >>> model = albert_tf.AlbertModel(config)
      >>> outputs = model({"input_ids": np.array([[2, 7, 8, 3]])})
      >>> tuple(outputs["sequence_output"].shape), tuple(outputs["pooled_output"].shape)
      ((1, 4, 12), (1, 12))
    """

    def __init__(
        self, config: ConfigSource, recompute: bool = False, name: str = "albert", **kwargs: Any
    ) -> None:
        super().__init__(config, recompute, name=name, **kwargs)
        policy = self.dtype_policy
        # The release's three parts, in the order of a forward pass.
        self.embeddings = layers.Embeddings(self.config, name="embeddings", dtype=policy)
        self.encoder = Encoder(self.config, recompute, name="encoder", dtype=policy)
        self.pooler = layers.Pooler(self.config, name="pooler", dtype=policy)
        config = self.config
        self.readable_depths = tuple(range(1, config.num_hidden_layers))
        # Without dropout nothing is random, so no generator's state is stored with the model.
        if config.hidden_dropout_prob or config.attention_probs_dropout_prob:
            self.seed_generator = keras.random.SeedGenerator()
        else:
            self.seed_generator = None
        self.build_all()

    @property
    def output_shape(self) -> tuple[int | None, ...]:
        """The shape of `sequence_output`, for summary()."""
        return self.encoder.output_shape

    def build(self, input_shape: object = None) -> None:
        if not self.built:
            config = self.config
            self.embeddings.build((None, None))
            self.encoder.build((None, None, config.embedding_size))
            self.pooler.build((None, None, config.hidden_size))
            self.built = True

    def call(
        self,
        inputs: dict[str, Array],
        training: bool | None = None,
        dropout_seed: Array = None,
        positions: Array = None,
    ) -> dict[str, Any]:
        """Encodes a batch.

        Args:
          inputs: See the class.
          training: Whether to apply dropout.
          dropout_seed: `<int>[2]`, determines all dropout masks of this call; by default drawn
            from the model's own generator.
          positions: `<int32>[B, P]`. A graph that reads only `gathered_output` and
            `pooled_output` computes the last block only at these positions and at [CLS].
        """
        # A wrong name or id would change the result without any error.
        self.check_inputs(inputs)
        input_ids, input_mask, segment_ids = read_inputs(inputs)
        # Dropout needs a seed, which exists only in training.
        if not training or self.seed_generator is None:
            dropout_seed = None
        elif dropout_seed is None:
            dropout_seed = dropout.draw_seed(self.seed_generator)

        # The last block is needed at [CLS] of each example and at the caller's positions.
        is_packed = inputs.get("cls_positions") is not None
        if is_packed:
            wanted = firsts = ops.cast(inputs["cls_positions"], "int32")
            starts = layers.example_starts(firsts, ops.shape(input_ids)[1])
        else:
            wanted = firsts = ops.zeros_like(input_ids[:, 0])[:, None]
            starts = None
        if positions is not None:
            wanted = ops.concatenate([firsts, ops.cast(positions, firsts.dtype)], axis=1)

        # Pieces -> vectors of size E -> blocks of size H -> one vector per example.
        embedding_output = self.embeddings(input_ids, segment_ids, starts, seed=dropout_seed)
        outputs, gathered = self.encoder(
            embedding_output, input_mask, wanted, starts, dropout_seed, inputs.get("depth")
        )
        sequence_output = outputs[-1]
        if (depths := inputs.get("depths")) is not None:
            by_depth = {
                n: outputs[n * self.config.inner_group_num - 1] for n in self.readable_depths
            }
            sequence_output = with_depths(sequence_output, by_depth, depths)
            by_depth = {n: layers.gather_positions(x, wanted) for n, x in by_depth.items()}
            gathered = with_depths(gathered, by_depth, depths)
        # The first of the gathered vectors are those at [CLS], one per example or slot.
        slots = ops.shape(firsts)[1]
        pooled_output = self.pooler(gathered[:, :slots])
        result = {
            "sequence_output": sequence_output,
            "pooled_output": pooled_output if is_packed else pooled_output[:, 0],
            "all_encoder_layers": outputs,
            "embedding_output": embedding_output,
        }
        # The caller's positions come after all [CLS].
        if positions is not None:
            result["gathered_output"] = gathered[:, slots:]
        return result

    def output_spec(
        self,
        inputs: Mapping[str, Any],
        training: bool | None = None,
        dropout_seed: Any = None,
        positions: Any = None,
    ) -> dict[str, Any]:
        config, depth = self.config, inputs.get("depth")
        batch, length = inputs["input_ids"].shape

        def spec(*shape: int | None) -> KerasTensor:
            return KerasTensor(shape, self.compute_dtype)

        # Keras only needs shapes here; None stands for an axis that is not yet known.
        result = {
            "sequence_output": spec(batch, length, config.hidden_size),
            "pooled_output": spec(batch, *packed_axis(inputs), config.hidden_size),
            "all_encoder_layers": [
                spec(batch, length, config.hidden_size)
                for _ in range(config.num_blocks if depth is None else config.inner_group_num)
            ],
            "embedding_output": spec(batch, length, config.embedding_size),
        }
        if positions is not None:
            result["gathered_output"] = spec(batch, positions.shape[1], config.hidden_size)
        return result


def read_inputs(inputs: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Returns ids, mask and segments `<int32>[B, S]`; the last two have defaults."""
    # Under MirroredStrategy, Keras' fit builds the model with floats.
    input_ids = ops.cast(inputs["input_ids"], "int32")
    input_mask, segment_ids = inputs.get("input_mask"), inputs.get("segment_ids")
    if input_mask is None:
        input_mask = ops.ones_like(input_ids)
    if segment_ids is None:
        segment_ids = ops.zeros_like(input_ids)
    return input_ids, input_mask, ops.cast(segment_ids, "int32")


def with_depths(full: Array, by_depth: Mapping[int, Array], depths: Array) -> Array:
    """Appends rows read after fewer layers to those read after all.

    Args:
      full: The rows after all layers, `<float>[B, ...]`.
      by_depth: The rows after fewer layers, by their number.
      depths: After how many layers to read each row, `<int32>[B, D]`.

    Returns:
      `<float>[B + D * B, ...]`.

    Example:
      >>> rows = with_depths(ops.ones([2, 3]), {1: ops.zeros([2, 3])}, ops.ones([2, 1], "int32"))
      >>> [float(x) for x in rows[:, 0]]
      [1.0, 1.0, 0.0, 0.0]
    """
    parts = [full]
    for column in ops.unstack(depths, axis=1):
        of_row = ops.reshape(column, (-1, *[1] * (len(full.shape) - 1)))
        (_, chosen), *others = by_depth.items()
        for depth, rows in others:
            chosen = ops.where(of_row == depth, rows, chosen)
        parts.append(chosen)
    return ops.concatenate(parts, axis=0)


def packed_axis(inputs: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Returns the axis of examples `(K,)` if rows are packed, otherwise `()`."""
    packed = inputs.get("cls_positions")
    return () if packed is None else packed.shape[1:]
