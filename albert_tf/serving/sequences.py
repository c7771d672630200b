"""Pieces -> model inputs, in the graph, as tasks/sequence_features.py does in Python."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from albert_tf.serving.tables import dense, keep, of_rows, places
from albert_tf.text.tokenization import Tokenizer
from albert_tf.types import Features

FEATURES = ("input_ids", "input_mask", "segment_ids")
# Sequences are padded to a multiple of this: few lengths, none shorter than a beam.
_LENGTH_MULTIPLE = 8


@dataclasses.dataclass(frozen=True)
class Joiner:
    """Adds special pieces to ids, and truncates them.

    Attributes:
      cls_id: Id of [CLS].
      sep_id: Id of [SEP].
      pad_id: Id of padding.
      max_seq_length: Maximum pieces in a sequence, special ones included.
    """

    cls_id: int
    sep_id: int
    pad_id: int
    max_seq_length: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_seq_length: int) -> Joiner:
        """Takes the special pieces from a tokenizer."""
        return cls(tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, max_seq_length)

    def single(self, ids: tf.RaggedTensor) -> Features:
        """Makes sequences of `<int32>[B, (T)]`; tails are cut off.

        Returns:
          `input_ids`, `input_mask` and `segment_ids` `<int32>[B, S]`, S the length of the longest.
        """
        none = tf.zeros([ids.nrows()], tf.bool)
        return self.join(first(ids, self.max_seq_length - 2), first(ids, 0), none)

    def pair(self, ids_a: tf.RaggedTensor, ids_b: tf.RaggedTensor) -> Features:
        """Makes sequences of two texts; the longer one is cut at its end (the second, if equal).

        With an empty second text, the sequence is that of a single text.

        Source: classifier_utils.py, convert_single_example and _truncate_seq_pair.
        """
        a, b = ids_a.row_lengths(), ids_b.row_lengths()
        room = self.max_seq_length - 3
        b = tf.minimum(b, tf.maximum(room - a, room // 2))
        a = tf.where(b > 0, room - b, room + 1)
        return self.join(first(ids_a, a), first(ids_b, b), b > 0)

    def join(self, ids_a: tf.RaggedTensor, ids_b: tf.RaggedTensor, is_pair: tf.Tensor) -> Features:
        """Makes sequences of ids that fit, with a second [SEP] where `is_pair` `<bool>[B]`."""
        rows, is_pair = ids_a.nrows(), tf.cast(is_pair, tf.int64)
        cls, sep = tf.fill([rows, 1], self.cls_id), tf.fill([rows, 1], self.sep_id)
        end = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.reduce_sum(is_pair)], self.sep_id), is_pair, validate=False
        )
        ids = tf.concat([cls, ids_a, sep, ids_b, end], axis=1)
        in_second = places(ids) >= of_rows(ids, ids_a.row_lengths() + 2)
        rows = {
            "input_ids": (ids, self.pad_id),
            "input_mask": (ids.with_values(tf.ones_like(ids.values)), 0),
            "segment_ids": (ids.with_values(tf.cast(in_second, tf.int32)), 0),
        }
        widths = {"least": 1, "multiple": _LENGTH_MULTIPLE, "most": self.max_seq_length}
        return {name: dense(values, padding, **widths) for name, (values, padding) in rows.items()}


def last(ragged: tf.RaggedTensor, length: int) -> tf.RaggedTensor:
    """Returns no more than the last `length` values of each row."""
    return keep(ragged, places(ragged) >= of_rows(ragged, ragged.row_lengths() - length))


def first(ragged: tf.RaggedTensor, lengths: int | tf.Tensor) -> tf.RaggedTensor:
    """Returns no more than the first `lengths` `<int64>[B]` values of each row."""
    lengths = tf.broadcast_to(tf.cast(lengths, tf.int64), [ragged.nrows()])
    return keep(ragged, places(ragged) < of_rows(ragged, lengths))


def parse_examples(serialized: tf.Tensor) -> dict[str, tf.RaggedTensor]:
    """Parses serialized tf.train.Examples `<string>[B]` with features of any length."""
    spec = {name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for name in FEATURES}
    parsed = tf.io.parse_example(serialized, spec)
    lengths = {name: rows.row_lengths() for name, rows in parsed.items()}
    same = [
        tf.debugging.assert_equal(
            lengths[name], lengths["input_ids"], f"{name} and input_ids differ in length"
        )
        for name in FEATURES
    ]
    with tf.control_dependencies(same):
        return {name: tf.cast(rows, tf.int32) for name, rows in parsed.items()}
