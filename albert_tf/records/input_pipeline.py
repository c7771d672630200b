"""From TFRecord files to batches, in an order that a resume can find again.

The examples of a run are one sequence that depends on the files and the seed alone. Step t of a
run with global batch B eats examples [t * B, (t + 1) * B), however many replicas share them, so
a run that starts again at step t needs nothing but t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.records.feature_spec import FeatureSpec

Features = dict[str, tf.Tensor]
# What is made of parsed examples [B, ...], whose places in the sequence are <int64>[B].
Finish = Callable[[Features, tf.Tensor], Features]

_READ_BYTES = 8 << 20
_SHUFFLE_BUFFER = 16384
_FILES_AT_ONCE = 16
# Read before a step asks for them: those of two steps on eight replicas.
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
    """Returns the batches of one host, without end, from step `first_step` on.

    Each epoch shuffles the files and then the records in a buffer, by seed and epoch. A host reads
    all records and parses its own: reading is cheap, and every number of hosts sees one order.

    Args:
      files: TFRecord files.
      counts: Their numbers of records.
      spec: What a record holds.
      global_batch_size: Examples of a step over all replicas, which divide it.
      seed: Of the order.
      first_step: The step whose batch comes first.
      context: Which host of how many this is.
      finish: What is made of the parsed examples, if anything.

    Returns:
      Batches of one replica each, `global_batch_size / replicas` examples; consecutive batches go
      to consecutive replicas.
    """
    records_an_epoch = sum(counts)
    first_epoch, skipped = divmod(first_step * global_batch_size, records_an_epoch)
    names = tf.constant(list(files))

    def epoch_dataset(epoch: tf.Tensor) -> tf.data.Dataset:
        # The seed of this function's graph: shuffle would take the program's global one instead.
        # TensorFlow asks a global seed of 0 whether the epoch is 0 too, which a graph can't tell.
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
    """Returns the batches of one host over the files, once, in order.

    Args:
      files: TFRecord files.
      counts: Their numbers of records.
      spec: What a record holds.
      global_batch_size: Examples of a step over all replicas.
      max_steps: Batches at most.
      context: Which host of how many this is.
      finish: What is made of the parsed examples, if anything.

    Returns:
      Batches as training_dataset's, and `example_weights` `<float32>[B]`: 0 for rows that fill
      up the last batch.
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
