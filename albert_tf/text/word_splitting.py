"""Splits texts into words: raw text, and text that is already segmented."""

from __future__ import annotations

import enum
import functools
import itertools
import re
import unicodedata

from albert_tf.text.characters import CJK

# An s at the end of a word is, with the apostrophe before it, a word of its own: "Anna's".
APOSTROPHES = "'\u2019"
# Besides ASCII's, marks that may stand within a word: apostrophe, hyphens, dash of a range, dot.
_JOINING = "\u2019\u2010\u2011\u2013\u00b7"
# From here on no character is a space, a mark or an ideograph.
_END = 0x40000


class CharacterClass(enum.IntEnum):
    """The classes of characters that the splitting into words distinguishes."""

    LETTER = 0
    SPACE = 1
    # A word of its own wherever it stands.
    ALONE = 2
    # A word of its own before the first letter and after the last one.
    MARK = 3


@functools.lru_cache(maxsize=1 << 12)
def character_class(char: str) -> CharacterClass:
    """Returns a character's class."""
    if char.isspace():
        return CharacterClass.SPACE
    if CJK.match(char):
        return CharacterClass.ALONE
    if unicodedata.category(char)[0] not in "PS":
        return CharacterClass.LETTER
    return CharacterClass.MARK if char.isascii() or char in _JOINING else CharacterClass.ALONE


@functools.cache
def runs_of_classes() -> list[tuple[int, CharacterClass]]:
    """Returns the first code point of each run of characters of one class, and that class."""
    classes = [
        *((code, character_class(chr(code))) for code in range(_END)),
        (_END, CharacterClass.LETTER),
    ]
    return [next(run) for _, run in itertools.groupby(classes, key=lambda pair: pair[1])]


def split_words(text: str) -> list[tuple[int, int]]:
    """Splits raw text into words by the conventions of tagged corpora.

    White space separates words. A punctuation mark or symbol before the first or after the last
    character of another class is a word of its own, and so is 's at the end: "(Anna's 1.5 m)," has
    the words ( Anna 's 1.5 m ) and the comma. Within a word, only ASCII's marks and a few others
    stay. Dashes, quotes and all other marks are words wherever they stand, like CJK ideographs.

    Returns:
      Where each word begins and ends.
    """
    classes = [character_class(char) for char in text]
    words, start = [], 0
    # Marks belong to the stretch of letters that they stand in or beside.
    stretches = (CharacterClass.LETTER if each is CharacterClass.MARK else each for each in classes)
    for each, group in itertools.groupby(stretches):
        end = start + sum(1 for _ in group)
        if each is CharacterClass.LETTER:
            words += _words_of_stretch(text, classes, start, end)
        elif each is CharacterClass.ALONE:
            words += [(i, i + 1) for i in range(start, end)]
        start = end
    return words


def _words_of_stretch(
    text: str, classes: list[CharacterClass], start: int, end: int
) -> list[tuple[int, int]]:
    """Splits the letters and marks from start to end."""
    letters = [i for i in range(start, end) if classes[i] is CharacterClass.LETTER] or [end - 1]
    first, last = letters[0], letters[-1]
    # Cut around each mark before the first or after the last letter, but not between these.
    cuts = [*range(start, first + 1), *range(last + 1, end + 1)]
    if first < last - 1 and text[last - 1] in APOSTROPHES and text[last] in "sS":
        cuts = sorted([*cuts, last - 1])
    return list(itertools.pairwise(cuts))


def split_segmented(text: str, separator: str) -> list[str]:
    """Returns the words of segmented text; joined without anything between, they are the text.

    Two or more separators in a row stand for one that belongs to the text: a segmenter that puts
    spaces between the words "New", " " and "York" writes "New   York".
    """
    once = re.escape(separator)
    parts = re.split(f"({once}(?:{once})+)|{once}", text)
    return [separator if separator in part else part for part in parts if part]
