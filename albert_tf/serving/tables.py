"""A table whose rows have different lengths, looked up in the graph."""

from __future__ import annotations

from collections.abc import Sequence

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
    origins = tf.repeat(tf.range(tf.size(lengths)), lengths)
    before = tf.cumsum(lengths, exclusive=True)
    return origins, tf.range(tf.size(origins)) - tf.gather(before, origins)


def of_rows(ragged: tf.RaggedTensor, values: tf.Tensor) -> tf.Tensor:
    """Spreads one value per row, `<T>[N]`, over the flat values of a ragged tensor.

    Broadcasting a ragged tensor instead makes graphs of a thousand operations.
    """
    return tf.gather(values, ragged.value_rowids())


def places(ragged: tf.RaggedTensor) -> tf.Tensor:
    """Returns each flat value's position in its row, `<int64>[M]`."""
    numbers = tf.range(tf.size(ragged.values, tf.int64))
    return numbers - of_rows(ragged, ragged.row_starts())


def keep(ragged: tf.RaggedTensor, stays: tf.Tensor) -> tf.RaggedTensor:
    """Returns the rows with only the flat values that stay, `<bool>[M]`."""
    rows = tf.boolean_mask(ragged.value_rowids(), stays)
    values = tf.boolean_mask(ragged.values, stays)
    return tf.RaggedTensor.from_value_rowids(values, rows, ragged.nrows(), validate=False)


def with_origins(ragged: tf.RaggedTensor, values: tf.Tensor, origins: tf.Tensor) -> tf.RaggedTensor:
    """Returns new values `<T>[M]`, each in the row of its origin, `<int32>[M]`."""
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
