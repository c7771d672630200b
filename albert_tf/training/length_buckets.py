"""Length buckets: which rows go into which batch, padded to one of a few static lengths.

A plan is computed from the lengths of all rows. It depends only on its arguments, so that a run
resumed at step t needs only t. It does not depend on the replicas either: they divide each batch
among themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from albert_tf.config import AlbertConfig

# Most lengths where nothing else is asked for.
USUAL_COUNT = 6
# FLOP that a device computes in the time that XLA takes for one block of a training step, tracing
# included; in evaluation both are a third.
# Source: docs/performance.md: base's twelve blocks take 8 s on two cores, which train it at 500
# positions/s, and 26 s before an H100, which trains it at 610,000.
_FLOP_WHILE_COMPILING = {"CPU": 2e11, "GPU": 7e14}
# Most rows in all batches of a run: a plan takes 12 bytes for each, and 24 while it is made.
MOST_ROWS = 100_000_000


@dataclasses.dataclass(frozen=True)
class LengthBatches:
    """The batches of T steps."""

    rows: np.ndarray  # `<int64>[T, B]`, the rows of each batch.
    lengths: np.ndarray  # `<int64>[T]`, the number of positions its rows are padded to.
    weights: np.ndarray  # `<float32>[T, B]`, 0 for rows that only fill up the last batch.


def compile_price(config: AlbertConfig, on_cpu: bool) -> float:
    """Returns how many positions a model computes while XLA compiles a length, for any depth."""
    weights = config.hidden_size * (4 * config.hidden_size + 2 * config.intermediate_size)
    return _FLOP_WHILE_COMPILING["CPU" if on_cpu else "GPU"] / (6 * weights)


def choose_static_lengths(
    row_lengths: np.ndarray,
    max_seq_length: int,
    count: int = USUAL_COUNT,
    price: float = 0.0,
    on_cpu: bool = True,
) -> tuple[int, ...]:
    """Chooses the bucket lengths that minimise padding, each row being padded to the next one.

    Args:
      row_lengths: `<int>[N]`, positions of each row, at most `max_seq_length`.
      max_seq_length: The longest length allowed.
      count: Maximum number of lengths.
      price: Positions that each length must spare, since it has to be compiled.
      on_cpu: Else all but `max_seq_length` are multiples of 8, as matrix units and kernels of GPUs
        and TPUs want.

    Returns:
      The lengths in ascending order; no row is longer than the last.
    """
    multiple = 1 if on_cpu else 8
    rounded = -(-np.asarray(row_lengths) // multiple) * multiple
    candidates, rows = np.unique(np.minimum(rounded, max_seq_length), return_counts=True)
    # fitting[i]: rows that fit into the first i candidates.
    fitting = np.concatenate([[0], np.cumsum(rows)])
    # least[i]: fewest positions for the first fitting[i] rows, and the lengths that achieve them;
    # each iteration allows one more length.
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
    these. Rows of one static length stay in random order. A batch is that of all replicas, rows
    have `row_lengths` `<int>[N]` positions, and the static lengths are ascending.
    """
    buckets = _buckets(row_lengths, static_lengths)
    steps_an_epoch = len(buckets) // batch_size
    if not steps_an_epoch:
        raise ValueError(
            f"{len(buckets)} training examples are fewer than a batch of {batch_size}: lower "
            "`train_batch_size`, or give more examples"
        )
    epochs = range(-(-num_steps // steps_an_epoch))
    of_epochs = [_epoch(buckets, batch_size, steps_an_epoch, seed, epoch) for epoch in epochs]
    rows = np.concatenate([np.empty((0, batch_size), np.int64), *of_epochs])[:num_steps]
    weights = np.ones(rows.shape, np.float32)
    return LengthBatches(rows, _batch_lengths(rows, buckets, static_lengths), weights)


def epoch_batches(
    row_lengths: np.ndarray, batch_size: int, static_lengths: Sequence[int], seed: int, epoch: int
) -> list[np.ndarray]:
    """Returns the rows of each batch of an epoch, as in training_batches.

    The rows that are left, fewer than `batch_size`, are a last batch.
    """
    buckets = _buckets(row_lengths, static_lengths)
    whole = _epoch(buckets, batch_size, len(buckets) // batch_size, seed, epoch)
    rest = np.setdiff1d(np.arange(len(buckets)), whole)
    return [*whole, *([rest] if len(rest) else [])]


def evaluation_batches(
    row_lengths: np.ndarray, batch_size: int, static_lengths: Sequence[int]
) -> LengthBatches:
    """Plans one pass over all rows, longest first: running out of memory shows at once.

    The last batch is filled up by repeating one of its rows, with weight 0.
    """
    buckets = _buckets(row_lengths, static_lengths)
    order = np.argsort(-buckets, kind="stable")
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
    # Stable: rows of one length stay in the order drawn.
    batches = order[np.argsort(buckets[order], kind="stable")].reshape(-1, batch_size)
    return batches[rng.permutation(len(batches))]


def _batch_lengths(
    rows: np.ndarray, buckets: np.ndarray, static_lengths: Sequence[int]
) -> np.ndarray:
    return np.asarray(static_lengths, np.int64)[buckets[rows].max(axis=1, initial=0)]
