"""From TFRecord files to batches: checks before the run, and an order that a resume can find again.

The examples of a run are one sequence that depends on the files and the seed alone. Step t of a
run with global batch B eats examples [t * B, (t + 1) * B), however many replicas share them, so
a run that starts again at step t needs nothing but t.
"""

from __future__ import annotations

import collections
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures

import numpy as np
import tensorflow as tf

from albert_tf.records import FeatureSpec

_READ_BYTES = 8 << 20
_SHUFFLE_BUFFER = 16384
_FILES_AT_ONCE = 16
_RECORDS_LOOKED_AT = 64
# What a TFRecord file holds of a record beside its bytes: their length and two checksums.
_FRAME_BYTES = 16


def find_files(patterns: str) -> list[str]:
    """Lists the files of a comma-separated list of names and globs, in order and once each.

    Raises:
      FileNotFoundError: A pattern matches nothing.
      ValueError: There is no pattern at all, or a file is empty or a directory.
    """
    files: list[str] = []
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        found = sorted(tf.io.gfile.glob(pattern))
        if not found:
            raise FileNotFoundError(f"input file {pattern} does not exist: no file matches it")
        files.extend(path for path in found if path not in files)
    if not files:
        raise ValueError("no input file is named: give names or globs, separated by commas")
    for path in files:
        if tf.io.gfile.isdir(path):
            raise ValueError(f"input file {path} is a directory: give {path}/* for the files in it")
        if tf.io.gfile.stat(path).length == 0:
            raise ValueError(f"input file {path} is empty: generate it again or leave it out")
    return files


def count_records(files: Sequence[str], cache_file: str | None = None) -> list[int]:
    """Counts the records of TFRecord files and so verifies every checksum in them.

    Args:
      files: Paths.
      cache_file: A JSON file that keeps counts between runs; a file is read again when its size
        or time has changed.

    Returns:
      The number of records of each file.

    Raises:
      ValueError: A file holds no record, or a damaged one; the message says which.
    """
    known = _read_cache(cache_file)
    stamps = {path: _stamp(path) for path in files}
    unread = [path for path in files if known.get(path, {}).get("stamp") != stamps[path]]
    with futures.ThreadPoolExecutor(max_workers=8) as pool:
        for path, count in zip(unread, pool.map(_count_file, unread), strict=True):
            known[path] = {"stamp": stamps[path], "records": count}
    if cache_file and unread:
        temporary = f"{cache_file}.tmp"
        with tf.io.gfile.GFile(temporary, "w") as file:
            json.dump({path: known[path] for path in files}, file, indent=1)
        tf.io.gfile.rename(temporary, cache_file, overwrite=True)
    return [known[path]["records"] for path in files]


def check_features(files: Sequence[str], spec: FeatureSpec, limits: Mapping[str, int]) -> None:
    """Compares the first records of each file with what the run expects of them.

    Args:
      files: TFRecord files.
      spec: Names, types and shapes that the run expects.
      limits: By feature name in memory, a bound that its values stay below.

    Raises:
      ValueError: A feature is missing, of another length, or out of bounds, or a record is
        damaged; the message says which, where, and what to change.
    """
    for path in files:
        for number, record in enumerate(itertools.islice(_read(path), _RECORDS_LOOKED_AT)):
            where = f"{path}, record {number}"
            try:
                example = tf.train.Example.FromString(record)
            except Exception as error:  # protobuf's DecodeError is of no public stable home.
                raise ValueError(f"{where} is no tf.train.Example: {error}") from None
            for name, feature in spec.features.items():
                if feature.parsed:
                    stored = feature.stored_as or name
                    values = _values(example, stored, feature.is_float)
                    _check_length(where, stored, values, feature.shape)
                    _check_limit(where, stored, values, limits.get(name))


def training_dataset(
    files: Sequence[str],
    counts: Sequence[int],
    spec: FeatureSpec,
    global_batch_size: int,
    seed: int,
    first_step: int,
    context: tf.distribute.InputContext,
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

    Returns:
      Batches of one replica each, `global_batch_size / replicas` examples; consecutive batches go
      to consecutive replicas.
    """
    records_an_epoch = sum(counts)
    first_epoch, skipped = divmod(first_step * global_batch_size, records_an_epoch)
    names = tf.constant(list(files))

    def epoch_dataset(epoch: tf.Tensor) -> tf.data.Dataset:
        # The seed of this function's graph: shuffle would take the program's global one instead.
        tf.compat.v1.set_random_seed(seed)
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
    batches = _replica_batches(serialized, global_batch_size, context)
    batches = batches.map(spec.parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return batches.prefetch(tf.data.AUTOTUNE)


def evaluation_dataset(
    files: Sequence[str],
    counts: Sequence[int],
    spec: FeatureSpec,
    global_batch_size: int,
    max_steps: int,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Returns the batches of one host over the files, once, in order.

    Args:
      files: TFRecord files.
      counts: Their numbers of records.
      spec: What a record holds.
      global_batch_size: Examples of a step over all replicas.
      max_steps: Batches at most.
      context: Which host of how many this is.

    Returns:
      Batches as training_dataset's, and `example_weights` `<float32>[B]`: 0 for rows that fill
      up the last batch.
    """
    total = min(sum(counts), max_steps * global_batch_size)
    fill = -total % global_batch_size
    serialized = tf.data.TFRecordDataset(list(files), buffer_size=_READ_BYTES)
    rows = serialized.take(total).map(lambda record: (record, 1.0))
    filling = serialized.take(1).repeat(fill).map(lambda record: (record, 0.0))
    batches = _replica_batches(rows.concatenate(filling), global_batch_size, context)
    batches = batches.map(
        lambda records, weights: {**spec.parse(records), "example_weights": weights},
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return batches.prefetch(tf.data.AUTOTUNE)


def _replica_batches(
    examples: tf.data.Dataset, global_batch_size: int, context: tf.distribute.InputContext
) -> tf.data.Dataset:
    hosts, host = context.num_input_pipelines, context.input_pipeline_id
    if hosts > 1:
        examples = examples.batch(global_batch_size // hosts, drop_remainder=True)
        examples = examples.shard(hosts, host).unbatch()
    replica_batch_size = global_batch_size // context.num_replicas_in_sync
    return examples.batch(replica_batch_size, drop_remainder=True)


def _read_cache(cache_file: str | None) -> dict[str, dict]:
    if not cache_file or not tf.io.gfile.exists(cache_file):
        return {}
    try:
        with tf.io.gfile.GFile(cache_file) as file:
            cached = json.load(file)
    except ValueError:
        return {}
    return cached if isinstance(cached, dict) else {}


def _stamp(path: str) -> list[int]:
    stat = tf.io.gfile.stat(path)
    return [stat.length, stat.mtime_nsec]


def _count_file(path: str) -> int:
    def add(totals: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        sizes = tf.strings.length(batch) + _FRAME_BYTES
        return totals + tf.cast([tf.size(sizes), tf.reduce_sum(sizes)], tf.int64)

    records = tf.data.TFRecordDataset(path, buffer_size=_READ_BYTES).batch(1024)
    try:
        count, size = records.reduce(np.zeros(2, np.int64), add).numpy()
    except tf.errors.DataLossError:
        collections.deque(_read(path), maxlen=0)  # Finds out which record, and raises.
        raise
    # A file that ends within a record's length is read without complaint.
    if size < tf.io.gfile.stat(path).length:
        raise ValueError(_damaged(path, count, "the file ends within it"))
    return int(count)


def _read(path: str) -> Iterator[bytes]:
    count = 0
    try:
        for record in tf.data.TFRecordDataset(path):
            yield record.numpy()
            count += 1
    except tf.errors.DataLossError as error:
        raise ValueError(_damaged(path, count, _reason(error))) from None


def _damaged(path: str, number: int, reason: str) -> str:
    return (
        f"{path}, record {number}, is truncated or corrupt ({reason}): copy or generate the file "
        "again"
    )


def _reason(error: tf.errors.OpError) -> str:
    return re.sub(r"\{\{.*?\}\} *|\s*\[Op:.*", "", error.message, flags=re.DOTALL)


def _values(example: tf.train.Example, name: str, is_float: bool) -> Sequence[float] | None:
    feature = example.features.feature.get(name)
    kind = "float_list" if is_float else "int64_list"
    if feature is None or feature.WhichOneof("kind") != kind:
        return None
    return getattr(feature, kind).value


def _check_length(
    where: str, name: str, values: Sequence[float] | None, shape: tuple[int, ...]
) -> None:
    if values is None:
        raise ValueError(f"{where} holds no feature {name} of the right type: generate it again")
    expected = int(np.prod(shape))
    if len(values) != expected:
        flag = "max_predictions_per_seq" if name.startswith("masked_lm") else "max_seq_length"
        raise ValueError(
            f"{where} holds {len(values)} values of {name}, this run expects {expected}: set "
            f"--{flag} to what the records were generated with"
        )


def _check_limit(where: str, name: str, values: Sequence[float], limit: int | None) -> None:
    if limit is not None and (max(values) >= limit or min(values) < 0):
        raise ValueError(
            f"{where} holds {name} from {min(values)} to {max(values)}, the config allows 0 to "
            f"{limit - 1}: use the config (vocab_size...) that the records were generated for"
        )
