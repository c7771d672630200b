"""Windows on contexts that are too long for one sequence."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from albert_tf.serving.graph_tokenizer import Pieces
from albert_tf.serving.tables import dense, ranges


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
    lengths = tf.cast(pieces.ids.row_lengths(), tf.int32)
    room = max_seq_length - 3 - tf.cast(query.row_lengths(), tf.int32)
    step = tf.minimum(room, doc_stride)
    number = 1 + -(-tf.maximum(lengths - room, 0) // step)
    examples, index = ranges(number)
    starts = index * tf.gather(step, examples)
    widths = tf.minimum(tf.gather(room, examples), tf.gather(lengths, examples) - starts)
    of_window, places = ranges(widths)
    bases = tf.cast(pieces.ids.row_starts(), tf.int32)
    flat = tf.gather(tf.gather(bases, examples) + starts, of_window) + places
    # A piece counts in the window with most context on its poorer side, the first if equal.
    width = tf.gather(widths, of_window)
    shown = 100 * tf.minimum(places, width - 1 - places) + width
    total = tf.size(pieces.ids.values)
    most = tf.gather(tf.math.unsorted_segment_max(shown, flat, total), flat)
    candidates = tf.where(shown == most, of_window, tf.size(widths))
    best = tf.gather(tf.math.unsorted_segment_min(candidates, flat, total), flat)

    def rows(values: tf.Tensor) -> tf.RaggedTensor:
        lengths = tf.cast(widths, tf.int64)
        return tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)

    return Windows(
        ids=rows(tf.gather(pieces.ids.values, flat)),
        examples=examples,
        offsets=2 + tf.gather(tf.cast(query.row_lengths(), tf.int32), examples),
        flat=dense(rows(flat), 0, least=1),
        counts=dense(rows(best == of_window), False, least=1),
        widths=widths,
    )
