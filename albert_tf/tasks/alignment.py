"""Which characters of a raw text the pieces of its normalised form stand for.

Normalising loses, adds and changes characters, so the two texts are aligned: a longest common
subsequence within a band around the diagonal. Which of several equally long ones is taken decides
where an answer begins, hence the release's order of preference is kept.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Sequence

import numpy as np

from albert_tf.tokenization import preprocess_text
from albert_tf.word_starts import SPACE_MARK

_UNALIGNED = -1
# A text of which fewer characters find their like is given up.
_LEAST_ALIGNED = 0.8
# No letter: it stands for one that normalises to none or to several.
_NO_LETTER = -2


@dataclasses.dataclass(frozen=True)
class Alignment:
    """Characters of a raw text beside its pieces.

    Attributes:
      starts: `<int32>[T]`, the first character of each piece.
      ends: `<int32>[T]`, its last character.
      piece_starts: `<int32>[N]`, for each character the piece that an answer from here starts in.
      piece_ends: `<int32>[N]`, the piece that an answer up to here ends in.
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
      The alignment; None where fewer than 80 % of the characters find their like.

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
    # Towards the pieces nothing follows the last aligned character.
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
    """Returns each character's code after a normalisation of its own."""
    table = {}
    for char in set(text):
        # White space alone would vanish: only what NFKD makes a space of is one here.
        plain = (
            unicodedata.normalize("NFKD", char) if char.isspace() else preprocess_text(char, lower)
        )
        table[char] = ord(plain) if len(plain) == 1 else _NO_LETTER
    return np.array([table[char] for char in text], np.int64)


def _prefixed(letters: np.ndarray, joined: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The usual case at once: the first piece adds a space, and nothing else differs.

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
    """Returns matching positions in both texts, in descending order; None if they are too few."""
    least = _LEAST_ALIGNED * len(letters)
    half_band = abs(len(letters) - len(joined)) + 5
    lengths, matches = _lengths(letters, joined, half_band)
    if _total(lengths, letters, joined, half_band) <= least:
        half_band *= 2
        lengths, matches = _lengths(letters, joined, half_band)
    if _total(lengths, letters, joined, half_band) < least:
        return None
    return _trace(lengths, matches, len(joined), half_band)


def _total(lengths: np.ndarray, letters: np.ndarray, joined: np.ndarray, half_band: int) -> int:
    return int(lengths[len(letters), len(joined) - len(letters) + half_band])


def _lengths(
    letters: np.ndarray, joined: np.ndarray, half_band: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lengths of common subsequences, and which characters match.

    Row i + 1 of the lengths holds, at k, that of letters[: i + 1] and joined[: j + 1] for
    j = i - half_band + k. Row 0 is that of no letters; beyond the band all is 0.
    """
    n, width = len(letters), 2 * half_band
    padded = np.full(n + width, -1, np.int64)
    end = min(half_band + len(joined), len(padded))
    padded[half_band:end] = joined[: end - half_band]
    matches = np.lib.stride_tricks.sliding_window_view(padded, width)[:n] == letters[:, None]
    lengths = np.zeros((n + 1, width + 1), np.int32)
    row = np.empty(width, np.int32)
    for i in range(n):
        np.add(lengths[i, :-1], matches[i], out=row)
        np.maximum(lengths[i, 1:], row, out=row)
        np.maximum.accumulate(row, out=lengths[i + 1, :-1])
    return lengths, matches


def _trace(
    lengths: np.ndarray, matches: np.ndarray, num_joined: int, half_band: int
) -> tuple[np.ndarray, np.ndarray]:
    """Walks back from both ends; prefers to skip a letter, then a joined one, then to match."""
    pairs = []
    i = len(matches) - 1
    k = num_joined - 1 - i + half_band
    while i >= 0 and lengths[i + 1, k]:
        up, left = lengths[i, k + 1], lengths[i + 1, k - 1] if k else 0
        if matches[i, k] and lengths[i, k] >= max(up, left):
            pairs.append((i, i - half_band + k))
            i -= 1
        elif left > up:
            k -= 1
        else:
            i, k = i - 1, k + 1
    first, second = zip(*pairs, strict=True)
    return np.array(first), np.array(second)


def _filled(index: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Gives positions without a partner one: starts and ends of what their neighbours leave.

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
