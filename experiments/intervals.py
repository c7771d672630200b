"""Paired differences of two arms -> an interval and a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
AGREES, DISAGREES, CANNOT_TELL = "agrees", "disagrees", "cannot tell"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the seeds say of a claim.

    Attributes:
      verdict: AGREES, DISAGREES or CANNOT_TELL.
      pairs: Number of seeds with both arms.
      gain: Mean difference, above 0 if as claimed; None without pairs.
      low, high: Its t-interval; None with fewer than two pairs.
      least: The smallest mean difference that would have excluded 0, given the spread between
        seeds: half the interval.
      could_see: Whether `least` is at most the effect that the claim is about.
    """

    verdict: str
    pairs: int
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    least: float | None = None
    could_see: bool = False


def judge(gains: Sequence[float], effect: float, equal: bool = False) -> Verdict:
    """Judges a claim.

    Args:
      gains: Differences of seeds' metrics, above 0 if as claimed.
      effect: The smallest difference worth seeing.
      equal: Whether the claim is that the difference is smaller than `effect` either way.

    Returns:
      The verdict. A claim of a difference is told from the interval's side of 0; one of none from
      whether the interval lies within `effect` of 0, or wholly beyond it.
    """
    if len(gains) < 2:
        return Verdict(CANNOT_TELL, len(gains), gains[0] if gains else None)
    mean = float(np.mean(gains))
    # Without any spread scipy's interval is not a number.
    low = high = mean
    if np.ptp(gains) > 0:
        interval = stats.ttest_1samp(gains, 0.0).confidence_interval(CONFIDENCE)
        low, high = float(interval.low), float(interval.high)
    if equal:
        agrees, disagrees = -effect < low and high < effect, low > effect or high < -effect
    else:
        agrees, disagrees = low > 0, high < 0
    verdict = AGREES if agrees else DISAGREES if disagrees else CANNOT_TELL
    least = (high - low) / 2
    return Verdict(verdict, len(gains), mean, low, high, least, least <= effect)
