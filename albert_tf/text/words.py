"""The words of a raw text, as a tagger takes them."""

from __future__ import annotations

import enum
import functools
import itertools
import unicodedata

from albert_tf.text.characters import CJK

# Behind one of them an s that ends a word is a word of its own: "Anna's".
APOSTROPHES = "'\u2019"
# Beside ASCII's, the marks that may stand within a word: apostrophe, hyphens, dash of a range, dot.
_JOINING = "\u2019\u2010\u2011\u2013\u00b7"
# From here on no character is a space, a mark or an ideograph.
_END = 0x40000


class Kind(enum.IntEnum):
    """What a character is to the splitting into words."""

    LETTER = 0
    SPACE = 1
    # A word of its own wherever it stands.
    ALONE = 2
    # A word of its own before the first letter and after the last one.
    MARK = 3


@functools.lru_cache(maxsize=1 << 12)
def kind_of(char: str) -> Kind:
    """Returns a character's kind."""
    if char.isspace():
        return Kind.SPACE
    if CJK.match(char):
        return Kind.ALONE
    if unicodedata.category(char)[0] not in "PS":
        return Kind.LETTER
    return Kind.MARK if char.isascii() or char in _JOINING else Kind.ALONE


@functools.cache
def runs_of_kinds() -> list[tuple[int, Kind]]:
    """Returns the first code point of each run of characters of one kind, and that kind."""
    kinds = [*((code, kind_of(chr(code))) for code in range(_END)), (_END, Kind.LETTER)]
    return [next(run) for _, run in itertools.groupby(kinds, key=lambda pair: pair[1])]


def split_words(text: str) -> list[tuple[int, int]]:
    """Splits a raw text into words, much as corpora with tagged words have them.

    White space separates words. Each punctuation mark and symbol before the first letter (or digit,
    or whatever else) or after the last one is a word of its own, and so is 's at the end: "(Anna's
    1.5 m)," has the words ( Anna 's 1.5 m ) and the comma. Within a word only ASCII's marks and a
    few others stay; dashes, quotes and all other marks are words wherever they stand, like CJK
    ideographs.

    Returns:
      The first character of each word, and the one after its last.
    """
    kinds = [kind_of(char) for char in text]
    words, start = [], 0
    for kind, group in itertools.groupby(kinds, key=_without_marks):
        end = start + sum(1 for _ in group)
        if kind is Kind.LETTER:
            words += _words_of_stretch(text, kinds, start, end)
        elif kind is Kind.ALONE:
            words += [(i, i + 1) for i in range(start, end)]
        start = end
    return words


def _without_marks(kind: Kind) -> Kind:
    return Kind.LETTER if kind is Kind.MARK else kind


def _words_of_stretch(text: str, kinds: list[Kind], start: int, end: int) -> list[tuple[int, int]]:
    """Splits the characters from start to end, which are letters and marks."""
    letters = [i for i in range(start, end) if kinds[i] is Kind.LETTER] or [end - 1]
    first, last = letters[0], letters[-1]
    cuts = [*range(start, first + 1), *range(last + 1, end + 1)]
    if first < last - 1 and text[last - 1] in APOSTROPHES and text[last] in "sS":
        cuts = sorted([*cuts, last - 1])
    return list(itertools.pairwise(cuts))
