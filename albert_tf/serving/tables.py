"""Rows of different lengths in the graph: looked up in a table, numbered, made dense."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf


class RowTable:
    """Replaces indexes by rows of numbers.

    Args:
      rows: The rows; they may be empty.
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self._lengths = np.array([len(row) for row in rows], np.int32)
        self._starts = np.cumsum(self._lengths, dtype=np.int32) - self._lengths
        # Never empty: the graph may gather values that it then doesn't use.
        self._values = np.array([value for row in rows for value in row] or [0], np.int32)

    def lookup(self, indexes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Looks rows up, and concatenates them.

        Args:
          indexes: `<int32>[N]`.

        Returns:
          Three `<int32>[M]`: the values of the rows; which of the N each is from; and its position
          in that row.
        """
        origins, places = ranges(tf.gather(self._lengths, indexes))
        starts = tf.gather(self._starts, tf.gather(indexes, origins))
        return tf.gather(self._values, starts + places), origins, places


def ranges(lengths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each element's row, and its position there, for rows of `<int32>[N]` lengths."""
    numbers = tf.ragged.range(lengths)
    return tf.cast(rows_of(numbers), tf.int32), numbers.values


def rows_of(ragged: tf.RaggedTensor) -> tf.Tensor:
    """Returns each flat value's row, `<int64>[M]`, in a tenth of value_rowids' operations."""
    numbers = tf.range(tf.size(ragged.values, tf.int64))
    return _count(tf.raw_ops.UpperBound, ragged.row_splits, numbers) - 1


def from_rows(values: tf.Tensor, rows: tf.Tensor, count: tf.Tensor) -> tf.RaggedTensor:
    """Returns rows of flat values `[M, ...]`, each in the row `<T>[M]`, ascending, of `count`."""
    splits = _count(tf.raw_ops.LowerBound, rows, tf.range(tf.cast(count + 1, rows.dtype)))
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def _count(bound: Callable[..., tf.Tensor], ascending: tf.Tensor, limits: tf.Tensor) -> tf.Tensor:
    """Returns how many values are below each limit (or equal, with UpperBound), `<int64>[L]`."""
    ascending, limits = tf.expand_dims(ascending, 0), tf.expand_dims(limits, 0)
    found = bound(sorted_inputs=ascending, values=limits, out_type=tf.int64)
    return tf.squeeze(found, axis=0)


def of_rows(ragged: tf.RaggedTensor, values: tf.Tensor) -> tf.Tensor:
    """Spreads one value per row, `<T>[N]`, over the flat values of a ragged tensor.

    Broadcasting a ragged tensor instead makes graphs of a thousand operations.
    """
    return tf.gather(values, rows_of(ragged))


def places(ragged: tf.RaggedTensor) -> tf.Tensor:
    """Returns each flat value's position in its row, `<int64>[M]`."""
    return tf.ragged.range(ragged.row_lengths()).values


def keep(ragged: tf.RaggedTensor, stays: tf.Tensor) -> tf.RaggedTensor:
    """Returns the rows with only the flat values that stay, `<bool>[M]`."""
    chosen = tf.squeeze(tf.where(stays), axis=1)
    return with_origins(ragged, tf.gather(ragged.values, chosen), chosen)


def with_origins(ragged: tf.RaggedTensor, values: tf.Tensor, origins: tf.Tensor) -> tf.RaggedTensor:
    """Returns new values `<T>[M]`, each in the row of its origin, `<int>[M]`, ascending."""
    splits = _count(tf.raw_ops.LowerBound, origins, tf.cast(ragged.row_splits, origins.dtype))
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def dense(
    rows: tf.RaggedTensor,
    default: float | int | bool,
    *,
    least: int = 0,
    multiple: int = 1,
    most: int | None = None,
) -> tf.Tensor:
    """Makes a dense tensor of rows `[N, (L)]`.

    Args:
      rows: The rows.
      default: The padding.
      least: The tensor's minimum width.
      multiple: What its width is a multiple of.
      most: Its maximum width, whatever the multiple; no row is longer.
    """
    width = -(-tf.maximum(rows.bounding_shape(1), least) // multiple) * multiple
    width = width if most is None else tf.minimum(width, most)
    shape = tf.stack([rows.nrows(), width])
    return tf.ensure_shape(rows.to_tensor(default, shape=shape), [None, None])
