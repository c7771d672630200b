"""Features of a whole set: kept on disk between runs, and read in batches of padded rows."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.answers.rows import PADDING
from albert_tf.records.input_pipeline import BATCHES_AHEAD
from albert_tf.storage import files
from albert_tf.training.interfaces import InputFn
from albert_tf.training.length_buckets import LengthBatches
from albert_tf.training.trainer import InputByLength

# Increment this whenever a change gives the same examples and settings other features.
FORMAT = 5
# Features with a vector for each row instead of a value for each position.
PER_ROW = ("label_targets",)
# Only larger batches gain from a static length, for which XLA compiles chains of operations
# (model/fusion.py): a step of ALBERT-base takes 6 % less time at 2,048 positions.
SHORT_POSITIONS = 1024
# Placeholder for the length of batches of at most SHORT_POSITIONS, which varies.
ANY_LENGTH = 0
_SECONDS_BETWEEN_LINES = 10

Row = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class FeatureTable:
    """Features of N rows."""

    lengths: np.ndarray  # `<int64>[N]`, the number of positions in each row.
    # By name, features with one value per row, `[N]`, or a vector, `[N, ...]` (PER_ROW).
    scalars: Mapping[str, np.ndarray]
    # By name, per-position features of all rows, concatenated: `[sum of lengths, ...]`. The axis of
    # positions, the last one of a row, comes first here.
    sequences: Mapping[str, np.ndarray]

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, np.ndarray]]) -> FeatureTable:
        """Collects rows.

        Args:
          rows: Features by name, the same names in each row. Their shape is `[]`, or `[..., L]`
            with L the length of the row's `input_ids`; features of PER_ROW have any one shape.
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

    def select(self, names: Sequence[str]) -> FeatureTable:
        """Returns a table with only the named features; names that it lacks are ignored."""
        kept = [
            {name: features[name] for name in names if name in features}
            for features in (self.scalars, self.sequences)
        ]
        return FeatureTable(self.lengths, *kept)

    def training_input(
        self, batches: LengthBatches, first_step: int, static_shapes: bool = True
    ) -> InputByLength:
        """Returns the batches of a plan from a given step on, as the Trainer takes them.

        Args:
          batches: The plan.
          first_step: The step of the first batch.
          static_shapes: Whether each length has its own dataset; if not, short batches share one
            dataset of any length.
        """
        lengths = batches.lengths
        if not static_shapes:
            # The positions of a batch are its rows, times their choices, times the length.
            sequences = batches.rows.shape[1] * math.prod(self.sequences["input_ids"].shape[1:])
            lengths = np.where(lengths * sequences <= SHORT_POSITIONS, ANY_LENGTH, lengths)
        ahead = np.arange(len(lengths)) >= first_step
        input_fns = {
            length: functools.partial(self._dataset, steps, length)
            for length, steps in _by_length(batches, lengths, ahead)
        }
        return InputByLength(input_fns, lengths)

    def evaluation_inputs(self, batches: LengthBatches) -> list[InputFn]:
        """Returns the batches of a plan, one function for each length.

        They also have `example_weights` `<float32>[B]`, from the plan, and `example_rows`
        `<int32>[B]`, the index of each row in the table.
        """
        return [
            functools.partial(self._dataset, steps, length, weighted=True)
            for length, steps in _by_length(batches, batches.lengths)
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
        batches: LengthBatches,
        length: int,
        context: tf.distribute.InputContext,
        weighted: bool = False,
    ) -> tf.data.Dataset:
        """Returns one host's share of batches of one length, per-replica batches in turn."""
        # Make the tensors outside of `read`, whose graph would own them otherwise.
        # They are shared by all datasets, so the features are in memory once.
        scalars, sequences = self._tensors
        plan = {"rows": _share(batches.rows, context)}
        if weighted:
            plan["weights"] = _share(batches.weights, context)
        if length == ANY_LENGTH:
            plan["length"] = batches.lengths.repeat(_replicas(context))

        def read(part: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            rows, padded = part["rows"], part.get("length", length)
            features = {name: tf.gather(values, rows) for name, values in scalars.items()}
            for name, values in sequences.items():
                shape = [rows.shape[0], padded]
                features[name] = _pad(tf.gather(values, rows), PADDING.get(name, 0), shape)
            if weighted:
                features["example_weights"] = part["weights"]
                features["example_rows"] = tf.cast(rows, tf.int32)
            return features

        dataset = tf.data.Dataset.from_tensor_slices(plan)
        # The plan holds only row numbers; `read` gathers features when a batch is due.
        return dataset.map(read).prefetch(BATCHES_AHEAD)


def _pad(rows: tf.RaggedTensor, value: int, shape: list[Any]) -> tf.Tensor:
    """Pads ragged `[B, L, ...]` to a tensor `[B, ..., L]`; `shape` is `[B, L]`."""
    shape = [*shape, *rows.shape[2:]]
    # to_tensor forgets static sizes beside a dynamic one.
    static = [size if isinstance(size, int) else None for size in shape]
    padded = tf.ensure_shape(rows.to_tensor(value, shape=tf.stack(shape)), static)
    return tf.transpose(padded, [0, *range(2, len(shape)), 1])


def _by_length(
    batches: LengthBatches, lengths: np.ndarray, kept: Any = True
) -> Iterator[tuple[int, LengthBatches]]:
    """Yields each length, longest first, and the kept batches of that length."""
    for length in np.unique(lengths)[::-1].tolist():
        at = kept & (lengths == length)
        yield length, LengthBatches(batches.rows[at], batches.lengths[at], batches.weights[at])


def _replicas(context: tf.distribute.InputContext) -> int:
    return context.num_replicas_in_sync // context.num_input_pipelines


def _share(batches: np.ndarray, context: tf.distribute.InputContext) -> np.ndarray:
    """Returns this host's part `[T * its replicas, B / all replicas]` of batches `[T, B]`."""
    # Each host takes its columns of every batch, so that all hosts are at the same step.
    size = batches.shape[1] // context.num_input_pipelines
    own = batches[:, context.input_pipeline_id * size :][:, :size]
    return own.reshape(-1, size // _replicas(context))


def load_or_make_features(
    examples: Sequence[Any],
    make_rows: Callable[[Sequence[Any]], Iterable[Row]],
    settings: Mapping[str, Any],
    stem: str,
) -> FeatureTable:
    """Returns the features of examples, from the cached file if there is one.

    The file is named by a digest of examples and settings, and gets this name once it is complete,
    so it is never stale. A file that can't be read is made again.

    Args:
      examples: Dataclasses whose `repr` shows everything in them.
      make_rows: Makes their features, as FeatureTable.from_rows takes them.
      settings: Everything else that affects the features, as JSON.
      stem: Beginning of the file's path.
    """
    # Read the features of an earlier run.
    path = f"{stem}-{examples_digest(examples, [FORMAT, settings])}.npz"
    if files.exists(path):
        try:
            stored = _read(path)
            logging.info("features of %d examples: read from %s", len(examples), path)
            return stored
        except Exception as error:  # NumPy and zipfile raise many kinds.
            logging.warning("%s can't be read (%s): it is written again", path, error)
    # Or make and store them.
    rows = list(_counted(make_rows(examples), len(examples)))
    if not rows:
        raise ValueError(
            f"none of {len(examples)} examples yields any features: check that they have text"
        )
    table = FeatureTable.from_rows(rows)
    _write(path, table)
    logging.info("features of %d examples: %d rows, in %s", len(examples), len(rows), path)
    return table


def examples_digest(examples: Sequence[Any], settings: Any = None) -> str:
    """Returns a digest of examples (dataclasses) and settings (values of JSON)."""
    found = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for example in examples:
        found.update(repr(example).encode("utf-8", "surrogatepass") + b"\n")
    return found.hexdigest()[:16]


def _counted(rows: Iterable[Row], num_examples: int) -> Iterator[Row]:
    last = time.monotonic()
    for count, row in enumerate(rows, start=1):
        if time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            logging.info("features: %d rows of %d examples so far", count, num_examples)
            last = time.monotonic()
        yield row


def _write(path: str, table: FeatureTable) -> None:
    content = io.BytesIO()
    named: dict[str, Any] = {f"scalars/{name}": value for name, value in table.scalars.items()}
    named |= {f"sequences/{name}": value for name, value in table.sequences.items()}
    np.savez(content, lengths=table.lengths, **named)
    tf.io.gfile.makedirs(os.path.dirname(path) or ".")
    files.replace(path, content.getvalue(), several_writers=True)


def _read(path: str) -> FeatureTable:
    with np.load(io.BytesIO(files.read_bytes(path))) as stored:
        parts = (
            {name[len(prefix) :]: stored[name] for name in stored.files if name.startswith(prefix)}
            for prefix in ("scalars/", "sequences/")
        )
        return FeatureTable(stored["lengths"], *parts)
