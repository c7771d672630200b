"""Normalisation of text in the graph, by tables that Python's own Unicode tables were asked for.

TensorFlow's functions for this follow another version of Unicode, and its lower-casing the locale
of the process ("I" becomes a dotless one in Turkish). The normalisations of ALBERT change each
character by itself, but for one: a capital sigma becomes another letter at the end of a word.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.export.tables import RowTable, keep, of_rows, with_origins

_PAGE_SIZE = 256
# In a table: this character stays as it is.
_KEPT = -1
SIGMA = "Σ"
_FINAL_SIGMA, _SMALL_SIGMA = "ς", "σ"
# Without surrogates, and without the planes that hold no characters.
_CODES = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xF0000))


def _pattern_of(characters: Iterable[str]) -> str:
    """Returns a class of RE2 of ascending characters."""
    ranges: list[list[int]] = []
    for code in map(ord, characters):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(rf"\x{{{a:x}}}-\x{{{b:x}}}" for a, b in ranges) + "]"


_SPACE_CODES = [code for code in range(0x10000) if chr(code).isspace()]
# What str.strip takes off, as a class of RE2.
SPACES = _pattern_of(map(chr, _SPACE_CODES))


@dataclasses.dataclass(frozen=True)
class Normalized:
    """Texts after a normalisation.

    Attributes:
      raw: `<string>[N]`, the texts as UTF-8 without what was none.
      texts: `<string>[N]`.
      sources: `<int32>[N, (L)]`, for each character of `texts` the one of `raw` that it is from.
    """

    raw: tf.Tensor
    texts: tf.Tensor
    sources: tf.RaggedTensor


class Normalizer:
    """Normalises texts, character by character.

    Args:
      replace: Gives for a character what takes its place.
      lower: Whether capital sigmas, which `replace` leaves, become small ones.
      collapse_spaces: Whether, before all that, runs of white space become one space, and those at
        both ends go.
    """

    def __init__(self, replace: Callable[[str], str], lower: bool, collapse_spaces: bool) -> None:
        table = {code: replace(chr(code)) for code in itertools.chain(*_CODES)}
        self._changed = _Pages({c: text for c, text in table.items() if text != chr(c)})
        self._collapse_spaces = collapse_spaces
        self._sigma_rules = _sigma_rules(sorted(set("".join(table.values())))) if lower else ()

    def __call__(self, texts: tf.Tensor) -> Normalized:
        """Normalises `<string>[N]`; bytes that are not UTF-8 go."""
        raw = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        codes = tf.strings.unicode_decode(raw, "UTF-8")
        sources = tf.ragged.range(tf.cast(codes.row_lengths(), tf.int32))
        if self._collapse_spaces:
            codes, stays = _collapse(codes)
            codes, sources = keep(codes, stays), keep(sources, stays)
        codes, origins = self._changed.replace(codes)
        sources = codes.with_values(tf.gather(sources.values, origins))
        texts = tf.strings.unicode_encode(codes, "UTF-8")
        if self._sigma_rules:
            found = tf.reduce_any(codes.values == ord(SIGMA))
            texts = tf.cond(found, lambda: self._lower_sigmas(texts), lambda: texts)
        return Normalized(raw, texts, sources)

    def _lower_sigmas(self, texts: tf.Tensor) -> tf.Tensor:
        for pattern, rewrite in self._sigma_rules:
            texts = tf.strings.regex_replace(texts, pattern, rewrite)
        return texts


def _collapse(codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Returns the codes with all white space as spaces, and which of the flat ones stay."""
    is_space = tf.reduce_any(codes.values[:, None] == _SPACE_CODES, axis=1)
    # A space stays where a word has just ended and another one follows.
    letters = tf.cast(~is_space, tf.int32)
    rows = codes.value_rowids()
    of_row = tf.math.unsorted_segment_sum(letters, rows, codes.nrows())
    before = tf.cumsum(letters, exclusive=True)
    before -= of_rows(codes, tf.cumsum(of_row, exclusive=True))
    after_letter = tf.concat([[False], ~is_space], axis=0)[:-1]
    ends_word = after_letter & (before > 0) & (before < of_rows(codes, of_row))
    codes = codes.with_values(tf.where(is_space, ord(" "), codes.values))
    return codes, ~is_space | ends_word


class _Pages:
    """A table of characters: blocks of 256 codes, of which most have no row of their own.

    Args:
      changed: By code, what takes the place of a character.
    """

    def __init__(self, changed: Mapping[int, str]) -> None:
        pages = sorted({code // _PAGE_SIZE for code in changed})
        # Page 0 is that of all blocks without a change.
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
          `<int32>[N, (M)]` codes, and for each of them the index of its origin in the flat values.
        """
        pages = tf.gather(self._page_of, codes.values // _PAGE_SIZE)
        values, origins, _ = self._rows.lookup(pages * _PAGE_SIZE + codes.values % _PAGE_SIZE)
        values = tf.where(values == _KEPT, tf.gather(codes.values, origins), values)
        return with_origins(codes, values, origins), origins


def _sigma_rules(characters: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Returns patterns and rewrites that lower sigmas as str.lower does.

    A sigma is final if a cased letter stands before it and none after it; characters between that
    case ignores don't count. Which ones these are, str.lower itself is asked.
    """
    cased = [c for c in characters if (c + SIGMA).lower()[-1] == _FINAL_SIGMA]
    of_word = {c for c in characters if ("A" + c + SIGMA).lower()[-1] == _FINAL_SIGMA}
    letter, ignored = _pattern_of(cased), _pattern_of(sorted(of_word.difference(cased)))
    not_final = (f"{SIGMA}({ignored}*{letter})", _SMALL_SIGMA + r"\1")
    # Twice, as matches don't overlap: in a run of sigmas the first pass finds every other one.
    return (
        not_final,
        not_final,
        (f"({letter}{ignored}*){SIGMA}", r"\1" + _FINAL_SIGMA),
        (SIGMA, _SMALL_SIGMA),
    )
