"""Finds, indexes and checks record files, and tells whether shards are all there."""

from __future__ import annotations

import collections
import contextlib
import fnmatch
import itertools
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.records.example_encoding import FRAME_BYTES
from albert_tf.records.spec import Feature, FeatureSpec
from albert_tf.storage.files import (
    as_pattern,
    check_regular,
    list_files,
    read_bytes,
    reason,
    replace,
)

# Bytes that are read at a time.
READ_BYTES = 8 << 20
_RECORDS_LOOKED_AT = 64
_BATCH = 1024
# Records that are read together: few enough to mix small sets well, and enough that opening a file
# for them costs little.
STRETCH = 32
# Records that Python handles at a time: a whole number of stretches.
_COUNTED_AT_ONCE = 128 * STRETCH
_SHARD = re.compile(r"(?P<name>.*)-\d{5}-of-(?P<count>\d{5})")


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset without autotuning, whose iterators end at once.

    Autotuning gives each iterator a thread that can miss the signal to end. The iterator then waits
    for the thread's next round: up to as long as it has existed, at most a minute. Without
    autotuning, `num_parallel_calls=AUTOTUNE` means one thread per core, up to 16.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def find_files(patterns: str) -> list[str]:
    """Expands a comma-separated list of names and globs to files, in order and once each."""
    files = list_files(patterns)
    _check_shards(files, patterns)
    for path in files:
        if path.endswith((".unfinished", ".unfinished.json")):
            raise ValueError(
                f"input file {path} is of an unfinished run of the generator: run its command "
                "again to finish it"
            )
        check_regular(path)
        if tf.io.gfile.stat(path).length == 0:
            raise ValueError(f"input file {path} is empty: generate it again or leave it out")
    return files


def _check_shards(files: Sequence[str], patterns: str) -> None:
    """Checks that all files of one name are from one generator run: other runs repeat its text.

    Warns of missing shards whose names match a pattern.
    """
    asked_for = [as_pattern(pattern.strip()) for pattern in patterns.split(",")]
    counts: dict[str, str] = {}
    found = set(files)
    for path in files:
        if not (shard := _SHARD.fullmatch(path)):
            continue
        name, count = shard.groups()
        if counts.setdefault(name, count) != count or name in found:
            raise ValueError(
                f"input files {name}* are of several runs of the generator: remove the old ones, "
                f"or name one set, such as {name}-*-of-{count}"
            )
    for name, count in counts.items():
        shards = {f"{name}-{number:05d}-of-{count}" for number in range(int(count))}
        missing = sorted(
            path
            for path in shards - found
            if any(fnmatch.fnmatchcase(path, pattern) for pattern in asked_for)
        )
        if missing:
            logging.warning(
                "input files: %d of the %d shards of %s are missing, the first is %s: without "
                "them the run goes on, but lacks their text",
                len(missing),
                len(shards),
                name,
                missing[0],
            )


class FileIndex(NamedTuple):
    """Where the records of a file are."""

    records: int  # Their number.
    # `<int64>[ceil(records / STRETCH) + 1]`, offset in bytes of the first of each STRETCH records;
    # the last entry is the size of the file.
    starts: np.ndarray
    digest: int = 0  # Checksum of all records in their order.


def index_records(files: Sequence[str], cache_file: str | None = None) -> list[FileIndex]:
    """Counts and locates the records of TFRecord files, which also verifies all their checksums.

    The JSON file `cache_file` keeps the result between runs; a file is read again if its size or
    modification time has changed.
    """
    known = _read_cache(cache_file)
    # Only new and changed files are read.
    stats = {path: tf.io.gfile.stat(path) for path in files}
    stamps = {path: [stat.length, stat.mtime_nsec, STRETCH] for path, stat in stats.items()}
    unread = [path for path in files if path not in known or known[path][0] != stamps[path]]
    with futures.ThreadPoolExecutor(max_workers=8) as pool:
        for path, index in zip(unread, pool.map(_index_file, unread), strict=True):
            known[path] = (stamps[path], index)
    if cache_file and unread:
        # A training run and its evaluation share this file, and may write it at the same time.
        indexed = {path: known[path] for path in unread}
        text = json.dumps(
            {
                path: {"stamp": stamp, **index._asdict(), "starts": index.starts.tolist()}
                for path, (stamp, index) in {**_read_cache(cache_file), **indexed}.items()
            }
        )
        replace(cache_file, text + "\n", several_writers=True)
    return [known[path][1] for path in files]


def _read_cache(cache_file: str | None) -> dict[str, tuple[list[int], FileIndex]]:
    if not cache_file:
        return {}
    try:
        return {
            path: (
                each["stamp"],
                FileIndex(each["records"], np.array(each["starts"], np.int64), each["digest"]),
            )
            for path, each in json.loads(read_bytes(cache_file)).items()
        }
    except Exception:  # Missing or unreadable: the files are indexed again.
        return {}


def _index_file(path: str) -> FileIndex:
    records = tf.data.TFRecordDataset(path, buffer_size=READ_BYTES)
    batches = untuned(records.batch(_COUNTED_AT_ONCE))
    count = digest = 0
    num_bytes: list[np.ndarray] = [np.zeros(1, np.int64)]
    try:
        for batch in batches:
            lengths = tf.strings.length(batch).numpy()
            firsts = np.arange(0, len(lengths), STRETCH)
            num_bytes.append(np.add.reduceat(lengths.astype(np.int64) + FRAME_BYTES, firsts))
            hashes = tf.strings.to_hash_bucket_fast(batch, 2**63 - 1)  # The same on all platforms.
            digest = zlib.crc32(hashes.numpy().tobytes(), digest)
            count += len(lengths)
    except tf.errors.DataLossError:
        collections.deque(_read(path), maxlen=0)  # Raises, naming the record.
        raise
    starts = np.cumsum(np.concatenate(num_bytes))
    # TensorFlow accepts a file that ends within a record's length field.
    if starts[-1] < tf.io.gfile.stat(path).length:
        raise ValueError(_damaged(path, count, "the file ends within it"))
    return FileIndex(count, starts, digest)


def _read(path: str) -> Iterator[bytes]:
    count = 0
    try:
        for record in untuned(tf.data.TFRecordDataset(path)):
            yield record.numpy()
            count += 1
    except tf.errors.DataLossError as error:
        raise ValueError(_damaged(path, count, reason(error))) from None


def _damaged(path: str, number: int, reason: str) -> str:
    return (
        f"{path}, record {number}, is truncated or corrupt ({reason}): copy or generate the file "
        "again"
    )


def count_prediction_slots(path: str) -> int:
    """Returns how many predictions a file's first record has room for, at least 1."""
    stored = _parse(f"{path}, record 0", next(_read(path)))
    return max(1, len(stored["masked_lm_ids"].int64_list.value))


def check_features(files: Sequence[str], spec: FeatureSpec) -> FeatureSpec:
    """Checks the first records of each TFRecord file against what the run expects.

    The input pipeline checks every record, but only when it reaches it.

    Returns:
      A spec that also expects the first record's shared features in all records.
    """
    for path in files:
        for number, record in enumerate(itertools.islice(_read(path), _RECORDS_LOOKED_AT)):
            spec = spec.expecting(_check_record(f"{path}, record {number}", record, spec))
    return spec


@contextlib.contextmanager
def naming_bad_records(files: Sequence[str], spec: FeatureSpec) -> Iterator[None]:
    """Replaces the error about a batch that the spec rejects by one that names the record.

    To find it, the files are read again: the input pipeline doesn't know where a record is from.
    """
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError):
        logging.info("looking for the bad record in %d files", len(files))
        for path in files:
            records, first = _read(path), 0
            while batch := list(itertools.islice(records, _BATCH)):
                try:
                    spec.parse(tf.constant(batch))
                except tf.errors.InvalidArgumentError:
                    for number, record in enumerate(batch, start=first):
                        _check_record(f"{path}, record {number}", record, spec)
                first += len(batch)
        raise


def _check_record(where: str, record: bytes, spec: FeatureSpec) -> dict[str, np.ndarray]:
    stored = _parse(where, record)
    for name, advice in spec.strangers.items():
        if name in stored:
            raise ValueError(f"{where} {advice}")
    values = {}
    for name, feature in spec.features.items():
        if feature.parsed:
            on_disk = feature.stored_as or name
            found = feature.read(stored[on_disk]) if on_disk in stored else None
            if found is None:
                raise ValueError(
                    f"{where} has no feature {on_disk} of the right type: generate it again"
                )
            _check_values(f"{where} has", on_disk, found, feature)
            values[name] = found
    contradiction = spec.contradiction(values)
    if contradiction:
        raise ValueError(f"{where} contradicts itself ({contradiction}): generate it again")
    return values


def _parse(where: str, record: bytes) -> Mapping[str, tf.train.Feature]:
    try:
        return tf.train.Example.FromString(record).features.feature
    except Exception as error:  # protobuf's DecodeError has no stable public home.
        raise ValueError(f"{where} is not a tf.train.Example: {error}") from None


def _check_values(what: str, name: str, values: np.ndarray, feature: Feature) -> None:
    expected = len(values) if feature.shape == (None,) else int(np.prod(feature.shape))
    if len(values) != expected:
        remedy = "generate it again"
        if feature.argument and len(values):
            remedy = f"set `{feature.argument}={len(values)}`"
        raise ValueError(
            f"{what} {len(values)} values of {name}, this run expects {expected}: {remedy}"
        )
    if feature.list_type == "bytes_list" or not values.size:
        return
    if feature.list_type == "float_list":
        bad = values[(values != 0) & (values != 1)]
        if bad.size:
            raise ValueError(f"{what} {name} of {bad[0]}, expected 0 or 1: generate it again")
    elif feature.expected and tuple(values.tolist()) != feature.expected:
        raise ValueError(
            f"{what} {name} {values.tolist()}, other records have {list(feature.expected)}: "
            "use files that were generated with the same flags and vocabulary"
        )
    elif values.min() < 0 or values.max() >= feature.below:
        raise ValueError(
            f"{what} {name} from {values.min()} to {values.max()}, expected 0 to "
            f"{feature.below - 1}: use the config (`vocab_size`...) that the records were "
            "generated for, or generate it again"
        )
