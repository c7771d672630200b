"""Texts -> the ids that a model reads: `[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]`.

Features are as long as their text; `pad_features` makes them of one length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from albert_tf.text.tokenization import Tokenizer

# What a padded position holds, where it isn't 0: no answer can start or end there.
PADDING = {"p_mask": 1}


def pair_features(
    tokenizer: Tokenizer, text_a: str, text_b: str | None, max_seq_length: int
) -> dict[str, np.ndarray]:
    """Turns a text, or a pair of texts, into a sequence.

    Where the pair is too long, the longer text loses its tail; of two as long, the second.

    Args:
      tokenizer: The model's.
      text_a: Raw text; may be empty.
      text_b: The second text. None, and one without any piece, make a single text.
      max_seq_length: Most pieces of a sequence, the special ones included.

    Returns:
      `input_ids`, `input_mask` (ones) and `segment_ids` (1 = second text), each `<int32>[L]` with
      L <= max_seq_length.

    Source: classifier_utils.py, convert_single_example and _truncate_seq_pair.
    """
    ids_a = tokenizer.encode(text_a, max_seq_length)
    ids_b = tokenizer.encode(text_b, max_seq_length) if text_b else []
    if not ids_b:
        return join_ids(tokenizer, ids_a[: max_seq_length - 2])
    room = max_seq_length - 3
    length_b = min(len(ids_b), max(room - len(ids_a), room // 2))
    return join_ids(tokenizer, ids_a[: room - length_b], ids_b[:length_b])


def choice_features(
    tokenizer: Tokenizer,
    context: str,
    endings: Sequence[str],
    max_seq_length: int,
    max_qa_length: int,
) -> dict[str, np.ndarray]:
    """Turns a context and the endings to choose from into sequences of one length.

    An ending keeps its last pieces, for there the answer stands; the context loses its tail.

    Args:
      tokenizer: The model's.
      context: Raw text.
      endings: C raw texts.
      max_seq_length: Most pieces of a sequence, the special ones included.
      max_qa_length: Most pieces of an ending, which is cut to what a sequence has room for, too.

    Returns:
      `input_ids`, `input_mask` and `segment_ids` (1 = ending), each `<int32>[C, L]` with L the
      longest sequence's.

    Source: race_utils.py, convert_single_example.
    Differs: the release stops at an ending that a sequence has no room for.
    """
    longest = max_seq_length - 3
    context_ids = tokenizer.encode(context, longest)
    rows = []
    for ending in endings:
        ids = tokenizer.encode(ending)[-min(max_qa_length, longest) :]
        rows.append(join_ids(tokenizer, context_ids[: longest - len(ids)], ids))
    longest = max(len(row["input_ids"]) for row in rows)
    rows = [pad_features(row, longest) for row in rows]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def join_ids(
    tokenizer: Tokenizer, ids_a: Sequence[int], ids_b: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """Puts the special pieces around ids; see `pair_features`."""
    first = [tokenizer.cls_id, *ids_a, tokenizer.sep_id]
    second = [] if ids_b is None else [*ids_b, tokenizer.sep_id]
    return {
        "input_ids": np.array(first + second, np.int32),
        "input_mask": np.ones(len(first) + len(second), np.int32),
        "segment_ids": np.repeat(np.array([0, 1], np.int32), [len(first), len(second)]),
    }


def pad_features(features: Mapping[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Lengthens the last axis of each feature `<int32>[..., L]` to `length`.

    Raises:
      ValueError: A feature is longer than that.
    """
    padded = {}
    for name, value in features.items():
        missing = length - value.shape[-1]
        if missing < 0:
            raise ValueError(f"{name} has {value.shape[-1]} positions, more than {length}")
        widths = [(0, 0)] * (value.ndim - 1) + [(0, missing)]
        padded[name] = np.pad(value, widths, constant_values=PADDING.get(name, 0))
    return padded
