"""Text normalisation in the graph, with tables built from Python's own Unicode data.

TensorFlow's functions follow another Unicode version, and its lower-casing follows the process's
locale ("I" becomes dotless in Turkish). ALBERT's normalisations change each character on its own,
with one exception: a capital sigma becomes another letter at the end of a word.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.serving.tables import RowTable, keep, of_rows, rows_of, with_origins

_PAGE_SIZE = 256
# Table entry of a character that stays as it is.
_KEPT = -1
SIGMA = "Σ"
_FINAL_SIGMA, _SMALL_SIGMA = "ς", "σ"
# A character's kind, for a sigma beside it.
_OTHER, _CASED, _IGNORED = range(3)
# Stands between characters that are normalised together: it is for private use, so it stays.
_APART = "\ue000"
# Without surrogates, unassigned planes and _APART.
_CODES = (range(0xD800), range(0xE001, 0x40000), range(0xE0000, 0xF0000))


def _pattern_of(characters: Iterable[str]) -> str:
    """Returns an RE2 class of ascending characters."""
    ranges: list[list[int]] = []
    for code in map(ord, characters):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(rf"\x{{{a:x}}}-\x{{{b:x}}}" for a, b in ranges) + "]"


_SPACE_CODES = [code for code in range(0x10000) if chr(code).isspace()]
# What str.strip removes, as an RE2 class.
SPACES = _pattern_of(map(chr, _SPACE_CODES))


@dataclasses.dataclass(frozen=True)
class Normalized:
    """Texts after a normalisation.

    Attributes:
      raw: `<string>[N]`, the texts as UTF-8 without invalid bytes.
      texts: `<string>[N]`.
      sources: `<int32>[N, (L)]`, for each character of `texts` the index of its origin in `raw`.
    """

    raw: tf.Tensor
    texts: tf.Tensor
    sources: tf.RaggedTensor


class Normalizer:
    """Normalises texts, character by character.

    Args:
      replace: Replaces each character of a text on its own, and leaves private ones; it may strip
        the text.
      lower: Whether to lower-case capital sigmas, which `replace` leaves.
      collapse_spaces: Whether to collapse runs of white space into one space, and strip both ends,
        first.
    """

    def __init__(self, replace: Callable[[str], str], lower: bool, collapse_spaces: bool) -> None:
        characters = [chr(code) for code in itertools.chain(*_CODES)]
        # All characters in one call: a call for each takes seconds.
        replaced = replace(_APART + _APART.join(characters) + _APART).split(_APART)[1:-1]
        pairs = zip(characters, replaced, strict=True)
        self._changed = _Pages({ord(c): text for c, text in pairs if text != c})
        self._collapse_spaces = collapse_spaces
        self._sigmas = _Sigmas(sorted(dict.fromkeys("".join(replaced)))) if lower else None

    def __call__(self, texts: tf.Tensor) -> Normalized:
        """Normalises `<string>[N]`; bytes that are not UTF-8 are dropped."""
        raw = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        codes = tf.strings.unicode_decode(raw, "UTF-8")
        sources = tf.ragged.range(tf.cast(codes.row_lengths(), tf.int32))
        if self._collapse_spaces:
            codes, stays = _collapse(codes)
            codes, sources = keep(codes, stays), keep(sources, stays)
        codes, origins = self._changed.replace(codes)
        sources = codes.with_values(tf.gather(sources.values, origins))
        if self._sigmas:
            found = tf.reduce_any(codes.values == ord(SIGMA))
            lowered = tf.cond(
                found,
                lambda: self._sigmas.lower(codes.values, rows_of(codes)),
                lambda: codes.values,
            )
            codes = codes.with_values(lowered)
        return Normalized(raw, tf.strings.unicode_encode(codes, "UTF-8"), sources)


def _collapse(codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Returns the codes, white space as spaces, and which flat ones stay."""
    is_space = tf.reduce_any(codes.values[:, None] == _SPACE_CODES, axis=1)
    # A space stays where a word has just ended and another one follows.
    letters = tf.cast(~is_space, tf.int32)
    rows = rows_of(codes)
    of_row = tf.math.unsorted_segment_sum(letters, rows, codes.nrows())
    before = tf.cumsum(letters, exclusive=True)
    before -= of_rows(codes, tf.cumsum(of_row, exclusive=True))
    after_letter = tf.concat([[False], ~is_space], axis=0)[:-1]
    ends_word = after_letter & (before > 0) & (before < of_rows(codes, of_row))
    codes = codes.with_values(tf.where(is_space, ord(" "), codes.values))
    return codes, ~is_space | ends_word


class _Pages:
    """A table of characters in blocks of 256 codes, most of which share one row.

    Args:
      changed: Replacements by code.
    """

    def __init__(self, changed: Mapping[int, str]) -> None:
        pages = sorted({code // _PAGE_SIZE for code in changed})
        # All blocks without a change share page 0.
        self._page_of = np.zeros(sys.maxunicode // _PAGE_SIZE + 1, np.int32)
        self._page_of[pages] = np.arange(1, len(pages) + 1)
        rows = [[_KEPT]] * _PAGE_SIZE
        for page in pages:
            for code in range(page * _PAGE_SIZE, (page + 1) * _PAGE_SIZE):
                rows.append([ord(c) for c in changed[code]] if code in changed else [_KEPT])
        self._rows = RowTable(rows)

    def replace(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Replaces `<int32>[N, (L)]`.

        Returns:
          `<int32>[N, (M)]` codes, and the index of each one's origin in the flat values.
        """
        pages = tf.gather(self._page_of, codes.values // _PAGE_SIZE)
        values, origins, _ = self._rows.lookup(pages * _PAGE_SIZE + codes.values % _PAGE_SIZE)
        values = tf.where(values == _KEPT, tf.gather(codes.values, origins), values)
        return with_origins(codes, values, origins), origins


class _Sigmas:
    """Lower-cases capital sigmas as str.lower does.

    A sigma is final if a cased letter precedes it and none follows it; case-ignorable characters
    in between don't count. Which characters these are is found by calling str.lower.

    Args:
      characters: All characters that may occur, ascending.
    """

    def __init__(self, characters: Sequence[str]) -> None:
        kinds = np.select(
            [_makes_final("", characters), _makes_final("A", characters)],
            [_CASED, _IGNORED],
            _OTHER,
        )
        firsts = np.flatnonzero(np.diff(kinds, prepend=-1))
        # Runs of one kind: the first character's code, and the kind.
        self._codes = np.array([ord(characters[i]) for i in firsts.tolist()], np.int32)
        self._kinds = kinds[firsts].astype(np.int32)

    def lower(self, codes: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Replaces the sigmas among flat codes `<int32>[M]`, of the texts `rows` `<int64>[M]`."""
        kinds = tf.gather(self._kinds, tf.searchsorted(self._codes, codes, side="right") - 1)
        counts = tf.where(kinds != _IGNORED)[:, 0]
        # Among characters that count, neighbours are adjacent.
        cased, rows = tf.gather(kinds, counts) == _CASED, tf.gather(rows, counts)
        after_cased = cased[:-1] & (rows[:-1] == rows[1:])
        before_cased = cased[1:] & (rows[:-1] == rows[1:])
        is_final = tf.concat([[False], after_cased], 0) & ~tf.concat([before_cased, [False]], 0)
        final = tf.scatter_nd(counts[:, None], is_final, tf.shape(codes, tf.int64))
        small = tf.where(final, ord(_FINAL_SIGMA), ord(_SMALL_SIGMA))
        return tf.where(codes == ord(SIGMA), small, codes)


def _makes_final(before: str, characters: Sequence[str]) -> np.ndarray:
    """Returns after which characters, themselves after `before`, a last sigma is final."""
    words = (before + (SIGMA + _APART + before).join(characters) + SIGMA).lower().split(_APART)
    return np.array([word[-1] == _FINAL_SIGMA for word in words])
