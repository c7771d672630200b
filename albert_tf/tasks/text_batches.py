"""Features of texts in memory -> batches for Keras' `fit`, `evaluate` and `predict`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from albert_tf.tasks import sequence_features
from albert_tf.training import length_buckets

# Batches to prefetch.
_BATCHES_AHEAD = 4


class TextBatches(keras.utils.PyDataset):
    """Batches of rows of similar length, or in order; works on any backend.

    Args:
      rows: Features of N rows, unpadded.
      labels: `[N]`, if there are any.
      weights: `<float32>[N]`, if there are any.
      batch_size: Rows per batch; the last one may have fewer.
      static_lengths: The lengths that batches are padded to, ascending.
      seed: Seed of the order, which changes with each epoch; None keeps the order of the rows.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, np.ndarray]],
        labels: np.ndarray | None,
        weights: np.ndarray | None,
        batch_size: int,
        static_lengths: Sequence[int],
        seed: int | None,
    ) -> None:
        super().__init__()
        self._rows, self._labels, self._weights = rows, labels, weights
        self._row_lengths = np.array([row["input_ids"].shape[-1] for row in rows])
        self._batch_size, self._static_lengths, self._seed = batch_size, static_lengths, seed
        self._epochs = itertools.count()
        self._plan = self._next_plan()

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._batch(self._plan[index])

    def on_epoch_end(self) -> None:
        """Draws another order."""
        self._plan = self._next_plan()

    def epoch(self) -> Iterator[tuple[Any, ...]]:
        """Yields the batches of an epoch of its own, in another order than the last one's."""
        return map(self._batch, self._next_plan())

    def _next_plan(self) -> list[np.ndarray]:
        """Returns the rows of each batch."""
        if self._seed is None:
            rows = np.arange(len(self._rows))
            return [rows[i : i + self._batch_size] for i in rows[:: self._batch_size]]
        return length_buckets.epoch_batches(
            self._row_lengths,
            self._batch_size,
            self._static_lengths,
            self._seed,
            next(self._epochs),
        )

    def _batch(self, rows: np.ndarray) -> tuple[Any, ...]:
        longest = self._row_lengths[rows].max()
        length = next(length for length in self._static_lengths if length >= longest)
        batch: tuple[Any, ...] = (sequence_features.stack([self._rows[i] for i in rows], length),)
        for column in (self._labels, self._weights):
            if column is not None:
                batch += (column[rows],)
        return batch

    def as_tf_dataset(self) -> Any:
        """Returns a tf.data.Dataset of the same batches."""
        import tensorflow as tf

        from albert_tf.records.datasets import untuned

        def spec(array: np.ndarray) -> Any:
            return tf.TensorSpec([None] * array.ndim, array.dtype)

        signature = keras.tree.map_structure(spec, self[0])
        dataset = tf.data.Dataset.from_generator(self.epoch, output_signature=signature)
        counted = dataset.apply(tf.data.experimental.assert_cardinality(len(self)))
        return untuned(counted.prefetch(_BATCHES_AHEAD))
