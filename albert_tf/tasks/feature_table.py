"""Features of a whole set in memory, unpadded -> batches padded to a common length.

A fine-tuning set is small: SQuAD takes some 100 MB. In memory its rows can be read in any order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from albert_tf.tasks.sequence_features import PADDING
from albert_tf.training.devices import InputFn
from albert_tf.training.feeding import InputByLength
from albert_tf.training.length_buckets import LengthBatches

# Features that are a vector for each row, and not a value for each position.
PER_ROW = ("label_targets",)
# Batches to prefetch: those of two steps on eight replicas.
_BATCHES_AHEAD = 16


@dataclasses.dataclass(frozen=True)
class FeatureTable:
    """Features of N rows.

    Attributes:
      lengths: `<int64>[N]`, positions of each row.
      scalars: By name, features with one value per row, `[N]`, or a vector, `[N, ...]` (PER_ROW).
      sequences: By name, per-position features of all rows, concatenated:
        `[sum of lengths, ...]`. Their first axis is the last one of a row's feature.
    """

    lengths: np.ndarray
    scalars: Mapping[str, np.ndarray]
    sequences: Mapping[str, np.ndarray]

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, np.ndarray]]) -> FeatureTable:
        """Collects rows.

        Args:
          rows: Features by name, the same names in each row, of shape `[]`, or `[..., L]` with L
            the length of that row's `input_ids`; those of PER_ROW of one shape in all rows.
        """
        rows = list(rows)
        scalars, sequences = {}, {}
        for name, first in rows[0].items():
            if np.ndim(first) == 0 or name in PER_ROW:
                scalars[name] = np.stack([row[name] for row in rows])
            else:
                sequences[name] = np.concatenate([np.moveaxis(row[name], -1, 0) for row in rows])
        lengths = np.array([row["input_ids"].shape[-1] for row in rows], np.int64)
        return cls(lengths, scalars, sequences)

    def training_input(self, batches: LengthBatches, first_step: int) -> InputByLength:
        """Returns the batches of a plan from a given step on, in the form the Trainer takes."""
        steps = np.arange(len(batches.lengths)) >= first_step
        input_fns = {
            length: functools.partial(self._dataset, batches.rows[steps & chosen], None, length)
            for length, chosen in _by_length(batches)
        }
        return InputByLength(input_fns, batches.lengths)

    def evaluation_inputs(self, batches: LengthBatches) -> list[InputFn]:
        """Returns the batches of a plan, one function for each length.

        Besides the features they have `example_weights` `<float32>[B]`, from the plan, and
        `example_rows` `<int32>[B]`, the row number in the table.
        """
        return [
            functools.partial(self._dataset, batches.rows[chosen], batches.weights[chosen], length)
            for length, chosen in _by_length(batches)
        ]

    @functools.cached_property
    def _tensors(self) -> tuple[dict[str, tf.Tensor], dict[str, tf.RaggedTensor]]:
        with tf.device("CPU:0"):
            splits = tf.constant(np.concatenate([[0], np.cumsum(self.lengths)]))
            return {name: tf.constant(value) for name, value in self.scalars.items()}, {
                name: tf.RaggedTensor.from_row_splits(tf.constant(value), splits)
                for name, value in self.sequences.items()
            }

    @tf.autograph.experimental.do_not_convert
    def _dataset(
        self,
        rows: np.ndarray,
        weights: np.ndarray | None,
        length: int,
        context: tf.distribute.InputContext,
    ) -> tf.data.Dataset:
        """Returns one host's share of batches `<int64>[T, B]`, per-replica batches in turn."""
        scalars, sequences = self._tensors  # Not inside `read`: they would belong to its graph.
        plan = {"rows": _share(rows, context)}
        if weights is not None:
            plan["weights"] = _share(weights, context)

        def read(part: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            rows = part["rows"]
            features = {name: tf.gather(values, rows) for name, values in scalars.items()}
            for name, values in sequences.items():
                shape = [rows.shape[0], length]
                features[name] = _pad(tf.gather(values, rows), PADDING.get(name, 0), shape)
            if weights is not None:
                features["example_weights"] = part["weights"]
                features["example_rows"] = tf.cast(rows, tf.int32)
            return features

        dataset = tf.data.Dataset.from_tensor_slices(plan)
        return dataset.map(read).prefetch(_BATCHES_AHEAD)


def _pad(rows: tf.RaggedTensor, value: int, shape: list[int]) -> tf.Tensor:
    """Pads ragged `[B, L, ...]` to one tensor `[B, ..., L]`; `shape` is `[B, L]`."""
    shape = [*shape, *rows.shape[2:]]
    # to_tensor loses a part of the shape that it is given.
    padded = tf.ensure_shape(rows.to_tensor(value, shape=shape), shape)
    return tf.transpose(padded, [0, *range(2, len(shape)), 1])


def _by_length(batches: LengthBatches) -> list[tuple[int, np.ndarray]]:
    """Returns each length of a plan, longest first, and the steps that have it, `<bool>[T]`."""
    lengths = np.unique(batches.lengths)[::-1].tolist()
    return [(length, batches.lengths == length) for length in lengths]


def _share(batches: np.ndarray, context: tf.distribute.InputContext) -> np.ndarray:
    """Returns this host's part of batches `[T, B]`, `[T * replicas, B / replicas]`."""
    hosts, replicas = context.num_input_pipelines, context.num_replicas_in_sync
    size = batches.shape[1] // hosts
    own = batches[:, context.input_pipeline_id * size :][:, :size]
    return own.reshape(-1, batches.shape[1] // replicas)
