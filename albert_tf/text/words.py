"""Words: those of a raw text, those of a segmented one, and which pieces start one."""

from __future__ import annotations

import enum
import functools
import itertools
import re
import string
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from albert_tf.text.characters import CJK

# --- of a raw text, as a tagger takes them -----------------------------------------------------


# Behind one of them an s that ends a word is a word of its own: "Anna's".
APOSTROPHES = "'\u2019"
# Beside ASCII's, the marks that may stand within a word: apostrophe, hyphens, dash of a range, dot.
_JOINING = "\u2019\u2010\u2011\u2013\u00b7"
# From here on no character is a space, a mark or an ideograph.
_END = 0x40000


class Kind(enum.IntEnum):
    """The kinds of characters that the splitting into words distinguishes."""

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
    # Marks belong to the stretch of letters that they stand in or beside.
    stretches = (Kind.LETTER if kind is Kind.MARK else kind for kind in kinds)
    for kind, group in itertools.groupby(stretches):
        end = start + sum(1 for _ in group)
        if kind is Kind.LETTER:
            words += _words_of_stretch(text, kinds, start, end)
        elif kind is Kind.ALONE:
            words += [(i, i + 1) for i in range(start, end)]
        start = end
    return words


def _words_of_stretch(text: str, kinds: list[Kind], start: int, end: int) -> list[tuple[int, int]]:
    """Splits the characters from start to end, which are letters and marks."""
    letters = [i for i in range(start, end) if kinds[i] is Kind.LETTER] or [end - 1]
    first, last = letters[0], letters[-1]
    cuts = [*range(start, first + 1), *range(last + 1, end + 1)]
    if first < last - 1 and text[last - 1] in APOSTROPHES and text[last] in "sS":
        cuts = sorted([*cuts, last - 1])
    return list(itertools.pairwise(cuts))


# --- of a text that is already segmented -------------------------------------------------------


def split_segmented(text: str, separator: str) -> list[str]:
    """Returns the words of segmented text; joined without anything between, they are the text.

    Two or more separators in a row stand for one that belongs to the text, as in "New   York", of
    which a segmenter made "New", " " and "York", and put spaces between.
    """
    once = re.escape(separator)
    parts = re.split(f"({once}(?:{once})+)|{once}", text)
    return [separator if separator in part else part for part in parts if part]


def find_in_words(words: Sequence[str], places: Sequence[int]) -> np.ndarray:
    """Returns which pieces of a text start one of its words, `<bool>[T]`.

    A piece that spans the beginning of a word does not start it, and joins it to the word before.

    Args:
      words: The text's words, normalised.
      places: For each piece, how many characters of the normalised text precede it. Here and in the
        words white space is not counted.
    """
    ends = np.cumsum([sum(map(len, word.split())) for word in words])
    # Where several pieces are at one place, all but the last are empty.
    return np.isin(places, [0, *ends]) & (np.diff(places, prepend=-1) > 0)


# --- of a vocabulary, for whole-word masking ---------------------------------------------------


# SentencePiece's symbol for a space.
SPACE_MARK = "▁"
# Begins a WordPiece piece that continues a word.
CONTINUATION_MARK = "##"
# Start a word when alone, continue one together with letters. The release omits ' < = and >.
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
# Scripts without spaces between words: how the Unicode names of their characters begin.
_UNSPACED_SCRIPTS = (
    *("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "YI"),
    *("THAI", "LAO", "KHMER", "MYANMAR", "TAI", "TIBETAN", "BALINESE", "JAVANESE"),
)


def find_in_sentencepiece(pieces: Sequence[str], letters: str) -> np.ndarray:
    """Returns which SentencePiece pieces start a word, `<bool>[V]`.

    A piece without a ▁ continues a word if it consists of letters and punctuation and is not just
    a single mark. A piece of digits, or with one of ' < = >, always starts a word.

    Args:
      pieces: The vocabulary.
      letters: "latin": as released, letters are a to z only, so that every piece with other
        characters starts a word. "unicode": letters and accents of all scripts, except those
        without spaces between words (Chinese, Japanese, Thai and others): their pieces are the
        closest to words that the vocabulary has, so each starts one.

    Source: create_pretraining_data.py, _is_start_piece_sp.
    """
    if letters not in ("latin", "unicode"):
        raise ValueError(f"`word_starts` must be 'latin' or 'unicode', got {letters!r}")
    is_letter = _is_latin_letter if letters == "latin" else _is_letter_of_spaced_script
    return np.array([not _continues_word(piece, is_letter) for piece in pieces], dtype=bool)


def _continues_word(piece: str, is_letter: Callable[[str], bool]) -> bool:
    if piece.startswith((SPACE_MARK, "<")) or piece in _PUNCTUATION:
        return False
    return all(char in _PUNCTUATION or is_letter(char) for char in piece)


def _is_latin_letter(char: str) -> bool:
    return char.lower() in string.ascii_lowercase


def _is_letter_of_spaced_script(char: str) -> bool:
    kind = unicodedata.category(char)[0]
    script = unicodedata.name(char, "").partition(" ")[0]
    return kind == "M" or (kind == "L" and script not in _UNSPACED_SCRIPTS)
