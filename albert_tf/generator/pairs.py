"""Cuts documents into segment pairs: in order, swapped, or from two documents.

A pair is four offsets into the tokens of many documents, not the tokens themselves, so the
dupe_factor passes over a corpus cost only a few bytes per instance.
"""

from __future__ import annotations

import bisect
import dataclasses
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.records.specs import NUM_SPECIALS

_TRIES_FOR_ANOTHER_DOCUMENT = 10
_SHORTEST_TARGET = 2


@dataclasses.dataclass(frozen=True)
class PairSettings:
    """How pairs are drawn.

    Attributes:
      max_seq_length: S, tokens of an instance including its three special tokens.
      short_seq_prob: Share of documents per pass with a random, shorter target length.
      random_next_sentence: False: B is what follows A, or both are swapped (sentence order).
        True: B is what follows A, or comes from a random document (next sentence).
      single_segment: What to do with a chunk of one sentence. "random": take B from a random
        document, with label 1, though nothing is out of order. "split": split it at the start of
        one of its words, into a pair like any other; a single word is dropped.

    Raises:
      ValueError: If a number is out of range, or chunks are to be split where B may come from a
        random document.
    """

    max_seq_length: int
    short_seq_prob: float = 0.1
    random_next_sentence: bool = False
    single_segment: str = "random"

    def __post_init__(self) -> None:
        shortest = NUM_SPECIALS + _SHORTEST_TARGET
        if self.max_seq_length < shortest:
            raise ValueError(
                f"`max_seq_length` must be at least {shortest} (three special tokens and one "
                f"token for each segment), got {self.max_seq_length}"
            )
        if not 0 <= self.short_seq_prob <= 1:
            raise ValueError(f"`short_seq_prob` must be within [0, 1], got {self.short_seq_prob}")
        if self.single_segment not in ("random", "split"):
            raise ValueError(
                f"`single_segment` must be 'random' or 'split', got {self.single_segment!r}"
            )
        if self.single_segment == "split" and self.random_next_sentence:
            raise ValueError(
                "`single_segment=split` applies only to sentence order: leave out "
                "`random_next_sentence`"
            )


class SegmentPair(NamedTuple):
    """Tokens [a_begin, a_end) and [b_begin, b_end) of one instance.

    Attributes:
      label: 1 if B is not what follows A: swapped, or from a random document.
      single: 1 if the chunk was one sentence, paired as `single_segment` says.
      dropped: Tokens cut from the two segments for lack of room.
    """

    a_begin: int
    a_end: int
    b_begin: int
    b_end: int
    label: int
    single: int
    dropped: int


def draw_pairs(
    documents: Sequence[Sequence[int]],
    index: int,
    settings: PairSettings,
    rng: random.Random,
    word_starts: np.ndarray | None = None,
) -> list[SegmentPair]:
    """Cuts one document into the instances of one pass.

    Sentences are gathered up to the target length, drawn once per call, and split at random.
    `single_segment` says what becomes of a chunk of one sentence.

    Args:
      documents: For each document, where its sentences begin, ascending, then where the last ends.
      index: The document to cut; the others serve as random documents.
      settings: See PairSettings.
      rng: The only source of randomness.
      word_starts: <bool>[T], which tokens start a word; needed for single_segment "split".

    Source: create_pretraining_data.py, create_instances_from_document.
    """
    bounds = documents[index]
    max_tokens = settings.max_seq_length - NUM_SPECIALS
    target = max_tokens
    if rng.random() < settings.short_seq_prob:
        target = rng.randint(_SHORTEST_TARGET, max_tokens)

    pairs = []
    first, num_sentences = 0, len(bounds) - 1
    while first < num_sentences:
        end = _end_of_run(bounds, first, target)
        single = end - first == 1
        middle = end if single else rng.randint(first + 1, end - 1)
        border = bounds[middle]
        if single and settings.single_segment == "split":
            border = _draw_word_start(word_starts, bounds[first], bounds[end], rng)
        a, b = (bounds[first], border), (border, bounds[end])
        first = end
        if a[0] == border:
            continue
        label = 0
        if border == b[1] or (settings.random_next_sentence and rng.random() < 0.5):
            b = _draw_random_run(documents, index, target - (a[1] - a[0]), rng)
            label = 1
            # The rest, which would have been B, begins the next chunk.
            first = middle
        elif not settings.random_next_sentence and rng.random() < 0.5:
            a, b = b, a
            label = 1
        dropped = max(0, a[1] - a[0] + b[1] - b[0] - max_tokens)
        pairs.append(SegmentPair(*_truncate(a, b, max_tokens, rng), label, int(single), dropped))
    return pairs


def _end_of_run(bounds: Sequence[int], first: int, target: int) -> int:
    """Returns the end of the shortest run of sentences from `first` with `target` tokens.

    The run has at least one sentence, and ends with its document if that is shorter.
    """
    end = bisect.bisect_left(bounds, bounds[first] + target, first + 1)
    return min(end, len(bounds) - 1)


def _draw_word_start(word_starts: np.ndarray, begin: int, end: int, rng: random.Random) -> int:
    """Draws a word's first token after `begin` and before `end`; `begin` if there is none."""
    inner = np.flatnonzero(word_starts[begin + 1 : end])
    return begin + 1 + int(rng.choice(inner)) if len(inner) else begin


def _draw_random_run(
    documents: Sequence[Sequence[int]], index: int, target: int, rng: random.Random
) -> tuple[int, int]:
    for _ in range(_TRIES_FOR_ANOTHER_DOCUMENT):
        other = rng.randrange(len(documents))
        if other != index:
            break
    bounds = documents[other]
    first = rng.randrange(len(bounds) - 1)
    return bounds[first], bounds[_end_of_run(bounds, first, target)]


def _truncate(
    a: tuple[int, int], b: tuple[int, int], max_tokens: int, rng: random.Random
) -> tuple[int, int, int, int]:
    """Shortens the longer segment (B if equal) token by token, at a random end each time.

    How many tokens each segment loses is computed first; a segment's coin flips are one draw of
    bits.
    """
    length_a, length_b = a[1] - a[0], b[1] - b[0]
    if length_a + length_b <= max_tokens:
        return *a, *b
    kept_a = min(length_a, max(max_tokens - length_b, (max_tokens + 1) // 2))
    return (
        *_drop_tokens(a, length_a - kept_a, rng),
        *_drop_tokens(b, length_b - (max_tokens - kept_a), rng),
    )


def _drop_tokens(segment: tuple[int, int], count: int, rng: random.Random) -> tuple[int, int]:
    in_front = rng.getrandbits(count).bit_count() if count else 0
    return segment[0] + in_front, segment[1] - (count - in_front)
