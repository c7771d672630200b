"""Batches of texts of similar lengths for `fit`, on any backend."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from albert_tf.answers.rows import stack
from albert_tf.training import length_buckets


class TextBatches(keras.utils.PyDataset):
    """Batches of rows of similar length, in another order each epoch.

    Without a seed batches keep the order of the rows. `columns` are labels and weights, if any.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, np.ndarray]],
        columns: Sequence[np.ndarray],
        batch_size: int,
        static_lengths: Sequence[int],
        seed: int | None,
    ) -> None:
        super().__init__()
        self._rows, self._columns = rows, columns
        self._row_lengths = np.array([row["input_ids"].shape[-1] for row in rows])
        self._batch_size, self._static_lengths, self._seed = batch_size, static_lengths, seed
        self._epochs = itertools.count()
        self._plan = self._next_plan()

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._batch(self._plan[index])

    def on_epoch_end(self) -> None:
        self._plan = self._next_plan()

    def epoch(self) -> Iterator[tuple[Any, ...]]:
        """Yields the batches of the next epoch; each call has another order."""
        return map(self._batch, self._next_plan())

    def _next_plan(self) -> list[np.ndarray]:
        if self._seed is None:
            count = len(self._rows)
            return np.split(np.arange(count), range(self._batch_size, count, self._batch_size))
        bounds = self._batch_size, self._static_lengths, self._seed
        return length_buckets.epoch_batches(self._row_lengths, *bounds, next(self._epochs))

    def _batch(self, rows: np.ndarray) -> tuple[Any, ...]:
        longest = self._row_lengths[rows].max()
        length = next(length for length in self._static_lengths if length >= longest)
        features = stack([self._rows[i] for i in rows], length)
        return features, *(column[rows] for column in self._columns)

    def as_tf_dataset(self) -> Any:
        """Returns a tf.data.Dataset of the same batches."""
        import tensorflow as tf

        from albert_tf.records.input_files import untuned
        from albert_tf.records.input_pipeline import BATCHES_AHEAD

        # Between batches only the length of features varies and, in the last, the number of rows.
        features, *others = self[0]
        rows = 1 if self._batch_size == 1 else None
        signature = (
            {n: tf.TensorSpec([rows, *x.shape[1:-1], None], x.dtype) for n, x in features.items()},
            *(tf.TensorSpec([rows, *x.shape[1:]], x.dtype) for x in others),
        )
        dataset = tf.data.Dataset.from_generator(self.epoch, output_signature=signature)
        counted = dataset.apply(tf.data.experimental.assert_cardinality(len(self)))
        return untuned(counted.prefetch(BATCHES_AHEAD))
