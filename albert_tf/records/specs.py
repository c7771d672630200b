"""The records on disk: one declaration per kind of record writes it and reads it back.

Only this module defines on-disk feature names. In memory a feature may have another name
(`next_sentence_labels` is `sentence_order_labels` here, 1 = swapped); `FeatureSpec` is the only
place that renames it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from albert_tf.records.feature_spec import Feature, FeatureSpec

if TYPE_CHECKING:
    import tensorflow as tf

# Tokens in a row besides its two segments: [CLS], [SEP], [SEP].
NUM_SPECIALS = 3


def pretraining_spec(
    max_seq_length: int,
    max_predictions_per_seq: int,
    max_examples_per_row: int = 1,
    vocab_size: int = 1 << 31,
    type_vocab_size: int = 2,
) -> FeatureSpec:
    """The eight features of a pre-training record (S = max_seq_length, P = predictions).

    `token_boundary` is written, as in the release, but not read: training doesn't use it.

    If max_examples_per_row is above 1, rows are packed: a row holds several examples, one after
    the other. They share the row's tokens and predictions, but each has a slot of its own for its
    order label. Two more features say which slots are filled (`sentence_order_weights`, 1 or 0)
    and where each example's [CLS] is (`cls_positions`, ascending; 0 in an empty slot).

    Ids are below the model's vocab_size, and segments below its type_vocab_size.

    Source: create_pretraining_data.py, write_instance_to_example_files.
    """
    sequence = functools.partial(Feature, shape=(max_seq_length,), argument="max_seq_length")
    predictions = functools.partial(
        Feature, shape=(max_predictions_per_seq,), argument="max_predictions_per_seq"
    )
    slots = functools.partial(
        Feature, shape=(max_examples_per_row,), argument="max_examples_per_row"
    )
    packed = max_examples_per_row > 1
    packed_only = {
        "sentence_order_weights": slots(np.float32, stored_as="next_sentence_weights"),
        "cls_positions": slots(np.int32, below=max_seq_length),
    }
    return FeatureSpec(
        {
            "input_ids": sequence(np.int32, below=vocab_size),
            "input_mask": sequence(np.int32, below=2),
            "segment_ids": sequence(np.int32, below=type_vocab_size),
            "token_boundary": sequence(np.int32, parsed=False),
            "masked_lm_positions": predictions(np.int32, below=max_seq_length),
            "masked_lm_ids": predictions(np.int32, below=vocab_size),
            "masked_lm_weights": predictions(np.float32),
            # Shape (), not (1,): both store one value, but then the batch is <int32>[B].
            "sentence_order_labels": slots(
                np.int32,
                shape=(max_examples_per_row,) if packed else (),
                below=2,
                stored_as="next_sentence_labels",
            ),
            **(packed_only if packed else {}),
        },
        strangers={"starts": "has no masks: set `masking=dynamic`"},
    )


class RowFormat(NamedTuple):
    """How rows are laid out and masked: the generator's sequence length and vocabulary.

    Attributes:
      max_seq_length: S.
      vocab_size: V.
      pad_id: Id of <pad> or [PAD].
      cls_id: Id of [CLS].
      sep_id: Id of [SEP].
      mask_id: Id of [MASK].
    """

    max_seq_length: int
    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int


def compact_spec(max_seq_length: int = 1 << 31, vocab_size: int = 1 << 31) -> FeatureSpec:
    """The features of a compact record: a row before masking, without specials and padding.

    `token_ids` are those of segment A followed by B, `segment_lengths` says how many each has, and
    `word_starts` which of them begin a word. Every record holds the RowFormat, so that it can be
    read without the vocabulary. Names on disk are short, since each record repeats them.

    With its specials a row is at most max_seq_length long, and ids are below vocab_size.
    """
    most_tokens = max_seq_length - NUM_SPECIALS
    return FeatureSpec(
        {
            "token_ids": Feature(np.int32, (None,), vocab_size, stored_as="ids"),
            "segment_lengths": Feature(np.int32, (2,), most_tokens, stored_as="lengths"),
            "word_starts": Feature(np.bool_, (None,), stored_as="starts"),
            "sentence_order_labels": Feature(np.int32, (), 2, stored_as="labels"),
            "row_format": Feature(
                np.int32, (len(RowFormat._fields),), stored_as="format", shared=True
            ),
        },
        strangers={
            "masked_lm_positions": "already has masks: set `masking=static`, and leave out "
            "`masked_lm_budget`"
        },
        contradiction=_compact_contradiction,
        consistent=functools.partial(_are_consistent, most_tokens=most_tokens),
    )


def _compact_contradiction(values: Mapping[str, np.ndarray]) -> str | None:
    num_tokens, num_flags = len(values["token_ids"]), len(values["word_starts"])
    lengths = values["segment_lengths"]
    row_format = RowFormat(*values["row_format"].tolist())
    if not _is_row(num_tokens, lengths[0], lengths[1], num_flags // 8):
        return (
            f"{num_tokens} tokens, segment lengths {lengths.tolist()}, {num_flags} word-start flags"
        )
    if num_tokens + NUM_SPECIALS > row_format.max_seq_length:
        places = row_format.max_seq_length
        return f"{num_tokens} tokens and {NUM_SPECIALS} special tokens in a row of {places}"
    if not 0 <= min(row_format[2:]) <= max(row_format[2:]) < row_format.vocab_size:
        return f"special ids {row_format[2:]} in a vocabulary of {row_format.vocab_size}"
    return None


def _are_consistent(stored: Mapping[str, tf.Tensor], most_tokens: int) -> tf.Tensor:
    import tensorflow as tf

    num_tokens = stored["token_ids"].row_lengths()
    lengths_a, lengths_b = tf.unstack(stored["segment_lengths"], axis=1)
    num_bytes = tf.strings.length(stored["word_starts"])
    row = _is_row(num_tokens, lengths_a, lengths_b, tf.cast(num_bytes, tf.int64))
    return row & (num_tokens <= most_tokens)


def _is_row(num_tokens: Any, length_a: Any, length_b: Any, num_bytes: Any) -> Any:
    """Whether the numbers of a compact record are consistent; takes numbers or tensors."""
    fits = (length_a >= 1) & (length_b >= 1) & (length_a + length_b == num_tokens)
    return fits & (num_bytes == (num_tokens + 7) // 8)
