"""A model's outputs on all rows of a set, in row order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert_tf.training.feeding import InputFn, all_batches
from albert_tf.types import Features


class RowOutputs:
    """Runs a model on rows.

    Args:
      strategy: The devices that share each batch.
      model: Maps features to tensors `[B, ...]`.
    """

    def __init__(self, strategy: tf.distribute.Strategy, model: keras.Model) -> None:
        self.strategy = strategy
        self.model = model

    def __call__(self, input_fns: Iterable[InputFn], num_rows: int) -> Any:
        """Returns the model's outputs on N rows, as arrays `[N, ...]` in row order.

        Args:
          input_fns: Each makes a host's finite dataset. Besides the features a batch has
            `example_rows` `<int32>[B]`, the row numbers, and `example_weights` `<float32>[B]`, 0
            for rows that only fill it up. The longest rows come first; outputs that are shorter
            for shorter rows are padded with -inf.
          num_rows: The number of rows N.
        """
        results: list[np.ndarray] = []
        for input_fn in input_fns:
            for batch in all_batches(self.strategy, input_fn):
                outputs, rows, weights = self._step(batch)
                counted = weights.numpy() > 0
                values = [value.numpy()[counted] for value in tf.nest.flatten(outputs)]
                if not results:
                    results = [_blank((num_rows, *value.shape[1:]), value) for value in values]
                for result, value in zip(results, values, strict=True):
                    place = (rows.numpy()[counted], *(slice(size) for size in value.shape[1:]))
                    result[place] = value
        return tf.nest.pack_sequence_as(outputs, results)

    @tf.function
    def _step(self, batch: Features) -> tuple[Any, tf.Tensor, tf.Tensor]:
        def replica_outputs(batch: Features) -> tuple[Any, tf.Tensor, tf.Tensor]:
            features = dict(batch)
            rows, weights = features.pop("example_rows"), features.pop("example_weights")
            return self.model(features, training=False), rows, weights

        replicas = self.strategy.run(replica_outputs, args=(batch,))
        return tf.nest.map_structure(lambda x: self.strategy.gather(x, axis=0), replicas)


def _blank(shape: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    return np.full(shape, -np.inf if like.dtype.kind == "f" else 0, like.dtype)
