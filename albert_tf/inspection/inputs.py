"""What a model is inspected on: rows of texts or of records, a sample of them, in batches."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from albert_tf import files, wire
from albert_tf.config import AlbertConfig
from albert_tf.records import input_files, specs
from albert_tf.records.datasets import untuned
from albert_tf.tasks import sequence_features
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text_files import utf8_lines

Row = dict[str, np.ndarray]
_Item = TypeVar("_Item")
_FEATURES = ("input_ids", "input_mask", "segment_ids")
# Names on disk in records of other kinds -> what to do about these.
_STRANGERS = {
    "starts": "has no masks: give records that the generator made with `masking=static`",
    "cls_positions": "packs several examples into a row: give records that the generator made "
    "with `max_examples_per_row=1`",
}


def sample(items: Iterable[_Item], most: int, seed: int = 0) -> list[_Item]:
    """Returns up to `most` of any number of items, each as likely as the others, in their order."""
    drawn = random.Random(seed)
    kept: list[tuple[int, _Item]] = []
    for number, item in enumerate(items):
        if number < most:
            kept.append((number, item))
        elif (place := drawn.randrange(number + 1)) < most:
            kept[place] = (number, item)
    return [item for _, item in sorted(kept, key=lambda pair: pair[0])]


def texts(paths: Sequence[str]) -> Iterator[str]:
    """Yields the lines of text files that are not empty.

    Raises:
      ValueError: If a file isn't UTF-8, or there is no such line.
    """
    empty = True
    for path in paths:
        for _, line in utf8_lines(path):
            if line.strip():
                empty = False
                yield line.strip()
    if empty:
        raise ValueError(f"{', '.join(paths)}: expected lines of text, got none")


def text_rows(lines: Iterable[str], tokenizer: Tokenizer, max_seq_length: int) -> list[Row]:
    """Returns a row for each text, cut at `max_seq_length`."""
    return [sequence_features.pair_features(tokenizer, t, None, max_seq_length) for t in lines]


def are_records(paths: Sequence[str]) -> bool:
    """Whether files hold records, by how they begin; if not, they hold text.

    Raises:
      ValueError: If some do and some don't.
    """
    found = set()
    for path in paths:
        with files.open_bytes(path) as file:
            begin = file.read(12)
        # A record begins with its length, and the checksum of that.
        found.add(len(begin) == 12 and wire.masked_checksum(begin[:8]) == begin[8:])
    if len(found) > 1:
        raise ValueError(
            f"{', '.join(paths)}: some are records and some are not: give files of one kind"
        )
    return found.pop()


def record_rows(
    paths: Sequence[str], config: AlbertConfig, max_seq_length: int, most: int, seed: int = 0
) -> list[dict[str, np.ndarray]]:
    """Returns a sample of pre-training records, with the masks that are stored in them.

    Args:
      paths: Files of records with masks, one example a row.
      config: Bounds the ids.
      max_seq_length: That of the records.
      most: Maximum number of rows.
      seed: Of the sample.

    Returns:
      For each its `input_ids`, `input_mask`, `segment_ids` `<int32>[S]` and
      `sentence_order_labels` `<int32>[]`.

    Raises:
      ValueError: If a record is damaged, or of another form.
    """
    spec = specs.pretraining_spec(
        max_seq_length,
        input_files.count_prediction_slots(paths[0]),
        vocab_size=config.vocab_size,
        type_vocab_size=config.type_vocab_size,
    )
    spec = dataclasses.replace(spec, strangers=_STRANGERS)
    input_files.check_features(paths, spec)
    with input_files.naming_bad_records(paths, spec):
        records = untuned(tf.data.TFRecordDataset(list(paths))).as_numpy_iterator()
        kept = sample(records, most, seed)
        found = {name: np.asarray(value) for name, value in spec.parse(tf.constant(kept)).items()}
    names = (*_FEATURES, "sentence_order_labels")
    return [{name: found[name][i] for name in names} for i in range(len(kept))]


def batches(rows: Sequence[Any], size: int = 32) -> Iterator[tuple[int, Row]]:
    """Yields rows in batches of one shape: how many of a batch count, and `<int32>[size, S]`.

    S is the longest row's, and the last batch is filled up with rows of padding.
    """
    longest = max(row["input_ids"].shape[-1] for row in rows)
    for begin in range(0, len(rows), size):
        part = [{name: row[name] for name in _FEATURES} for row in rows[begin : begin + size]]
        stacked = sequence_features.stack(part, longest)
        missing = ((0, size - len(part)), (0, 0))
        yield len(part), {name: np.pad(value, missing) for name, value in stacked.items()}
