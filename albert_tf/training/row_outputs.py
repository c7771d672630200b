"""A model's outputs on all rows of a set: batch by batch, or in row order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from albert_tf.training.devices import Devices, InputFn
from albert_tf.types import Features


class RowOutputs:
    """Runs a model on rows.

    Args:
      devices: They share each batch.
      model: Maps features to tensors `[B, ...]`.
    """

    def __init__(self, devices: Devices, model: keras.Model) -> None:
        self._devices = devices
        self._model = model
        self._outputs = devices.gathered(model, self._replica_outputs)

    def __call__(self, input_fns: Iterable[InputFn]) -> Iterator[tuple[np.ndarray, Any]]:
        """Yields row numbers `<int32>[B]` and the model's outputs on these rows, batch by batch.

        Args:
          input_fns: Each makes a host's finite dataset. Besides the features a batch has
            `example_rows` `<int32>[B]`, the row numbers, and `example_weights` `<float32>[B]`, 0
            for rows that only fill it up: these are left out.
        """
        for input_fn in input_fns:
            for batch in self._devices.batches(input_fn):
                outputs, rows, weights = self._outputs(batch)
                counted = weights > 0
                values = [value[counted] for value in keras.tree.flatten(outputs)]
                yield rows[counted], keras.tree.pack_sequence_as(outputs, values)

    def _replica_outputs(self, batch: Features) -> tuple[Any, Any, Any]:
        features = dict(batch)
        rows, weights = features.pop("example_rows"), features.pop("example_weights")
        return self._model(features, training=False), rows, weights


def in_row_order(parts: Iterable[tuple[np.ndarray, Any]], num_rows: int) -> Any:
    """Returns outputs on N rows as arrays `[N, ...]`.

    Args:
      parts: What RowOutputs yields, the longest rows first; outputs that are shorter for shorter
        rows are padded with -inf.
      num_rows: The number of rows N.
    """
    results: list[np.ndarray] = []
    for rows, outputs in parts:
        values = keras.tree.flatten(outputs)
        if not results:
            results = [_blank((num_rows, *value.shape[1:]), value) for value in values]
        for result, value in zip(results, values, strict=True):
            place: tuple[Any, ...] = (rows, *(slice(size) for size in value.shape[1:]))
            result[place] = value
    return keras.tree.pack_sequence_as(outputs, results)


def _blank(shape: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    return np.full(shape, -np.inf if like.dtype.kind == "f" else 0, like.dtype)
