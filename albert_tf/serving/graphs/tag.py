"""Tags the words of raw texts, in the graph: entities with their places, or a tag for each word."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.answers.tag import OUTSIDE, Tag, are_entities, default_tag, tag_parts
from albert_tf.serving.graphs.base import ServedModel, run_in_parts
from albert_tf.serving.graphs.text import Words, WordSplitter, dense, from_rows, rows_of
from albert_tf.types import Features


class Tagger(ServedModel):
    """Tags the words of texts of any length.

    Words are those of text/word_splitting.py. As in training, each is split into pieces by itself,
    and long texts are read in windows that end between words. If the labels mark entities (BIO,
    BIOES), the raw-text signature returns `entities` `<string>[B, E]` as they stand in the raw
    text, and their `types`; if not, all `words` and their `tags`. With both it returns `starts` and
    `ends` `<int32>[B, E]`, so that an entity is text[start:end] by Unicode characters (without
    bytes that are not UTF-8), and `probabilities` `<float32>[B, E]`, for an entity the mean of its
    words'. All are padded, with "" and 0. The other signatures return `logits` and `probabilities`
    `<float32>[B, S, C]`.
    """

    kind_class = Tag

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        labels = self.kind.labels
        self._default = default_tag(labels)
        self._are_entities = are_entities(labels)
        prefixes, types = zip(*map(tag_parts, labels), strict=True)
        names = sorted(set(types))
        self._types = np.array([names.index(name) for name in types], np.int32)
        self._names = types if self._are_entities else labels
        self._is_inside = np.array([prefix != OUTSIDE for prefix in prefixes])
        # Tags that may continue an entity, and tags after which an entity may continue.
        self._goes_on = np.array([prefix in ("I", "E") for prefix in prefixes])
        self._is_open = np.array([prefix in ("B", "I") for prefix in prefixes])

    def read_texts(self) -> None:
        super().read_texts()
        self.split_words = WordSplitter()

    def answer(self, features: Features) -> Features:
        logits = self.apply(features)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    def answer_texts(self, text: tf.Tensor) -> Features:
        # Choose the likeliest tag of each word.
        words = self.split_words(text)
        probabilities = self._of_words(words)
        chosen = tf.argmax(probabilities, axis=1, output_type=tf.int32)
        best = tf.reduce_max(probabilities, axis=1)
        rows = rows_of(words.starts)
        starts, ends = words.starts.values, words.ends.values
        # Merge the words of each entity.
        if self._are_entities:
            begins, entities = self._entities(chosen, rows)
            count = tf.reduce_sum(tf.cast(begins, tf.int32))
            starts, rows, chosen = (tf.boolean_mask(v, begins) for v in (starts, rows, chosen))
            # Words outside of entities are in segment -1, which is ignored.
            ends = tf.math.unsorted_segment_max(ends, entities, count)
            best = tf.math.unsorted_segment_mean(best, entities, count)
        # Pad the spans of each text to the largest number of them.
        strings = words.texts(rows, starts, ends)
        texts, tags = ("entities", "types") if self._are_entities else ("words", "tags")
        flat: dict[str, tuple[tf.Tensor, Any]] = {
            texts: (strings, ""),
            tags: (tf.gather(tf.constant(self._names), chosen), ""),
            "starts": (starts, 0),
            "ends": (ends, 0),
            "probabilities": (best, 0),
        }
        number = words.starts.nrows()
        return {
            name: dense(from_rows(values, rows, number), padding)
            for name, (values, padding) in flat.items()
        }

    def _of_words(self, words: Words) -> tf.Tensor:
        """Returns the probabilities `<float32>[M, C]` of all words' tags."""
        room = self.kind.max_seq_length - 2
        starts = words.starts
        strings = words.texts(rows_of(starts), starts.values, words.ends.values)
        # Split each word by itself, and read as many words at once as fit into a window.
        ids = self.tokenizer.first(strings, room)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        firsts, limits = make_word_windows(starts.with_values(lengths), room)
        sizes = tf.cast(limits - firsts, tf.int64)
        pieces = tf.RaggedTensor.from_row_lengths(ids.values, sizes, validate=False)
        outputs = run_in_parts(self.run, self.builder.single(pieces))["probabilities"]
        # If several windows begin at a piece, the last one has it: the others are empty.
        first_pieces = tf.cast(ids.row_starts(), tf.int32)
        windows = tf.searchsorted(firsts, first_pieces, side="right") - 1
        # Positions count [CLS]. Words without pieces may point past a window; they are replaced.
        positions = 1 + first_pieces - tf.gather(firsts, windows)
        found = tf.gather_nd(outputs, tf.stack([windows, positions], axis=1))
        unread = tf.one_hot(self._default, len(self.kind.labels), dtype=found.dtype)
        return tf.where(lengths[:, None] > 0, found, unread)

    def _entities(self, chosen: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds the entities among words `<int32>[M]`, as seqeval does by default.

        Returns:
          Which words begin one `<bool>[M]`, and each word's entity `<int32>[M]`, -1 for none.
        """

        def is_(table: np.ndarray) -> tf.Tensor:
            return tf.gather(table, chosen)

        types = is_(self._types)
        # An entity goes on in the same text, with its type, if both prefixes allow it.
        same = (rows[1:] == rows[:-1]) & (types[1:] == types[:-1])
        goes_on = same & is_(self._goes_on)[1:] & is_(self._is_open)[:-1]
        # The first word continues nothing; there may be no words at all.
        goes_on = tf.concat([tf.zeros_like(rows[:1], tf.bool), goes_on], axis=0)
        begins = is_(self._is_inside) & ~goes_on
        entities = tf.cumsum(tf.cast(begins, tf.int32)) - 1
        return begins, tf.where(is_(self._is_inside), entities, -1)


def make_word_windows(counts: tf.RaggedTensor, room: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts texts between words into windows without overlap, each with as many words as fit.

    Args:
      counts: `<int32>[B, (W)]`, the number of pieces of each word, `room` at most.
      room: The number of pieces that fit into a window.

    Returns:
      The indexes, among all the batch's pieces, of each window's first and of the one after its
      last, `<int32>[V]` each. A text without pieces has an empty window.
    """
    # The number of pieces before each word, counted through the whole batch.
    before = tf.concat([[0], tf.cumsum(counts.values)], axis=0)
    limits = tf.cast(counts.row_limits(), tf.int32)
    firsts = tf.cast(counts.row_starts(), tf.int32)

    def add(firsts: tf.Tensor, found: tf.TensorArray) -> Any:
        # The first word that does not fit begins the next window.
        most = tf.gather(before, firsts) + room
        following = tf.searchsorted(before[1:], most, side="right")
        following = tf.minimum(following, limits)
        return following, found.write(found.size(), tf.stack([firsts, following], axis=1))

    array = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[None, 2])
    _, array = tf.while_loop(
        lambda firsts, _: tf.reduce_any(firsts < limits), add, add(firsts, array)
    )
    found = tf.transpose(array.stack(), [1, 0, 2])
    # Texts that were done early have empty windows: drop all but the first of each text.
    stays = found[:, :, 0] < limits[:, None]
    stays |= tf.range(tf.shape(found)[1]) == 0
    pieces = tf.gather(before, tf.boolean_mask(found, stays))
    return pieces[:, 0], pieces[:, 1]
