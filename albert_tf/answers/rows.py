"""Texts -> the ids that a model reads: `[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]`.

Features are as long as their text; `pad_features` pads them to a common length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.text.tokenization import Tokenizer
from albert_tf.types import Features

# The features of a sequence, by name.
Row = dict[str, np.ndarray]
# The model's inputs. They are padded to a multiple of LENGTH_MULTIPLE, so that there are few
# lengths, none shorter than a beam.
FEATURES = ("input_ids", "input_mask", "segment_ids")
LENGTH_MULTIPLE = 8
# Padding values other than 0: no answer can start or end at a padded position.
PADDING = {"p_mask": 1}


def pair_features(
    tokenizer: Tokenizer, text_a: str, text_b: str | None, max_seq_length: int
) -> dict[str, np.ndarray]:
    """Turns a text, or a pair of texts, into a sequence.

    A pair that is too long loses pieces at the end of the longer text, the second if equally long.

    Args:
      tokenizer: The model's tokenizer.
      text_a: Raw text; may be empty.
      text_b: The second text. None, or a text without pieces, makes a sequence of one text.
      max_seq_length: Maximum number of pieces per sequence, special ones included.

    Returns:
      `input_ids`, `input_mask` (ones) and `segment_ids` (1 = second text), each `<int32>[L]` with
      L <= max_seq_length.

    Source: classifier_utils.py, convert_single_example and _truncate_seq_pair.
    """
    ids_a = tokenizer.encode(text_a, max_seq_length)
    ids_b = tokenizer.encode(text_b, max_seq_length) if text_b else []
    if not ids_b:
        return join_ids(tokenizer, ids_a[: max_seq_length - 2])
    # The second text gets what the first leaves, but at least half if it needs it.
    room = max_seq_length - 3
    length_b = min(len(ids_b), max(room - len(ids_a), room // 2))
    return join_ids(tokenizer, ids_a[: room - length_b], ids_b[:length_b])


def window_spans(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Returns the first piece and the end of each window on a text.

    Args:
      length: Number of the text's pieces.
      room: Maximum number of pieces in a window.
      stride: Pieces from one window's start to the next one's; at most `room` are used.
    """
    # Even an empty text has a window; the last one reaches the text's end.
    starts = [0]
    while starts[-1] + room < length:
        starts.append(starts[-1] + min(room, stride))
    return [(start, min(start + room, length)) for start in starts]


def choice_features(
    tokenizer: Tokenizer,
    context: str,
    endings: Sequence[str],
    max_seq_length: int,
    max_qa_length: int,
) -> dict[str, np.ndarray]:
    """Turns a context and the endings to choose from into sequences of one length.

    An ending keeps its last pieces, because the answer is there; the context is cut at its end.

    Args:
      tokenizer: The model's tokenizer.
      context: Raw text.
      endings: C raw texts.
      max_seq_length: Maximum number of pieces per sequence, special ones included.
      max_qa_length: Maximum number of pieces per ending, which is also cut to fit into a sequence.

    Returns:
      `input_ids`, `input_mask` and `segment_ids` (1 = ending), each `<int32>[C, L]` with L the
      longest sequence's.

    Source: race_utils.py, convert_single_example.
    Differs: the release fails on an ending that doesn't fit into a sequence.
    """
    room = max_seq_length - 3
    # The context's pieces are the same for all endings.
    context_ids = tokenizer.encode(context, room)
    rows = []
    # Each ending keeps its last pieces; the context fills the room that it leaves.
    for ending in endings:
        ids = tokenizer.encode(ending)[-longest_ending(max_seq_length, max_qa_length) :]
        rows.append(join_ids(tokenizer, context_ids[: room - len(ids)], ids))
    return stack(rows)


def longest_ending(max_seq_length: int, max_qa_length: int) -> int:
    """Returns the number of pieces that endings are cut to; see `choice_features`."""
    return min(max_qa_length, max_seq_length - 3)


def join_ids(
    tokenizer: Tokenizer, ids_a: Sequence[int], ids_b: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """Adds the special pieces to ids; see `pair_features`.

    A tokenizer may have one segment for both texts.
    """
    first = [tokenizer.cls_id, *ids_a, tokenizer.sep_id]
    second = [] if ids_b is None else [*ids_b, tokenizer.sep_id]
    segments = [0, 0 if tokenizer.one_segment else 1]
    return {
        "input_ids": np.array(first + second, np.int32),
        "input_mask": np.ones(len(first) + len(second), np.int32),
        "segment_ids": np.repeat(np.array(segments, np.int32), [len(first), len(second)]),
    }


def inner_ids(tokenizer: Tokenizer, ids: Sequence[Any], max_seq_length: int) -> Sequence[int]:
    """Returns the ids of a sequence without the special pieces that `join_ids` adds.

    Args:
      tokenizer: The model's tokenizer.
      ids: Any client's ids; raises ValueError if they can't be a sequence of the model.
      max_seq_length: Maximum number of pieces per sequence, special ones included.
    """
    size, ends = tokenizer.vocab_size, [tokenizer.cls_id, tokenizer.sep_id]
    # Ids from another vocabulary rarely begin and end with these two.
    is_framed = len(ids) <= max_seq_length and [*ids[:1], *ids[1:][-1:]] == ends
    if not is_framed or not all(type(each) is int and 0 <= each < size for each in ids):
        raise ValueError(
            f"token ids must be the model's own, from 0 to {size - 1}, at most {max_seq_length}, "
            f"[CLS] ({ends[0]}) first and [SEP] ({ends[1]}) last: else send texts"
        )
    return ids[1:-1]


def stack(
    rows: Sequence[Mapping[str, np.ndarray]], length: int | None = None
) -> dict[str, np.ndarray]:
    """Stacks rows `<int32>[..., L]`, padded to one length, to features `<int32>[N, ..., length]`.

    By default the length is the longest row's. Features without an axis, `[]`, become `[N]`.
    """
    length = length or max(row["input_ids"].shape[-1] for row in rows)
    padded = [pad_features(row, length) for row in rows]
    return {name: np.stack([row[name] for row in padded]) for name in padded[0]}


def pad_features(features: Mapping[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Pads the last axis of each feature `<int32>[..., L]` to `length`."""
    padded = {}
    for name, value in features.items():
        if value.ndim:
            widths = [(0, 0)] * (value.ndim - 1) + [(0, length - value.shape[-1])]
            value = np.pad(value, widths, constant_values=PADDING.get(name, 0))
        padded[name] = value
    return padded


def run_rows(
    run: Callable[[Features], Features],
    rows: Sequence[Mapping[str, np.ndarray]],
    positions_at_once: int,
    max_seq_length: int,
) -> Iterator[Features]:
    """Runs a model on batches of rows, and yields its outputs for each row.

    Args:
      run: Maps FEATURES, each `<int32>[B, S]` or `[B, C, S]`, to outputs.
      rows: The rows; only their FEATURES are used. All are padded to one length.
      positions_at_once: Maximum number of positions in a batch of several rows.
      max_seq_length: Maximum length.
    """
    if not rows:
        return
    # Pad all rows to one length, and run as many together as their positions allow.
    longest = max(row["input_ids"].shape[-1] for row in rows)
    width = min(-(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, max_seq_length)
    # A row may itself hold several sequences, such as the choices of a question.
    size = max(positions_at_once // (width * rows[0]["input_ids"][..., 0].size), 1)
    for start in range(0, len(rows), size):
        part = [{name: row[name] for name in FEATURES} for row in rows[start : start + size]]
        outputs = run(stack(part, width))
        for i in range(len(part)):
            yield {name: values[i] for name, values in outputs.items()}
