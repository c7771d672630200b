"""Paired differences of two arms -> an interval and a verdict."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95
_RESAMPLES = 4000
_BOOTSTRAP_SEED = 0
# Rounding makes equal differences of two accuracies differ by at most this.
_ROUNDING = 1e-12
AGREES, DISAGREES, CANNOT_TELL = "agrees", "disagrees", "cannot tell"
SMALLER, LARGER = "smaller than the effect", "larger than the effect"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The seeds' answer to a claim.

    Attributes:
      verdict: AGREES, DISAGREES or CANNOT_TELL.
      pairs: Number of seeds with both arms.
      gain: Mean difference, above 0 if as claimed; None without pairs.
      low, high: Its t-interval; None with fewer than two pairs, or if all gains are equal. Then
        the verdict is CANNOT_TELL.
      least: The smallest mean difference that would have excluded 0, given the spread between
        seeds: half the interval.
      could_see: Whether `least` is at most the effect that the claim is about.
      size: How the difference compares with that effect, whatever its sign: SMALLER or LARGER if
        the whole interval is, else "".
      over_documents: An interval that resamples documents, too: see `resample`. It does not affect
        the verdict; None if it is not known.
    """

    verdict: str
    pairs: int
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    least: float | None = None
    could_see: bool = False
    size: str = ""
    over_documents: tuple[float, float] | None = None

    @property
    def sign(self) -> str:
        """The side of 0 on which the whole interval lies; "" if it contains 0 or there is none."""
        if self.low is None or self.low <= 0 <= self.high:
            return ""
        return "above 0" if self.low > 0 else "below 0"


def judge(gains: Sequence[float], effect: float, equal: bool = False) -> Verdict:
    """Judges a claim.

    Args:
      gains: Differences of seeds' metrics, above 0 if as claimed.
      effect: The smallest difference worth seeing.
      equal: Whether the claim is that the difference is smaller than `effect` either way.

    Returns:
      The verdict. A claimed difference is judged by the interval's side of 0; claimed equality by
      whether the interval lies within `effect` of 0, or wholly beyond it.
    """
    if len(gains) < 2:
        return Verdict(CANNOT_TELL, len(gains), gains[0] if gains else None)
    mean = float(np.mean(gains))
    if np.ptp(gains) <= _ROUNDING:
        # Coarse accuracies can happen to differ equally: without spread nothing can be concluded.
        return Verdict(CANNOT_TELL, len(gains), mean)
    from scipy import stats  # It takes a second to import.

    interval = stats.ttest_1samp(gains, 0.0).confidence_interval(CONFIDENCE)
    low, high = float(interval.low), float(interval.high)
    least = (high - low) / 2
    smaller, larger = -effect < low and high < effect, low > effect or high < -effect
    agrees, disagrees = (smaller, larger) if equal else (low > 0, high < 0)
    verdict = AGREES if agrees else DISAGREES if disagrees else CANNOT_TELL
    size = SMALLER if smaller else LARGER if larger else ""
    return Verdict(verdict, len(gains), mean, low, high, least, least <= effect, size)


@functools.cache
def _even_draws(degrees: int) -> np.ndarray:
    """Returns evenly spaced quantiles of a t-distribution as draws, since its tails are heavy."""
    return stdtrit(degrees, (np.arange(_RESAMPLES) + 0.5) / _RESAMPLES)


def resample(
    better: np.ndarray,
    worse: np.ndarray,
    sign: int = 1,
    less: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[float, float]:
    """Returns an interval of the mean paired difference for other seeds and other documents.

    Documents are drawn with replacement, the same for all cells: a paired bootstrap. There are too
    few seeds for that: with five, 95 % intervals would miss in 16 %. So for each draw of documents
    the mean over seeds is drawn from its t-distribution. If documents do not differ, this is the
    t-interval. If seeds do not, 21 documents are few, too: it misses in some 8 %.

    Args:
      better: `<float>[seeds, documents, 2]`, a metric's sum and weight in each document.
      worse: The same for the other arm.
      sign: -1 if the lower metric is better.
      less: If the metric is a difference, both arms on the documents that are subtracted.

    Returns:
      The percentiles that hold CONFIDENCE between them.
    """
    rng = np.random.default_rng(_BOOTSTRAP_SEED)
    gains = sign * _draw_gains(better, worse, rng)
    if less is not None:
        gains -= sign * _draw_gains(*less, rng)
    num_seeds = len(better)
    errors = gains.std(axis=1, ddof=1) / np.sqrt(num_seeds)
    drawn = gains.mean(axis=1) + errors * rng.permutation(_even_draws(num_seeds - 1))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], method="hazen")
    return float(low), float(high)


def _draw_gains(better: np.ndarray, worse: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns each seed's difference on documents drawn with replacement, [draws, seeds]."""
    num_documents = better.shape[1]
    # How often each document is drawn.
    draws = rng.multinomial(num_documents, np.full(num_documents, 1 / num_documents), _RESAMPLES)

    def means(arm: np.ndarray) -> np.ndarray:
        sums, weights = np.moveaxis(np.tensordot(draws, arm, (1, 1)), -1, 0)
        return sums / weights

    return means(better) - means(worse)
