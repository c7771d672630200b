"""From TFRecord files to batches, in an order that a resumed run can reproduce.

The examples of a run form one sequence that depends only on the files and the seed. Step t of a
run with global batch B consumes examples [t * B, (t + 1) * B), however many replicas share them,
so a run resumed at step t needs only t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.records.feature_spec import FeatureSpec
from albert_tf.types import Features

# Maps parsed examples [B, ...] and their positions in the sequence <int64>[B] to features.
Finish = Callable[[Features, tf.Tensor], Features]

_READ_BYTES = 8 << 20
_SHUFFLE_BUFFER = 16384
_FILES_AT_ONCE = 16
# Batches to prefetch: those of two steps on eight replicas.
_BATCHES_AHEAD = 16
_SEED_FOR_0 = -1


def training_dataset(
    files: Sequence[str],
    counts: Sequence[int],
    spec: FeatureSpec,
    global_batch_size: int,
    seed: int,
    first_step: int,
    context: tf.distribute.InputContext,
    finish: Finish | None = None,
) -> tf.data.Dataset:
    """Returns an endless dataset of one host's batches, from step `first_step` on.

    Each epoch shuffles the files, then the records in a buffer, by seed and epoch. A host reads all
    records but parses only its own: reading is cheap, and the order does not depend on the hosts.

    Args:
      files: TFRecord files.
      counts: Number of records in each.
      spec: What a record holds.
      global_batch_size: Examples per step, a multiple of the number of replicas.
      seed: Seed of the order.
      first_step: The step of the first batch.
      context: Which host of how many this is.
      finish: Applied to the parsed examples, if given.

    Returns:
      Batches of one replica each, `global_batch_size / replicas` examples; consecutive batches go
      to consecutive replicas.
    """
    records_an_epoch = sum(counts)
    first_epoch, skipped = divmod(first_step * global_batch_size, records_an_epoch)
    names = tf.constant(list(files))

    def epoch_dataset(epoch: tf.Tensor) -> tf.data.Dataset:
        # Sets the seed of this function's graph: shuffle would use the program's global one
        # instead. With seed 0 TensorFlow tests if the epoch is 0 too, which fails in a graph.
        tf.compat.v1.set_random_seed(seed or _SEED_FOR_0)
        order = tf.random.experimental.stateless_shuffle(names, seed=[seed, epoch])
        return (
            tf.data.Dataset.from_tensor_slices(order)
            .interleave(
                lambda path: tf.data.TFRecordDataset(path, buffer_size=_READ_BYTES),
                cycle_length=min(_FILES_AT_ONCE, len(files)),
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )
            .shuffle(_SHUFFLE_BUFFER, seed=epoch, reshuffle_each_iteration=False)
        )

    epochs = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
    serialized = epochs.flat_map(epoch_dataset).skip(skipped)
    placed = serialized.enumerate(first_step * global_batch_size)
    batches = _replica_batches(placed, global_batch_size, context).map(
        lambda places, records: _read(records, places, spec, finish),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return batches.prefetch(_BATCHES_AHEAD)


def evaluation_dataset(
    files: Sequence[str],
    counts: Sequence[int],
    spec: FeatureSpec,
    global_batch_size: int,
    max_steps: int,
    context: tf.distribute.InputContext,
    finish: Finish | None = None,
) -> tf.data.Dataset:
    """Returns one host's batches of a single pass over the files, in order.

    Args:
      files: TFRecord files.
      counts: Number of records in each.
      spec: What a record holds.
      global_batch_size: Examples per step over all replicas.
      max_steps: Maximum number of batches.
      context: Which host of how many this is.
      finish: Applied to the parsed examples, if given.

    Returns:
      Batches like training_dataset's, with `example_weights` `<float32>[B]`: 0 for rows that only
      fill up the last batch.
    """
    total = min(sum(counts), max_steps * global_batch_size)
    fill = -total % global_batch_size
    serialized = tf.data.TFRecordDataset(list(files), buffer_size=_READ_BYTES)
    rows = serialized.take(total).map(lambda record: (record, 1.0))
    filling = serialized.take(1).repeat(fill).map(lambda record: (record, 0.0))
    placed = rows.concatenate(filling).enumerate()
    batches = _replica_batches(placed, global_batch_size, context).map(
        lambda places, rows: {
            **_read(rows[0], places, spec, finish),
            "example_weights": rows[1],
        },
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return batches.prefetch(_BATCHES_AHEAD)


def _read(
    serialized: tf.Tensor, places: tf.Tensor, spec: FeatureSpec, finish: Finish | None
) -> Features:
    parsed = spec.parse(serialized)
    return finish(parsed, places) if finish else parsed


def _replica_batches(
    examples: tf.data.Dataset, global_batch_size: int, context: tf.distribute.InputContext
) -> tf.data.Dataset:
    hosts, host = context.num_input_pipelines, context.input_pipeline_id
    if hosts > 1:
        examples = examples.batch(global_batch_size // hosts, drop_remainder=True)
        examples = examples.shard(hosts, host).unbatch()
    replica_batch_size = global_batch_size // context.num_replicas_in_sync
    return examples.batch(replica_batch_size, drop_remainder=True)
