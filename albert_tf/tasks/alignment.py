"""Maps the pieces of a normalised text to the characters of the raw text.

Normalisation drops, adds and changes characters, so the two texts are aligned by a longest common
subsequence within a band around the diagonal. Which of several equally long ones is chosen decides
where an answer begins, so the release's order of preference is kept.
"""

from __future__ import annotations

import array
import dataclasses
import math
import unicodedata
from collections.abc import Sequence

import numpy as np

from albert_tf.text.sentence_piece import preprocess_text
from albert_tf.text.word_starts import SPACE_MARK

_UNALIGNED = -1
# A text of which a smaller fraction of characters can be aligned is dropped.
_LEAST_ALIGNED = 0.8
# Stands for a letter that normalises to none or to several.
_NO_LETTER = -2


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
      tokens: T pieces, with ▁ for a space.
      lower: Whether the text was lower-cased.

    Returns:
      The alignment; None if fewer than 80 % of the characters can be aligned.

    Source: squad_utils.py, convert_examples_to_features (_lcs_match, _convert_index).
    """
    pieces = [token.replace(SPACE_MARK, " ") for token in tokens]
    joined = "".join(pieces)
    if not text or not joined:
        return None
    letters, joined_letters = _letters(text, lower), _codes(joined)
    pairs = _prefixed(letters, joined_letters)
    if pairs is None:
        pairs = _common_subsequence(letters, joined_letters)
    if pairs is None:
        return None
    of_text = np.full(len(text), _UNALIGNED)
    of_joined = np.full(len(joined), _UNALIGNED)
    of_text[pairs[0]], of_joined[pairs[1]] = pairs[1], pairs[0]

    piece_ends = np.cumsum([len(piece) for piece in pieces]) - 1
    piece_starts = np.concatenate([[0], piece_ends[:-1] + 1])
    piece_of = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
    starts, ends = _filled(of_joined, len(text))
    # In this direction nothing follows the last aligned character.
    answer_starts, answer_ends = _filled(of_text, int(pairs[1].max()) + 1)
    return Alignment(
        starts=starts[piece_starts].astype(np.int32),
        ends=ends[piece_ends].astype(np.int32),
        piece_starts=piece_of[answer_starts].astype(np.int32),
        piece_ends=piece_of[answer_ends].astype(np.int32),
    )


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)


def _letters(text: str, lower: bool) -> np.ndarray:
    """Returns each character's code after normalising it on its own."""
    table = {}
    for char in set(text):
        # On its own, white space would vanish: here only what NFKD turns into a space is one.
        plain = (
            unicodedata.normalize("NFKD", char) if char.isspace() else preprocess_text(char, lower)
        )
        table[char] = ord(plain) if len(plain) == 1 else _NO_LETTER
    return np.array([table[char] for char in text], np.int64)


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


def _filled(index: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Fills in unaligned positions with the start and end of the gap between their neighbours.

    Args:
      index: `<int>[N]`, each position's partner in [0, limit), ascending, or _UNALIGNED.
      limit: Number of partners.

    Returns:
      `<int>[N]` twice: the partner as a start and as an end.
    """
    aligned = index != _UNALIGNED
    front = np.maximum.accumulate(np.where(aligned, index, -1))
    rear = np.minimum.accumulate(np.where(aligned, index, limit)[::-1])[::-1]
    gap = rear > front + 1
    starts = np.where(aligned, index, np.where(gap, front + 1, np.minimum(rear, limit - 1)))
    ends = np.where(aligned, index, np.where(gap, rear - 1, np.maximum(front, 0)))
    return starts, ends
