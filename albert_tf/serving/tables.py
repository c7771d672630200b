"""A table whose rows have different lengths, looked up in the graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


class RowTable:
    """Puts rows of numbers in the place of their indexes.

    Args:
      rows: The rows; they may be empty.
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self._lengths = np.array([len(row) for row in rows], np.int32)
        self._starts = np.cumsum(self._lengths, dtype=np.int32) - self._lengths
        # Never empty, so that the graph may look up what it then does not take.
        self._values = np.array([value for row in rows for value in row] or [0], np.int32)

    def lookup(self, indexes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Looks rows up, one after the other.

        Args:
          indexes: `<int32>[N]`.

        Returns:
          Three `<int32>[M]`: the values of the rows; which of the N each of them is from; and its
          place in that row.
        """
        origins, places = ranges(tf.gather(self._lengths, indexes))
        starts = tf.gather(self._starts, tf.gather(indexes, origins))
        return tf.gather(self._values, starts + places), origins, places


def ranges(lengths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Numbers the elements of rows `<int32>[N]` long: the row of each, and its place in there."""
    origins = tf.repeat(tf.range(tf.size(lengths)), lengths)
    before = tf.cumsum(lengths, exclusive=True)
    return origins, tf.range(tf.size(origins)) - tf.gather(before, origins)


def of_rows(ragged: tf.RaggedTensor, values: tf.Tensor) -> tf.Tensor:
    """Returns for each flat value of a ragged tensor that of its row, of `<T>[N]`.

    Comparing ragged tensors with what is to be broadcast makes graphs of a thousand operations.
    """
    return tf.gather(values, ragged.value_rowids())


def places(ragged: tf.RaggedTensor) -> tf.Tensor:
    """Returns the place of each flat value in its row, `<int64>[M]`."""
    numbers = tf.range(tf.size(ragged.values, tf.int64))
    return numbers - of_rows(ragged, ragged.row_starts())


def keep(ragged: tf.RaggedTensor, stays: tf.Tensor) -> tf.RaggedTensor:
    """Returns the rows with those flat values only that stay, `<bool>[M]`."""
    rows = tf.boolean_mask(ragged.value_rowids(), stays)
    values = tf.boolean_mask(ragged.values, stays)
    return tf.RaggedTensor.from_value_rowids(values, rows, ragged.nrows(), validate=False)


def with_origins(ragged: tf.RaggedTensor, values: tf.Tensor, origins: tf.Tensor) -> tf.RaggedTensor:
    """Returns new values `<T>[M]` in the rows of those that they stem from, `<int32>[M]`."""
    rows = tf.gather(ragged.value_rowids(), origins)
    return tf.RaggedTensor.from_value_rowids(values, rows, ragged.nrows(), validate=False)


def dense(
    rows: tf.RaggedTensor,
    default: float | int | bool,
    *,
    least: int = 0,
    multiple: int = 1,
    most: int | None = None,
) -> tf.Tensor:
    """Makes rows `[N, (L)]` one tensor.

    Args:
      rows: The rows.
      default: What fills them.
      least: The tensor's least width.
      multiple: Of what its width is a multiple.
      most: Its largest width, whatever the multiple; no row is longer.
    """
    width = -(-tf.maximum(rows.bounding_shape(1), least) // multiple) * multiple
    width = width if most is None else tf.minimum(width, most)
    shape = tf.stack([rows.nrows(), width])
    return tf.ensure_shape(rows.to_tensor(default, shape=shape), [None, None])
