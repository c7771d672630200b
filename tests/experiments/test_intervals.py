"""Verdicts: right where the difference is known, and rarely one where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.intervals import AGREES, CANNOT_TELL, DISAGREES, judge


def test_five_pairs_by_hand():
    """Mean 3, standard deviation sqrt(2.5), and 2.776 is Student's t for 4 degrees of freedom."""
    found = judge([1.0, 2.0, 3.0, 4.0, 5.0], effect=2.0)
    half = 2.7764451 * np.sqrt(2.5 / 5)
    np.testing.assert_allclose([found.low, found.high], [3 - half, 3 + half], rtol=1e-6)
    assert found.least == pytest.approx(half, rel=1e-6)
    assert found.verdict == AGREES and found.could_see


@pytest.mark.parametrize(
    "gains, equal, verdict",
    [
        ([0.5, 0.6, 0.55], False, AGREES),
        ([-0.5, -0.6, -0.55], False, DISAGREES),
        ([0.5, -0.6, 0.1], False, CANNOT_TELL),
        ([0.5], False, CANNOT_TELL),
        ([], False, CANNOT_TELL),
        ([0.5, 0.5], False, AGREES),
        ([0.001, -0.001, 0.0], True, AGREES),
        ([0.5, 0.501, 0.499], True, DISAGREES),
        ([-0.5, -0.501, -0.499], True, DISAGREES),
        ([0.5, -0.5, 0.01], True, CANNOT_TELL),
        ([0.0, 0.0], False, CANNOT_TELL),
    ],
)
def test_verdicts(gains, equal, verdict):
    assert judge(gains, effect=0.05, equal=equal).verdict == verdict


@pytest.mark.parametrize("seeds", [3, 5])
def test_without_a_difference_few_sets_get_a_verdict(seeds):
    """5 % are expected; 1,000 sets have a standard deviation of 0.7 points."""
    gains = np.random.default_rng(7).normal(0, 0.03, [1000, seeds])
    verdicts = [judge(row.tolist(), effect=0.05).verdict for row in gains]
    assert 0.03 < 1 - verdicts.count(CANNOT_TELL) / 1000 <= 0.07


def test_a_known_difference_is_found():
    gains = np.random.default_rng(8).normal(0.3, 0.03, [1000, 3])
    verdicts = [judge(row.tolist(), effect=0.3).verdict for row in gains]
    assert verdicts.count(AGREES) >= 980 and DISAGREES not in verdicts


def test_the_gate_is_about_the_spread_not_the_verdict():
    wide = judge([0.9, -0.6, 0.2], effect=0.05)
    narrow = judge([0.001, -0.001, 0.0005], effect=0.05)
    assert (wide.verdict, narrow.verdict) == (CANNOT_TELL, CANNOT_TELL)
    assert (wide.could_see, narrow.could_see) == (False, True)
