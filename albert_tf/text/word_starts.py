"""Finds the pieces of a vocabulary, or of a segmented text, that start a word."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

# SentencePiece's symbol for a space.
SPACE_MARK = "▁"
# Begins a WordPiece piece that continues a word.
CONTINUATION_MARK = "##"
# Marks that start a word alone, but continue one with letters. The release omits ' < = and >.
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
# The Unicode names of characters of scripts without spaces between words begin with one of these.
_UNSPACED_SCRIPTS = (
    *("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "YI"),
    *("THAI", "LAO", "KHMER", "MYANMAR", "TAI", "TIBETAN", "BALINESE", "JAVANESE"),
)


def find_in_words(words: Sequence[str], places: Sequence[int]) -> np.ndarray:
    """Returns which pieces of a text start one of its words, `<bool>[T]`.

    A piece that spans the beginning of a word does not start it, and joins it to the word before.

    Args:
      words: The text's words, normalised.
      places: For each piece, how many characters of the normalised text precede it, without white
        space.
    """
    ends = np.cumsum([sum(map(len, word.split())) for word in words])
    # Where several pieces are at one place, all but the last are empty.
    return np.isin(places, [0, *ends]) & (np.diff(places, prepend=-1) > 0)


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
    category = unicodedata.category(char)[0]
    script = unicodedata.name(char, "").partition(" ")[0]
    return category == "M" or (category == "L" and script not in _UNSPACED_SCRIPTS)
