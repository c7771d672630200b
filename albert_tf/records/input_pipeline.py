"""Records -> batches, in an order and with masks that are functions of the seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.records import masking, spec
from albert_tf.records.input_files import READ_BYTES, STRETCH, FileIndex
from albert_tf.records.spec import FeatureSpec
from albert_tf.storage.files import is_remote
from albert_tf.types import Features

# Maps parsed examples [B, ...] and their positions in the sequence <int64>[B] to features.
Finish = Callable[[Features, tf.Tensor], Features]
_SHUFFLE_BUFFER = 16384
_STRETCHES_AT_ONCE = 16
# TensorFlow reads at least this much of a file in a bucket, however little is asked for.
_BUCKET_BYTES = 64 << 20
# Number of batches to prefetch: two steps on eight replicas.
BATCHES_AHEAD = 16
_ROWS_READ_TOGETHER = 256
_SEED_FOR_0 = -1


@tf.autograph.experimental.do_not_convert
def training_dataset(
    files: Sequence[str],
    indexes: Sequence[FileIndex],
    spec: FeatureSpec,
    global_batch_size: int,
    seed: int,
    first_step: int,
    context: tf.distribute.InputContext,
    finish: Finish | None = None,
) -> tf.data.Dataset:
    """Returns an endless dataset of one host's batches, from step `first_step` on.

    Each epoch shuffles the files' stretches (consecutive records), then the records in a buffer, by
    seed and epoch. So any part of an epoch is a sample of the whole. A host reads all records but
    parses only its own: reading is cheap, and the order does not depend on the number of hosts.

    Args:
      files: TFRecord files.
      indexes: Where their records are; see input_files.index_records.
      spec: What a record holds.
      global_batch_size: Examples per step, a multiple of the number of replicas.
      seed: Seed of the order.
      first_step: The step of the first batch.
      context: Which host this is, and how many there are.
      finish: Applied to the parsed examples, if given.

    Returns:
      Batches of one replica each, `global_batch_size / replicas` examples; consecutive batches go
      to consecutive replicas.
    """
    # Where the first example is: its epoch, and the examples before it in that epoch.
    records_an_epoch = sum(index.records for index in indexes)
    first_epoch, skipped = divmod(first_step * global_batch_size, records_an_epoch)
    names = tf.constant(list(files))
    stretches = tf.constant(_stretches(files, indexes))

    def epoch_dataset(epoch: tf.Tensor) -> tf.data.Dataset:
        # Seeds this function's graph: shuffle would use the program's global seed. If the seed is 0
        # (modulo the largest int32), TensorFlow also asks if the epoch is 0: a graph can't tell.
        tf.compat.v1.set_random_seed(seed % tf.int32.max or _SEED_FOR_0)
        order = _deal(len(stretches), seed, epoch)
        return (
            tf.data.Dataset.from_tensor_slices(tf.gather(stretches, order))
            .interleave(
                lambda stretch: _read_stretch(names, stretch),
                cycle_length=min(_STRETCHES_AT_ONCE, len(stretches)),
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )
            .shuffle(_SHUFFLE_BUFFER, seed=epoch, reshuffle_each_iteration=False)
        )

    # Concatenate the epochs, cut them into batches, and parse this host's part.
    epochs = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
    serialized = epochs.flat_map(epoch_dataset).skip(skipped)
    placed = serialized.enumerate(first_step * global_batch_size)

    def read(places: tf.Tensor, rows: tuple[tf.Tensor, tf.Tensor]) -> Features:
        return _read(rows[0], places, spec, finish)

    return _replica_batches(placed, read, global_batch_size, context)


@tf.autograph.experimental.do_not_convert
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

    Arguments and batches are as in training_dataset, with the number of records in each file and
    the maximum number of batches. Batches also have `example_weights` `<float32>[B]`: 0 for rows
    that only fill up the last batch.
    """
    # The last batch is filled up with the first record, which weighs nothing.
    total = min(sum(counts), max_steps * global_batch_size)
    fill = -total % global_batch_size
    serialized = tf.data.TFRecordDataset(list(files), buffer_size=READ_BYTES)
    rows = serialized.take(total).map(lambda record: (record, 1.0))
    filling = serialized.take(1).repeat(fill).map(lambda record: (record, 0.0))
    placed = rows.concatenate(filling).enumerate()

    def read(places: tf.Tensor, rows: tuple[tf.Tensor, tf.Tensor]) -> Features:
        return {**_read(rows[0], places, spec, finish), "example_weights": rows[1]}

    return _replica_batches(placed, read, global_batch_size, context)


def _read(
    serialized: tf.Tensor, places: tf.Tensor, spec: FeatureSpec, finish: Finish | None
) -> Features:
    parsed = spec.parse(serialized)
    return finish(parsed, places) if finish else parsed


def _replica_batches(
    examples: tf.data.Dataset,
    read: Callable[[tf.Tensor, tuple[tf.Tensor, tf.Tensor]], Features],
    global_batch_size: int,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    # A host takes its part of each global batch.
    hosts, host = context.num_input_pipelines, context.input_pipeline_id
    if hosts > 1:
        examples = examples.batch(global_batch_size // hosts, drop_remainder=True)
        examples = examples.shard(hosts, host).unbatch()
    # A call costs as much as parsing and masking a few dozen rows, so one call reads several
    # small batches.
    size = global_batch_size // context.num_replicas_in_sync
    read_together = size * max(1, _ROWS_READ_TOGETHER // size)
    batches = examples.batch(read_together).map(
        read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    return batches.rebatch(size, drop_remainder=True).prefetch(BATCHES_AHEAD)


def _stretches(files: Sequence[str], indexes: Sequence[FileIndex]) -> np.ndarray:
    """Returns file, first byte, bytes and records of each stretch: `<int64>[M, 4]`."""
    rows = []
    for number, (path, index) in enumerate(zip(files, indexes, strict=True)):
        # In a bucket, neighbouring stretches are read together.
        step = 1
        if is_remote(path):
            step = max(1, _BUCKET_BYTES * (len(index.starts) - 1) // int(index.starts[-1]))
        starts = np.append(index.starts[:-1:step], index.starts[-1])
        sizes = np.diff(np.append(np.arange(0, index.records, STRETCH * step), index.records))
        rows.append(np.stack([np.full_like(sizes, number), starts[:-1], np.diff(starts), sizes], 1))
    return np.concatenate(rows)


def _read_stretch(names: tf.Tensor, stretch: tf.Tensor) -> tf.data.Dataset:
    """Returns the records of a row of `_stretches`, each with its number; `names` are the files."""
    file, start, num_bytes, records = tf.unstack(stretch)
    # A TFRecordDataset that begins at an offset, which that class doesn't offer.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=names[file][None],
        compression_type="",
        # `zip` asks for one more record at the end: if it doesn't fit, another buffer is read.
        buffer_size=tf.minimum(num_bytes + num_bytes // 16 + 4096, READ_BYTES),
        byte_offsets=start[None],
    )
    rest = tf.data.experimental.from_variant(variant, tf.TensorSpec((), tf.string))
    # Not rest.take(records): TensorFlow 2.21 crashes on that.
    return tf.data.Dataset.zip((rest, tf.data.Dataset.range(records)))


def _deal(count: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """Returns a random order of `count` numbers; any part of it is spread evenly over all of them.

    A plain shuffle of few stretches would leave out whole chapters for a while. So neighbouring
    numbers form groups ("hands"); each is shuffled, and each round takes one number from each.
    """
    hands = np.arange(count) * math.isqrt(count) // count
    sizes = np.bincount(hands)
    ranks = np.arange(count) - np.searchsorted(hands, hands)
    random = tf.random.stateless_uniform((2, count), [seed, epoch], dtype=tf.float64)
    shuffled = tf.argsort(hands + random[0])
    return tf.gather(shuffled, tf.argsort((ranks + random[1]) / sizes[hands]))


@dataclasses.dataclass(frozen=True)
class DynamicMasking:
    """Turns a batch of compact records into the features of pretraining_spec.

    NumPy draws the masks in this process: a dataset on another machine can't call it.
    """

    row_format: spec.RowFormat  # Format of the records' rows.
    settings: masking.MaskingSettings  # How much is masked, and with what.
    seed: int  # Determines all masks, together with the places.

    def __call__(self, examples: Features, places: tf.Tensor) -> Features:
        """Lays out and masks a batch of compact_spec's features; eagerly and inside Dataset.map.

        Its places <int64>[B] are the positions of the examples in the run, counted from 0.
        """
        declared = spec.pretraining_spec(
            self.row_format.max_seq_length, self.settings.label_slots
        ).features
        drawn = {
            name: feature
            for name, feature in declared.items()
            if feature.parsed and name not in examples
        }

        def draw(*arrays: np.ndarray) -> list[np.ndarray]:
            token_ids, segment_lengths, word_starts, places = arrays
            laid_out = masking.Rows.lay_out(
                token_ids, segment_lengths, word_starts, self.row_format
            )
            masked = laid_out.mask(masking.derive_seeds(self.seed, places), self.settings)
            return [masked[name] for name in drawn]

        # Shapes get lost in numpy_function, but the spec knows them.
        tensors = tf.numpy_function(
            draw,
            [examples[name] for name in ("token_ids", "segment_lengths", "word_starts")] + [places],
            [feature.dtype for feature in drawn.values()],
            stateful=False,
        )
        features = {"sentence_order_labels": examples["sentence_order_labels"]}
        for (name, feature), tensor in zip(drawn.items(), tensors, strict=True):
            features[name] = tf.ensure_shape(tensor, (*places.shape, *feature.shape))
        return features
