"""split_words of text/words.py in the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from albert_tf.serving.tables import keep, places, rows_of
from albert_tf.text.words import APOSTROPHES, Kind, runs_of_kinds


@dataclasses.dataclass(frozen=True)
class Words:
    """Texts as words.

    Attributes:
      raw: `<int32>[B, (L)]`, the texts' code points, without bytes that are not UTF-8.
      starts: `<int32>[B, (W)]`, the index in the raw text of each word's first character.
      ends: `<int32>[B, (W)]`, the index after its last.
    """

    raw: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor

    def texts(self, rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """Returns parts of the texts `rows` `<int64>[N]`, `<string>[N]`."""
        base = tf.cast(tf.gather(self.raw.row_starts(), rows), tf.int32)
        characters = tf.ragged.range(base + starts, base + ends)
        codes = characters.with_values(tf.gather(self.raw.values, characters.values))
        return tf.strings.unicode_encode(codes, "UTF-8")


class WordSplitter:
    """Splits raw texts `<string>[B]` into Words."""

    def __init__(self) -> None:
        codes, kinds = zip(*runs_of_kinds(), strict=True)
        self._codes, self._kinds = np.array(codes, np.int32), np.array(kinds, np.int32)

    def __call__(self, texts: tf.Tensor) -> Words:
        """Splits texts."""
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        raw = tf.strings.unicode_decode(texts, "UTF-8")
        codes, rows = raw.values, rows_of(raw)
        runs = tf.searchsorted(self._codes, codes, side="right") - 1
        kinds = tf.gather(self._kinds, runs)
        alone = kinds == Kind.ALONE
        begins = alone | self._starts(codes, kinds, rows)
        # A word goes on up to the next one, or to a space, or to the text's end.
        is_word = kinds != Kind.SPACE
        goes_on = is_word & ~begins & (rows == _before(rows, -1))
        ends = is_word & ~_after(goes_on)
        characters = raw.with_values(tf.cast(places(raw), tf.int32))
        return Words(raw, keep(characters, begins), keep(characters, ends) + 1)

    def _starts(self, codes: tf.Tensor, kinds: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Returns which of the letters and marks begin a word, `<bool>[M]`."""
        inside = (kinds == Kind.LETTER) | (kinds == Kind.MARK)
        begins_stretch = inside & ~(_before(inside, False) & (rows == _before(rows, -1)))
        stretches = tf.cumsum(tf.cast(begins_stretch, tf.int32)) - 1
        count = tf.reduce_sum(tf.cast(begins_stretch, tf.int32))
        numbers = tf.range(tf.size(codes))
        # Negative ids are left out; a stretch without letters has its first after its last one.
        of_letters = tf.where(kinds == Kind.LETTER, stretches, -1)

        def letter(find: Callable[..., tf.Tensor]) -> tf.Tensor:
            found = find(numbers, of_letters, count)
            return tf.gather(tf.pad(found, [[0, 1]]), tf.maximum(stretches, 0))

        first, last = map(letter, (tf.math.unsorted_segment_min, tf.math.unsorted_segment_max))
        is_apostrophe = tf.reduce_any(codes[:, None] == [ord(c) for c in APOSTROPHES], axis=1)
        is_s = tf.reduce_any(codes[:, None] == [ord("s"), ord("S")], axis=1)
        begins_s = is_apostrophe & _after(is_s) & (numbers > first) & (numbers + 1 == last)
        return inside & ((numbers <= first) | (numbers > last) | begins_s)


def _before(values: tf.Tensor, default: int | bool) -> tf.Tensor:
    """Returns the value before each, `<T>[M]`."""
    return tf.concat([tf.cast([default], values.dtype), values], axis=0)[:-1]


def _after(values: tf.Tensor) -> tf.Tensor:
    """Returns the value after each, `<bool>[M]`; after the last, False."""
    return tf.concat([values, [False]], axis=0)[1:]
