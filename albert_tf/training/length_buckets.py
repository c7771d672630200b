"""Length buckets: which rows go into which batch, padded to one of a few static lengths.

A plan is computed from the lengths of all rows, and depends only on its arguments: a run that
resumes at step t needs only t. It does not depend on the replicas, which share each batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from albert_tf.config import AlbertConfig

# Default maximum number of lengths.
USUAL_COUNT = 6
# FLOP that a device performs while XLA traces and compiles one block of a training step. In
# evaluation, both the work and the compilation are a third.
# Source: docs/performance.md: compiling ALBERT-base's twelve blocks takes 8 s on two cores, which
# train 500 positions/s, and 26 s for an H100, which trains 610,000.
_FLOP_WHILE_COMPILING = {"CPU": 2e11, "GPU": 7e14}
# Largest total of rows in a run's batches: a plan takes 12 bytes per row, 24 while it is made.
MOST_ROWS = 100_000_000


@dataclasses.dataclass(frozen=True)
class LengthBatches:
    """The batches of T steps."""

    rows: np.ndarray  # `<int64>[T, B]`, the rows of each batch.
    lengths: np.ndarray  # `<int64>[T]`, the padded length of each batch.
    weights: np.ndarray  # `<float32>[T, B]`, 0 for rows that only fill the last batch.


def compile_price(config: AlbertConfig, on_cpu: bool) -> float:
    """Returns how many positions a model of any depth computes while XLA compiles one length."""
    weights = config.hidden_size * (4 * config.hidden_size + 2 * config.intermediate_size)
    return _FLOP_WHILE_COMPILING["CPU" if on_cpu else "GPU"] / (6 * weights)


def choose_static_lengths(
    row_lengths: np.ndarray,
    max_seq_length: int,
    count: int = USUAL_COUNT,
    price: float = 0.0,
    on_cpu: bool = True,
) -> tuple[int, ...]:
    """Chooses the bucket lengths that minimise padding; each row is padded to the next length.

    Args:
      row_lengths: `<int>[N]`, positions of each row, at most `max_seq_length`.
      max_seq_length: The longest length allowed.
      count: Maximum number of lengths.
      price: Positions of padding that each further length must save, since XLA compiles it.
      on_cpu: If false, lengths except `max_seq_length` are multiples of 8, as GPU and TPU kernels
        need.

    Returns:
      The lengths in ascending order; no row is longer than the last.
    """
    # Only lengths that occur (rounded up) can be best.
    multiple = 1 if on_cpu else 8
    rounded = -(-np.asarray(row_lengths) // multiple) * multiple
    candidates, rows = np.unique(np.minimum(rounded, max_seq_length), return_counts=True)
    # fitting[i]: number of rows that fit into the first i candidates.
    fitting = np.concatenate([[0], np.cumsum(rows)])
    # Dynamic programming. least[i]: fewest positions for the first fitting[i] rows; chosen[i]: the
    # lengths that achieve it. Each iteration allows one more length.
    least = np.where(fitting == 0, 0.0, np.inf)
    chosen: list[tuple[int, ...]] = [()] * len(least)
    cheapest = np.inf
    best: tuple[int, ...] = ()
    for number in range(1, 1 + min(count, len(candidates))):
        positions, previous = least.copy(), list(chosen)
        for i, length in enumerate(candidates.tolist(), start=1):
            totals = positions[:i] + (fitting[i] - fitting[:i]) * length
            j = int(np.argmin(totals))
            least[i], chosen[i] = totals[j], (*previous[j], length)
        # A length must save more padding than it costs to compile.
        if (cost := least[-1] + number * price) <= cheapest:
            cheapest, best = cost, chosen[-1]
    return best


def training_batches(
    row_lengths: np.ndarray,
    batch_size: int,
    static_lengths: Sequence[int],
    seed: int,
    num_steps: int,
) -> LengthBatches:
    """Plans a training run: every row once per epoch, without the last, incomplete batch.

    Each epoch shuffles all rows, sorts them by static length, cuts them into batches and shuffles
    the batches. Rows of one static length stay in random order. A batch is for all replicas; row i
    has `row_lengths[i]` positions, and the static lengths ascend.
    """
    buckets = _buckets(row_lengths, static_lengths)
    steps_an_epoch = len(buckets) // batch_size
    if not steps_an_epoch:
        raise ValueError(
            f"{len(buckets)} training examples are fewer than a batch of {batch_size}: lower "
            "`train_batch_size`, or give more examples"
        )
    # Plan whole epochs, and cut the last one off.
    epochs = range(-(-num_steps // steps_an_epoch))
    batches = [_epoch(buckets, batch_size, steps_an_epoch, seed, epoch) for epoch in epochs]
    rows = np.concatenate([np.empty((0, batch_size), np.int64), *batches])[:num_steps]
    weights = np.ones(rows.shape, np.float32)
    return LengthBatches(rows, _batch_lengths(rows, buckets, static_lengths), weights)


def epoch_batches(
    row_lengths: np.ndarray, batch_size: int, static_lengths: Sequence[int], seed: int, epoch: int
) -> list[np.ndarray]:
    """Returns the rows of each batch of an epoch, as in training_batches.

    The remaining rows, fewer than `batch_size`, form a last batch.
    """
    buckets = _buckets(row_lengths, static_lengths)
    whole = _epoch(buckets, batch_size, len(buckets) // batch_size, seed, epoch)
    rest = np.setdiff1d(np.arange(len(buckets)), whole)
    return [*whole, *([rest] if len(rest) else [])]


def evaluation_batches(
    row_lengths: np.ndarray, batch_size: int, static_lengths: Sequence[int]
) -> LengthBatches:
    """Plans one pass over all rows, longest first, so that a lack of memory shows at once.

    Repeats of its last row, with weight 0, fill the last batch.
    """
    buckets = _buckets(row_lengths, static_lengths)
    order = np.argsort(-buckets, kind="stable")
    # Rows to fill the last batch.
    filling = -len(order) % batch_size
    rows = np.concatenate([order, np.repeat(order[-1:], filling)]).reshape(-1, batch_size)
    weights = (np.arange(rows.size) < len(order)).astype(np.float32).reshape(rows.shape)
    return LengthBatches(rows, _batch_lengths(rows, buckets, static_lengths), weights)


def _buckets(row_lengths: np.ndarray, static_lengths: Sequence[int]) -> np.ndarray:
    """Returns the index of the shortest static length that each row fits into."""
    return np.searchsorted(static_lengths, row_lengths)


def _epoch(
    buckets: np.ndarray, batch_size: int, steps_an_epoch: int, seed: int, epoch: int
) -> np.ndarray:
    """Returns the rows of an epoch's batches, `<int64>[steps_an_epoch, B]`."""
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(buckets))[: steps_an_epoch * batch_size]
    # A stable sort keeps rows of one length in random order.
    batches = order[np.argsort(buckets[order], kind="stable")].reshape(-1, batch_size)
    return batches[rng.permutation(len(batches))]


def _batch_lengths(
    rows: np.ndarray, buckets: np.ndarray, static_lengths: Sequence[int]
) -> np.ndarray:
    return np.asarray(static_lengths, np.int64)[buckets[rows].max(axis=1, initial=0)]
