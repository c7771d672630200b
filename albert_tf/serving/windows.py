"""Windows on texts that are too long for one sequence."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from albert_tf.serving.graph_text import dense, ranges
from albert_tf.serving.graph_tokenizer import Pieces
from albert_tf.types import Features

# Positions that the model reads at once (at least one window): memory doesn't grow with the texts.
_POSITIONS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class Windows:
    """W windows on contexts.

    Attributes:
      ids: `<int32>[W, (L)]`, pieces of the context.
      examples: `<int32>[W]`, the example each belongs to.
      offsets: `<int32>[W]`, position of the first of these pieces in the sequence.
      flat: `<int32>[W, L]`, each piece's index in all the batch's contexts.
      counts: `<bool>[W, L]`, whether this window shows most around the piece.
      widths: `<int32>[W]`, number of pieces.
    """

    ids: tf.RaggedTensor
    examples: tf.Tensor
    offsets: tf.Tensor
    flat: tf.Tensor
    counts: tf.Tensor
    widths: tf.Tensor


def make_windows(
    query: tf.RaggedTensor, pieces: Pieces, max_seq_length: int, doc_stride: int
) -> Windows:
    """Cuts contexts into windows that fit beside their questions.

    Args:
      query: `<int32>[B, (Q)]`, pieces of the questions.
      pieces: Those of the contexts.
      max_seq_length: Maximum pieces in a sequence.
      doc_stride: Pieces from one window to the next.
    """
    room = max_seq_length - 3 - tf.cast(query.row_lengths(), tf.int32)
    examples, widths, flat = _cut(pieces.ids, room, doc_stride)
    of_window, places = ranges(widths)
    # A piece counts in the window with most context on its poorer side, the first if equal.
    width = tf.gather(widths, of_window)
    shown = 100 * tf.minimum(places, width - 1 - places) + width
    total = tf.size(pieces.ids.values)
    most = tf.gather(tf.math.unsorted_segment_max(shown, flat, total), flat)
    candidates = tf.where(shown == most, of_window, tf.size(widths))
    best = tf.gather(tf.math.unsorted_segment_min(candidates, flat, total), flat)

    return Windows(
        ids=_rows(tf.gather(pieces.ids.values, flat), widths),
        examples=examples,
        offsets=2 + tf.gather(tf.cast(query.row_lengths(), tf.int32), examples),
        flat=dense(_rows(flat, widths), 0, least=1),
        counts=dense(_rows(best == of_window, widths), False, least=1),
        widths=widths,
    )


def make_word_windows(counts: tf.RaggedTensor, room: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts texts between words into windows, none overlapping; each has as many words as fit.

    Args:
      counts: `<int32>[B, (W)]`, the number of pieces of each word, `room` at most.
      room: The number of pieces that fit into a window.

    Returns:
      The first of all the batch's pieces in each window, and the one after its last, `<int32>[V]`
      each. A text without pieces has an empty one.
    """
    before = tf.concat([[0], tf.cumsum(counts.values)], axis=0)
    limits = tf.cast(counts.row_limits(), tf.int32)
    firsts = tf.cast(counts.row_starts(), tf.int32)

    def add(firsts: tf.Tensor, found: tf.TensorArray) -> Any:
        # The word that would not fit is the first one of the next window.
        most = tf.gather(before, firsts) + room
        following = tf.searchsorted(before[1:], most, side="right")
        following = tf.minimum(following, limits)
        return following, found.write(found.size(), tf.stack([firsts, following], axis=1))

    array = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[None, 2])
    _, array = tf.while_loop(
        lambda firsts, _: tf.reduce_any(firsts < limits), add, add(firsts, array)
    )
    found = tf.transpose(array.stack(), [1, 0, 2])
    # Texts that are done go on with empty windows; the first one of each stays.
    stays = found[:, :, 0] < limits[:, None]
    stays |= tf.range(tf.shape(found)[1]) == 0
    pieces = tf.gather(before, tf.boolean_mask(found, stays))
    return pieces[:, 0], pieces[:, 1]


def run_in_parts(run: Any, features: Features) -> Features:
    """Applies a tf.function to features `<int32>[V, S]` of all windows, a few windows at a time.

    Its outputs `[V, ...]` may be as wide as the features.
    """
    rows, width = tf.unstack(tf.shape(features["input_ids"]))
    size = tf.maximum(_POSITIONS_AT_ONCE // width, 1)
    number = tf.maximum(-(-rows // size), 1)
    specs = run.get_concrete_function().structured_outputs
    # An output's parts are as wide as the features, or the beam.
    parts = {
        name: tf.TensorArray(spec.dtype, number, infer_shape=False) for name, spec in specs.items()
    }

    def add(i: tf.Tensor, parts: dict[str, tf.TensorArray]) -> Any:
        part = {name: values[i * size : (i + 1) * size] for name, values in features.items()}
        outputs = run(part)
        return i + 1, {name: array.write(i, outputs[name]) for name, array in parts.items()}

    # One at a time: in parallel they would take the memory of all.
    _, parts = tf.while_loop(
        lambda i, _: i < number, add, (tf.constant(0), parts), parallel_iterations=1
    )
    return {
        name: tf.ensure_shape(array.concat(), specs[name].shape) for name, array in parts.items()
    }


def text_windows(
    ids: tf.RaggedTensor, max_seq_length: int, doc_stride: int
) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Cuts single texts into windows.

    Args:
      ids: `<int32>[B, (T)]`, pieces of the texts.
      max_seq_length: Maximum pieces in a sequence.
      doc_stride: Pieces from one window to the next.

    Returns:
      The pieces of each window, `<int32>[W, (L)]`, and its text, `<int32>[W]`, ascending; each text
      has at least one.
    """
    room = tf.fill(tf.shape(ids.row_lengths()), max_seq_length - 2)
    texts, widths, flat = _cut(ids, room, doc_stride)
    return _rows(tf.gather(ids.values, flat), widths), texts


def _cut(
    ids: tf.RaggedTensor, room: tf.Tensor, doc_stride: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Cuts rows into windows of at most `room` `<int32>[B]` pieces.

    Returns:
      `<int32>[W]`, the row of each window; `<int32>[W]`, its width; and `<int32>`, the indexes of
      all windows' pieces among the flat values.
    """
    lengths = tf.cast(ids.row_lengths(), tf.int32)
    step = tf.minimum(room, doc_stride)
    number = 1 + -(-tf.maximum(lengths - room, 0) // step)
    examples, index = ranges(number)
    starts = index * tf.gather(step, examples)
    widths = tf.minimum(tf.gather(room, examples), tf.gather(lengths, examples) - starts)
    of_window, places = ranges(widths)
    bases = tf.cast(ids.row_starts(), tf.int32)
    return examples, widths, tf.gather(tf.gather(bases, examples) + starts, of_window) + places


def _rows(values: tf.Tensor, widths: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(values, tf.cast(widths, tf.int64), validate=False)
