"""Lays out two segments as a row, and masks n-grams of it: a function of a seed per row."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from albert_tf.records.spec import NUM_SPECIALS, RowFormat

# --- settings ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class MaskingSettings:
    """How much is masked by n-gram masking, and with what."""

    vocab_size: int  # V; random pieces are drawn from all of [0, V), specials included.
    mask_id: int  # Id of [MASK].
    # Fraction of a sequence's tokens (specials counted) to mask; 0 masks none.
    masked_lm_prob: float = 0.15
    max_predictions_per_seq: int = 20  # Maximum number of masked tokens per sequence.
    ngram: int = 3  # Longest n-gram in words; n is drawn with p(n) proportional to 1/n.
    favor_shorter_ngram: bool = True  # False reverses the probabilities of n.
    do_whole_word_mask: bool = True  # False makes every piece a word.
    # Also permute as many other tokens among themselves, which are then predicted, too.
    do_permutation: bool = False
    # Shares of the masked tokens that become [MASK], and a random piece; the others stay.
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1

    def __post_init__(self) -> None:
        if self.mask_replace_prob + self.random_replace_prob > 1 + 1e-9:
            shares = f"{self.mask_replace_prob:g} and {self.random_replace_prob:g}"
            names = "`mask_replace_prob` and `random_replace_prob`"
            raise ValueError(f"{names}, {shares}, must not exceed 1 together: lower one of them")

    @property
    def label_slots(self) -> int:
        """P, the width of the label arrays."""
        return self.max_predictions_per_seq * (2 if self.do_permutation else 1)

    def shortfall(self, max_seq_length: int) -> str | None:
        """Returns a warning if a full row gets less than `masked_lm_prob` of its tokens masked."""
        wanted = self.masked_lm_prob * max_seq_length
        if self.max_predictions_per_seq >= wanted:
            return None
        return (
            f"max_predictions_per_seq={self.max_predictions_per_seq} masks "
            f"{100 * self.max_predictions_per_seq / max_seq_length:.1f} % of a full example, not "
            f"{100 * self.masked_lm_prob:.1f} %: "
            f"{count_full_row(self.masked_lm_prob, max_seq_length)} predictions would do that"
        )


def count_full_row(masked_lm_prob: float, max_seq_length: int) -> int:
    """Returns the smallest max_predictions_per_seq that limits no row's masks."""
    return max(1, math.ceil(masked_lm_prob * max_seq_length))


def count_predictions(lengths: np.ndarray, settings: MaskingSettings) -> np.ndarray:
    """Returns how many of `lengths` <int>[B] tokens to mask, <int64>[B]; specials are counted.

    The product is rounded half to even.
    """
    if settings.masked_lm_prob == 0:
        return np.zeros(len(lengths), np.int64)
    wanted = np.rint(np.asarray(lengths) * settings.masked_lm_prob).astype(np.int64)
    return np.clip(wanted, 1, settings.max_predictions_per_seq)


# --- random numbers, each a hash of a seed and its purpose -------------------------------------


# The purpose of a random number is part of its hash.
_MASKED, _EXCHANGED, _WORD_ORDER, _NGRAM_LENGTH, _REPLACEMENT, _RANDOM_PIECE = range(6)
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def derive_seeds(seed: int | np.ndarray, *counters: int | np.ndarray) -> np.ndarray:
    """Hashes a seed with counters, such as a place and a purpose.

    Args:
      seed: A number or <uint64>[...].
      *counters: Numbers >= 0, or integer arrays that broadcast with `seed`.

    Returns:
      <uint64>[...] of the broadcast shape. Each counter is one round of SplitMix64 (Steele,
      Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    if isinstance(seed, int):
        seed %= 2**64
    state = np.asarray(seed, np.uint64)
    with np.errstate(over="ignore"):
        for counter in counters:
            step = np.asarray(counter, np.uint64) + np.uint64(1)
            state = state + step * _GOLDEN_GAMMA
            # In place: a new array would cost more than the arithmetic.
            state ^= state >> np.uint64(30)
            state *= np.uint64(0xBF58476D1CE4E5B9)
            state ^= state >> np.uint64(27)
            state *= np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(31)
    return state


def _uniform(bits: np.ndarray) -> np.ndarray:
    """Maps <uint64>[...] to <float64>[...] in [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53


# --- rows --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Rows:
    """A batch of rows before masking."""

    input_ids: np.ndarray  # <int32>[B, S].
    lengths: np.ndarray  # <int>[B], tokens per row, specials included.
    segment_ids: np.ndarray  # <int32>[B, S], 1 for B and its [SEP].
    # <bool>[B, S], tokens that may be masked: not specials or padding, nor a [CLS] or [SEP] that
    # occurs in the text.
    candidates: np.ndarray
    word_starts: np.ndarray  # <bool>[B, S], of the text; False elsewhere.

    @classmethod
    def lay_out(
        cls,
        token_ids: np.ndarray,
        segment_lengths: np.ndarray,
        word_starts: np.ndarray,
        row_format: RowFormat,
    ) -> Rows:
        """Adds the special tokens to the segments.

        Args:
          token_ids: <int32>[B, T], tokens of A and then of B; anything after them is ignored.
          segment_lengths: <int>[B, 2], numbers of tokens in A and in B.
          word_starts: <bool>[B, T or more].
          row_format: S and the specials.

        Source: create_pretraining_data.py, create_instances_from_document.
        """
        # The lengths determine the columns of [CLS], the two [SEP] and the text.
        totals = segment_lengths.sum(1).astype(np.int32)[:, None]
        longest = min(token_ids.shape[1], row_format.max_seq_length - NUM_SPECIALS)
        most = np.max(totals, initial=0)
        if most > longest:
            raise ValueError(f"a row has {most} tokens, expected at most {longest}")
        columns = np.arange(row_format.max_seq_length, dtype=np.int32)
        first_sep = 1 + segment_lengths[:, :1].astype(np.int32)
        lengths = totals + NUM_SPECIALS
        is_text = (columns != 0) & (columns != first_sep) & (columns < lengths - 1)

        # Source and target are read from left to right, so all rows' tokens are one stream.
        given = columns[:longest] < totals
        input_ids = np.full(is_text.shape, row_format.pad_id, np.int32)
        input_ids[is_text] = token_ids[:, :longest][given]
        starts = np.zeros(is_text.shape, bool)
        starts[is_text] = word_starts[:, :longest][given]
        # Place the specials. They are never candidates, even where they occur in the text.
        input_ids[:, 0] = row_format.cls_id
        np.put_along_axis(input_ids, first_sep, row_format.sep_id, axis=1)
        np.put_along_axis(input_ids, lengths - 1, row_format.sep_id, axis=1)
        is_special = (input_ids == row_format.cls_id) | (input_ids == row_format.sep_id)
        return cls(
            input_ids=input_ids,
            lengths=lengths[:, 0],
            segment_ids=((columns > first_sep) & (columns < lengths)).astype(np.int32),
            candidates=is_text & ~is_special,
            word_starts=starts,
        )

    def mask(self, seeds: np.ndarray, settings: MaskingSettings) -> dict[str, np.ndarray]:
        """Masks n-grams of whole words in every row, by its seed in <uint64>[B].

        The words of a row are visited in random order. Each draws a length n; the n-gram that
        begins there (cut at the last word) is masked unless it overlaps an earlier one, and is
        shortened word by word if it exceeds the remaining budget. An n-gram may span the middle
        [SEP], and a piece after it that is no word start belongs to the word before it. Each masked
        piece becomes [MASK] (usually 80 %) or a random piece (10 %), or stays (10 %).

        Returns:
          The features of pretraining_spec but the order label and `token_boundary`. Unused label
          slots are 0 in all three label arrays.

        Source: ALBERT (arXiv 1909.11942), section 4.1; create_pretraining_data.py,
        create_masked_lm_predictions.
        """
        words = _Words.find(self, settings)
        budget = count_predictions(self.lengths, settings)

        # Choose the words to mask, and replace their tokens.
        chosen = np.zeros(words.begins.shape, bool)
        _choose_words(chosen, words, budget, derive_seeds(seeds, _MASKED), settings)
        masked_ids = self.input_ids.copy()
        at = words.tokens(chosen)
        masked_ids[at] = _replace(self.input_ids[at], seeds[at[0]], at[1], settings)

        # Choose words with as many other tokens, and permute these.
        if settings.do_permutation:
            taken = chosen.copy()
            _choose_words(chosen, words, budget, derive_seeds(seeds, _EXCHANGED), settings)
            at = words.tokens(chosen & ~taken)
            # Sorted by row and then at random: the tokens of each row are permuted.
            order = np.lexsort((derive_seeds(seeds[at[0]], _EXCHANGED, at[1]), at[0]))
            masked_ids[at] = masked_ids[at][order]
            at = words.tokens(chosen)

        columns = np.arange(self.input_ids.shape[1], dtype=self.lengths.dtype)
        return {
            "input_ids": masked_ids,
            "input_mask": (columns < self.lengths[:, None]).astype(np.int32),
            "segment_ids": self.segment_ids,
            **_fill_labels(self.input_ids, *at, settings),
        }

    def token_boundaries(self) -> np.ndarray:
        """Returns <int32>[B, S]: 1 where a word begins, [CLS] and [SEP] included."""
        columns = np.arange(self.input_ids.shape[1])
        is_special = (columns < self.lengths[:, None]) & ~self.candidates
        return (self.word_starts | is_special).astype(np.int32)


# --- masks -------------------------------------------------------------------------------------


# A word's number takes the low bits of a sort key.
MAX_SEQ_LENGTH = 2**16
_WORD_BITS = np.uint64(MAX_SEQ_LENGTH - 1)
_PAST_LAST_WORD = ~_WORD_BITS


class _Words(NamedTuple):
    """Where words begin, for at most W words per row and C candidates in all rows together."""

    candidates: np.ndarray  # <int64>[C], their places in the flattened rows.
    # <int64>[B, W + ngram], the candidate that begins each word; past the last word, the next
    # row's first candidate, so that differences are lengths of (truncated) n-grams.
    begins: np.ndarray
    counts: np.ndarray  # <int64>[B], words per row.
    row_size: int  # S.

    @classmethod
    def find(cls, rows: Rows, settings: MaskingSettings) -> _Words:
        """Finds the words of the candidates."""
        num_rows, row_size = rows.candidates.shape
        candidates = np.flatnonzero(rows.candidates)
        # The first candidate of each row begins a word even if its piece doesn't.
        bounds = np.searchsorted(candidates, np.arange(num_rows + 1) * row_size)
        starts = rows.word_starts.ravel()[candidates] | (not settings.do_whole_word_mask)
        starts[bounds[:-1][bounds[:-1] < bounds[1:]]] = True
        begins_in_order = np.flatnonzero(starts)
        counts = np.diff(np.searchsorted(begins_in_order, bounds))
        width = int(np.max(counts, initial=0)) + settings.ngram
        begins = np.repeat(bounds[1:, None], width, axis=1)
        begins[np.arange(width) < counts[:, None]] = begins_in_order
        return cls(candidates, begins, counts, row_size)

    def tokens(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows and columns, in row-major order, of words `chosen` <bool>[B, W + ngram]."""
        # A word past the last one has length 0.
        places, begins = np.flatnonzero(chosen), self.begins.reshape(-1)
        firsts = begins[places]
        sizes = begins[places + 1] - firsts
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.divmod(self.candidates[np.repeat(firsts, sizes) + within], self.row_size)


# Number of visits that are drawn at a time.
_VISITS = 32


def _choose_words(
    chosen: np.ndarray,
    words: _Words,
    budget: np.ndarray,
    seeds: np.ndarray,
    settings: MaskingSettings,
) -> None:
    """Marks new words in `chosen` <bool>[B, W + ngram], of at most `budget` <int>[B] tokens in all.

    All rows visit their k-th word at the same time; rows that used up their budget drop out.
    """
    # `chosen` and `begins` are indexed as flat arrays.
    order = _shuffle_words(words, seeds)
    flags, begins, width = chosen.reshape(-1), words.begins.reshape(-1), words.begins.shape[1]
    room = budget.copy()
    offsets = np.arange(settings.ngram)[:, None]
    active, k = np.flatnonzero((room > 0) & (words.counts > 0)), 0
    while active.size:
        # The n-grams <int64>[visit, offset, row] that begin at the next words of each row, and
        # their sizes up to each of their words.
        visits = np.arange(k, min(k + _VISITS, order.shape[1]))[:, None]
        firsts = (order[active, visits] & _WORD_BITS).astype(np.int64) + active * width
        spans = firsts[:, None] + offsets
        sizes = begins[spans + 1] - begins[spans[:, :1]]
        wanted = offsets < _draw_ngram_lengths(seeds[active], visits, settings)[:, None]
        wanted &= (visits < words.counts[active])[:, None]
        left = room[active]
        for span, size, in_ngram in zip(spans, sizes, wanted, strict=True):
            # Cut the n-gram to the words that fit; drop it if one of them was already chosen.
            members = in_ngram & (size <= left)
            members &= ~(flags[span] & members).any(0)
            flags[span[members]] = True
            left -= (size * members).max(0)
        room[active] = left
        k += len(visits)
        active = active[(left > 0) & (words.counts[active] > k)]


def _shuffle_words(words: _Words, seeds: np.ndarray) -> np.ndarray:
    """Returns each row's words in a random order, as the _WORD_BITS of <uint64>[B, W].

    Sorting keys that hold the word's number in their low bits is faster than an argsort.
    """
    numbers = np.arange(np.max(words.counts, initial=0), dtype=np.uint64)
    keys = derive_seeds(seeds[:, None], _WORD_ORDER, numbers)
    keys &= ~_WORD_BITS
    keys |= numbers
    keys[numbers >= words.counts[:, None].astype(np.uint64)] = _PAST_LAST_WORD
    keys.sort(axis=1)
    return keys


def _draw_ngram_lengths(
    seeds: np.ndarray, visits: int | np.ndarray, settings: MaskingSettings
) -> np.ndarray:
    """Draws the n-gram lengths in words for visits of rows, which broadcast with their seeds."""
    weights = 1 / np.arange(1, settings.ngram + 1)
    if not settings.favor_shorter_ngram:
        weights = weights[::-1]
    bounds = np.cumsum(weights / weights.sum())[:-1]
    drawn = _uniform(derive_seeds(seeds, _NGRAM_LENGTH, visits))
    return 1 + np.searchsorted(bounds, drawn, "right")


def _replace(
    ids: np.ndarray, seeds: np.ndarray, positions: np.ndarray, settings: MaskingSettings
) -> np.ndarray:
    draw = _uniform(derive_seeds(seeds, _REPLACEMENT, positions))
    bits = derive_seeds(seeds, _RANDOM_PIECE, positions) >> np.uint64(32)
    random_ids = (bits * np.uint64(settings.vocab_size) >> np.uint64(32)).astype(ids.dtype)
    kept_or_random = np.where(draw < 1 - settings.random_replace_prob, ids, random_ids)
    return np.where(draw < settings.mask_replace_prob, settings.mask_id, kept_or_random)


def _fill_labels(
    input_ids: np.ndarray, rows: np.ndarray, columns: np.ndarray, settings: MaskingSettings
) -> dict[str, np.ndarray]:
    """Returns the label arrays of the tokens at (rows, columns), given in row-major order."""
    shape = len(input_ids), settings.label_slots
    counts = np.bincount(rows, minlength=shape[0])
    slots = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    labels = {name: np.zeros(shape, np.int32) for name in ("masked_lm_positions", "masked_lm_ids")}
    labels["masked_lm_weights"] = np.zeros(shape, np.float32)
    labels["masked_lm_positions"][rows, slots] = columns
    labels["masked_lm_ids"][rows, slots] = input_ids[rows, columns]
    labels["masked_lm_weights"][rows, slots] = 1
    return labels
