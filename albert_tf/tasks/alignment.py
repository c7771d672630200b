"""Maps the pieces of a normalised text to the characters of the raw text.

Normalisation drops, adds and changes characters, so the two texts are aligned by a longest common
subsequence within a band around the diagonal. Which of several equally long ones is chosen decides
where an answer begins, so the release's order of preference is kept.

The release compares character by character, which fails where one normalises to several (a Hangul
syllable) or to none (a combining mark). Texts that it gives up on are compared letter by letter.
"""

from __future__ import annotations

import array
import dataclasses
import math
import unicodedata
from collections.abc import Sequence

import numpy as np

from albert_tf.text.sentence_piece import preprocess_text
from albert_tf.text.word_piece import UNKNOWN
from albert_tf.text.words import CONTINUATION_MARK, SPACE_MARK

# A text of which a smaller fraction of letters can be aligned is dropped.
_LEAST_ALIGNED = 0.8
# Stands for a letter that normalises to none or to several.
_NO_LETTER = -2
# Stands for a word that is unknown to WordPiece, whose letters are lost.
_NO_TEXT = "\0"


@dataclasses.dataclass(frozen=True)
class Alignment:
    """The alignment of a raw text's characters with its pieces.

    Attributes:
      starts: `<int32>[T]`, the first character of each piece.
      ends: `<int32>[T]`, its last character.
      piece_starts: `<int32>[N]`, for each character the first piece of an answer starting there.
      piece_ends: `<int32>[N]`, for each character the last piece of an answer ending there.
    """

    starts: np.ndarray
    ends: np.ndarray
    piece_starts: np.ndarray
    piece_ends: np.ndarray


def align(text: str, tokens: Sequence[str], lower: bool) -> Alignment | None:
    """Aligns a raw text with the pieces that its normalised form was split into.

    Args:
      text: Raw text of N characters.
      tokens: T pieces, of SentencePiece with ▁ for a space; if none has a ▁, of WordPiece.
      lower: Whether the text was lower-cased.

    Returns:
      The alignment; None if fewer than 80 % of the letters can be aligned. Spaces are letters, but
      not for WordPiece, which drops them.

    Source: squad_utils.py, convert_examples_to_features (_lcs_match, _convert_index).
    Differs: the release knows no WordPiece, and drops texts that only _by_letters can align.
    """
    has_spaces = any(SPACE_MARK in token for token in tokens)
    if has_spaces:
        pieces = [token.replace(SPACE_MARK, " ") for token in tokens]
    else:
        pieces = [_word_piece_text(token) for token in tokens]
    joined = "".join(pieces)
    if not text or not joined:
        return None
    pairs = _by_characters(text, joined, lower) if has_spaces else None
    if pairs is None:
        pairs = _by_letters(text, joined, lower, has_spaces)
    if pairs is None:
        return None

    piece_ends = np.cumsum([len(piece) for piece in pieces]) - 1
    piece_starts = np.concatenate([[0], piece_ends[:-1] + 1])
    piece_of = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
    of_text, of_joined = pairs
    starts, ends = _filled(of_joined, of_text, len(joined), len(text))
    # In this direction nothing follows the last aligned character.
    answer_starts, answer_ends = _filled(of_text, of_joined, len(text), int(of_joined.max()) + 1)
    return Alignment(
        starts=starts[piece_starts].astype(np.int32),
        ends=ends[piece_ends].astype(np.int32),
        piece_starts=piece_of[answer_starts].astype(np.int32),
        piece_ends=piece_of[answer_ends].astype(np.int32),
    )


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)


def _word_piece_text(token: str) -> str:
    if token == UNKNOWN:
        return _NO_TEXT
    return token.removeprefix(CONTINUATION_MARK) or token


def _by_characters(text: str, joined: str, lower: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns matching positions in both texts by the release's rule; None if too few match."""
    letters, joined_letters = _letters(text, lower), _codes(joined)
    pairs = _prefixed(letters, joined_letters)
    return _common_subsequence(letters, joined_letters) if pairs is None else pairs


def _by_letters(
    text: str, joined: str, lower: bool, has_spaces: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Does the same for all the letters that the characters of both texts normalise to.

    A character of several letters may be matched several times.
    """
    sides = []
    for side in (text, joined):
        table = _normalised(side, lower)
        plain = [table[char] if has_spaces else table[char].strip() for char in side]
        owners = np.repeat(np.arange(len(side)), [len(letters) for letters in plain])
        sides.append((_codes("".join(plain)), owners))
    (letters, owners), (joined_letters, joined_owners) = sides
    if not len(letters) or not len(joined_letters):
        return None
    pairs = _common_subsequence(letters, joined_letters)
    return None if pairs is None else (owners[pairs[0]], joined_owners[pairs[1]])


def _letters(text: str, lower: bool) -> np.ndarray:
    """Returns each character's code after normalising it on its own."""
    table = {
        char: ord(plain) if len(plain) == 1 else _NO_LETTER
        for char, plain in _normalised(text, lower).items()
    }
    return np.array([table[char] for char in text], np.int64)


def _normalised(text: str, lower: bool) -> dict[str, str]:
    """Returns what each character of a text is after normalising it on its own."""
    # On its own, white space would vanish: here only what NFKD turns into a space is one.
    return {
        char: unicodedata.normalize("NFKD", char)
        if char.isspace()
        else preprocess_text(char, lower)
        for char in set(text)
    }


def _prefixed(letters: np.ndarray, joined: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Handles the usual case fast: the first piece adds a space, and nothing else differs.

    No other common subsequence is as long, unless the text itself begins with a space.
    """
    if len(joined) != len(letters) + 1 or joined[0] != ord(" ") or letters[0] == ord(" "):
        return None
    if not np.array_equal(joined[1:], letters):
        return None
    return np.arange(len(letters)), np.arange(1, len(joined))


def _common_subsequence(
    letters: np.ndarray, joined: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns matching positions in both texts, in descending order; None if too few match."""
    least = _LEAST_ALIGNED * len(letters)
    band = _Band(letters, joined, abs(len(letters) - len(joined)) + 5)
    if band.total <= least:
        band = _Band(letters, joined, 2 * band.half_band)
    return None if band.total < least else band.trace()


class _Band:
    """Lengths of common subsequences of two texts, within a band around the diagonal.

    Row i + 1 holds at k the length for letters[: i + 1] and joined[: j + 1] with
    j = i - half_band + k. Row 0 is for no letters; outside the band all is 0. Only every n-th row
    is stored, n being the square root of their number, and those in between are recomputed on the
    way back: all rows would take gigabytes for a text of a megabyte.

    Args:
      letters: `<int64>[N]`.
      joined: `<int64>[M]`.
      half_band: Half the width of the band.

    Attributes:
      half_band: See above.
      total: Length of the longest common subsequence within the band.
    """

    def __init__(self, letters: np.ndarray, joined: np.ndarray, half_band: int) -> None:
        self.half_band = half_band
        self._letters, self._last = letters, len(joined) - 1
        width = 2 * half_band
        padded = np.full(len(letters) + width, -1, np.int64)
        end = min(half_band + len(joined), len(padded))
        padded[half_band:end] = joined[: end - half_band]
        self._rows = np.lib.stride_tricks.sliding_window_view(padded, width)
        self._step = math.isqrt(len(letters)) + 1
        kept = [np.zeros(width + 1, np.int32)]
        for first in range(0, len(letters), self._step):
            kept.append(self._lengths(first, kept[-1])[-1].copy())
        self._kept = kept
        self.total = int(kept[-1][self._last + 1 - len(letters) + half_band])

    def _lengths(self, first: int, row: np.ndarray) -> np.ndarray:
        """Returns the given row of letter `first`, and the rows of some letters after it."""
        letters = self._letters[first : first + self._step]
        lengths = np.zeros((len(letters) + 1, len(row)), np.int32)
        lengths[0] = row
        best = np.empty(len(row) - 1, np.int32)
        for i, letter in enumerate(letters):
            np.add(lengths[i, :-1], self._rows[first + i] == letter, out=best)
            np.maximum(lengths[i, 1:], best, out=best)
            np.maximum.accumulate(best, out=lengths[i + 1, :-1])
        return lengths

    def trace(self) -> tuple[np.ndarray, np.ndarray]:
        """Traces back from the ends; prefers skipping a letter, then a joined one, then a match."""
        pairs = array.array("q")
        i = len(self._letters) - 1
        k = self._last - i + self.half_band
        first = i + 1
        while i >= 0:
            if i < first:
                first = i // self._step * self._step
                lengths = self._lengths(first, self._kept[i // self._step])
            if not lengths[i - first + 1, k]:
                break
            up = lengths[i - first, k + 1]
            left = lengths[i - first + 1, k - 1] if k else 0
            is_match = self._rows[i, k] == self._letters[i]
            if is_match and lengths[i - first, k] >= max(up, left):
                pairs.extend((i, i - self.half_band + k))
                i -= 1
            elif left > up:
                k -= 1
            else:
                i, k = i - 1, k + 1
        matched = np.array(pairs, np.int64).reshape(-1, 2)
        return matched[:, 0], matched[:, 1]


def _filled(
    places: np.ndarray, partners: np.ndarray, length: int, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fills in unaligned positions with the start and end of the gap between their neighbours.

    Args:
      places: `<int>[P]`, aligned positions in [0, length); one may occur several times.
      partners: `<int>[P]`, their partners in [0, limit), in the same order as they.
      length: Number of positions N.
      limit: Number of partners.

    Returns:
      `<int>[N]` twice: the partner as a start and as an end.
    """
    first, last = np.full(length, limit), np.full(length, -1)
    np.minimum.at(first, places, partners)
    np.maximum.at(last, places, partners)
    aligned = last >= 0
    front = np.maximum.accumulate(last)
    rear = np.minimum.accumulate(first[::-1])[::-1]
    gap = rear > front + 1
    starts = np.where(aligned, first, np.where(gap, front + 1, np.minimum(rear, limit - 1)))
    ends = np.where(aligned, last, np.where(gap, rear - 1, np.maximum(front, 0)))
    return starts, ends
