"""The model whose outputs are vectors of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import KerasTensor, ops

from albert_tf.answers.embed import ARGUMENTS, Embed
from albert_tf.config import ConfigSource
from albert_tf.model.albert import AlbertModel
from albert_tf.model.batches import shape_of
from albert_tf.model.configured import ConfiguredModel
from albert_tf.model.heads import pool, unit_length
from albert_tf.types import Array


@keras.saving.register_keras_serializable(package="albert_tf")
class AlbertForEmbedding(ConfiguredModel):
    """Embeds texts: pooling, then optionally a dense layer, fewer dimensions, and unit length.

    Called on AlbertModel's inputs, it returns vectors `<float32>[B, D]`; for rows of C texts,
    `<int32>[B, C, S]`, such as pairs, it returns `<float32>[B, C, D]`.

    Args: those of ConfiguredModel, and
      pooling: "mean" of the pieces' vectors, special ones included; "cls", the vector at [CLS];
        "max", their elementwise maximum; or "mean_sqrt", their sum over the root of their number.
      dense_units: Outputs of the dense layer; None for no such layer.
      dense_activation: Its activation: "tanh", "linear" or "relu".
      dimensions: D, the number of leading dimensions to keep; None for all.
      normalize: Whether vectors are scaled to length 1.

    Differs: the release has no such model. The vectors are those of sentence-transformers.

    Example:
      >>> import numpy as np
      >>> import albert_tf
      >>> config = albert_tf.AlbertConfig(vocab_size=31, hidden_size=12, num_attention_heads=3)
      >>> model = albert_tf.AlbertForEmbedding(config, normalize=True, dimensions=5)
      >>> vectors = model({"input_ids": np.array([[2, 7, 8, 3], [2, 9, 3, 0]])})
      >>> tuple(vectors.shape)
      (2, 5)
    """

    reads_pooler = False
    has_classes = False
    input_axes = {**dict.fromkeys(("input_ids", "input_mask", "segment_ids"), "B, S"), "depth": ""}

    def __init__(
        self,
        config: ConfigSource,
        pooling: str = "mean",
        dense_units: int | None = None,
        dense_activation: str = "tanh",
        dimensions: int | None = None,
        normalize: bool = False,
        recompute: bool = False,
        name: str = "albert_for_embedding",
        **kwargs: Any,
    ) -> None:
        super().__init__(config, recompute, name=name, **kwargs)
        self.pooling, self.normalize = pooling, normalize
        self.dense_units, self.dense_activation = dense_units, dense_activation
        self.dimensions = dimensions
        arguments = {name: getattr(self, name) for name in ARGUMENTS}
        self.width = Embed(**arguments).width(self.config)
        self.albert = AlbertModel(self.config, recompute, dtype=self.dtype_policy)
        self.dense = None
        if dense_units is not None:  # Too fast for lower precision to pay off.
            how = {"name": "embedding_dense", "dtype": "float32"}
            self.dense = keras.layers.Dense(dense_units, dense_activation, **how)
        self.build_all()

    def build(self, input_shape: object = None) -> None:
        self.albert.build_all()
        if self.dense is not None:
            self.dense.build((None, self.config.hidden_size))
        self.built = True

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, name) for name in ARGUMENTS}}

    def call(
        self, inputs: dict[str, Array], training: bool | None = None, dropout_seed: Array = None
    ) -> Array:
        self.check_inputs(inputs)
        *rows, length = ops.shape(inputs["input_ids"])
        if len(rows) == 1:
            return self._embed(inputs, training, dropout_seed)
        # Each text is a row of the encoder.
        flat = {
            name: ops.reshape(inputs[name], (-1, length))
            for name, axes in self.input_axes.items()
            if axes and inputs.get(name) is not None
        }
        vectors = self._embed({**inputs, **flat}, training, dropout_seed)
        return ops.reshape(vectors, (-1, rows[1], self.width))

    def _embed(self, inputs: dict[str, Array], training: bool | None, dropout_seed: Array) -> Array:
        outputs = self.albert(inputs, training=training, dropout_seed=dropout_seed)
        sequence = ops.cast(outputs["sequence_output"], "float32")
        mask = inputs.get("input_mask")
        mask = ops.ones_like(inputs["input_ids"]) if mask is None else mask
        vectors = pool(sequence, mask, self.pooling)
        if self.dense is not None:
            vectors = self.dense(vectors)
        if self.dimensions is not None:
            vectors = vectors[:, : self.dimensions]
        return unit_length(vectors) if self.normalize else vectors

    def axes_of(self, inputs: Mapping[str, Any]) -> Mapping[str, str]:
        is_of_rows = len(shape_of(inputs.get("input_ids")) or ()) == 3
        batch = "B, C" if is_of_rows else "B"
        return {name: axes.replace("B", batch) for name, axes in self.input_axes.items()}

    def output_spec(self, inputs: Mapping[str, Any], *_: Any, **__: Any) -> KerasTensor:
        return KerasTensor((*inputs["input_ids"].shape[:-1], self.width))
