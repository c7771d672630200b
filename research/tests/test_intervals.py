"""Verdicts: right where the difference is known, and rarely one where there is none."""

import numpy as np
import pytest

from research.experiments import claims, outcomes
from research.experiments.intervals import (
    AGREES,
    CANNOT_TELL,
    DISAGREES,
    LARGER,
    SMALLER,
    judge,
    resample,
)


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
        ([0.5, 0.5], False, CANNOT_TELL),
        ([0.0, 0.0], True, CANNOT_TELL),
        ([0.001, -0.001, 0.0], True, AGREES),
        ([0.5, 0.501, 0.499], True, DISAGREES),
        ([-0.5, -0.501, -0.499], True, DISAGREES),
        ([0.5, -0.5, 0.01], True, CANNOT_TELL),
        ([0.0, 0.0], False, CANNOT_TELL),
        # One passage of 300 more with each seed: the gains differ by rounding alone.
        ([251 / 300 - 250 / 300, 181 / 300 - 180 / 300], False, CANNOT_TELL),
        ([251 / 300 - 250 / 300, 181 / 300 - 180 / 300], True, CANNOT_TELL),
    ],
)
def test_verdicts(gains, equal, verdict):
    assert judge(gains, effect=0.05, equal=equal).verdict == verdict


@pytest.mark.parametrize(
    "gains, size",
    [
        ([0.01, 0.011, 0.012], SMALLER),
        ([-0.01, -0.011, -0.012], SMALLER),
        ([0.5, 0.51, 0.52], LARGER),
        ([-0.5, -0.51, -0.52], LARGER),
        ([0.04, 0.05, 0.06], ""),
        ([0.5, 0.5], ""),
    ],
)
def test_a_verdict_says_how_large_the_difference_is(gains, size):
    assert judge(gains, effect=0.05).size == judge(gains, effect=0.05, equal=True).size == size


def test_a_difference_as_large_as_the_effect_is_rarely_called_none():
    """2.5 % are expected; 1,000 sets have a standard deviation of 0.5 points."""
    gains = np.random.default_rng(9).normal(0.05, 0.003, [1000, 3])
    verdicts = [judge(row.tolist(), effect=0.05, equal=True).verdict for row in gains]
    assert 0.01 < verdicts.count(AGREES) / 1000 <= 0.04


@pytest.mark.parametrize("seeds", [3, 5])
def test_without_a_difference_few_sets_get_a_verdict(seeds):
    """5 % are expected; 1,000 sets have a standard deviation of 0.7 points."""
    gains = np.random.default_rng(7).normal(0, 0.03, [1000, seeds])
    verdicts = [judge(row.tolist(), effect=0.05).verdict for row in gains]
    assert 0.03 < 1 - verdicts.count(CANNOT_TELL) / 1000 <= 0.07


def test_the_gate_is_about_the_spread_not_the_verdict():
    wide = judge([0.9, -0.6, 0.2], effect=0.05)
    narrow = judge([0.001, -0.001, 0.0005], effect=0.05)
    assert (wide.verdict, narrow.verdict) == (CANNOT_TELL, CANNOT_TELL)
    assert (wide.could_see, narrow.could_see) == (False, True)


def synthetic(rng, seeds, documents, gain=0.0):
    """Returns two arms' sums by document: documents and seeds vary, arms differ by `gain`."""
    weights = rng.integers(5, 50, documents).astype(float)
    of_documents = rng.normal(5, 1, documents)
    means = of_documents + rng.normal(0, 0.05, [2, seeds, documents])
    means += rng.normal(0, 0.05, [2, seeds, 1])
    means[0] += gain
    return np.stack([means * weights, np.broadcast_to(weights, means.shape)], axis=-1)


def test_an_interval_over_documents_has_the_spread_of_both():
    """The variances of independent differences add: those of seeds, and of documents."""
    rng = np.random.default_rng(3)
    seeds, documents = 40, 60
    of_seed = rng.normal(0, 0.3, [seeds, 1])
    of_document = rng.normal(0, 0.5, [1, documents])
    gains = 1 + of_seed + of_document
    better = np.stack([gains, np.ones_like(gains)], axis=-1)
    worse = np.stack([np.zeros_like(gains), np.ones_like(gains)], axis=-1)
    low, high = resample(better, worse)
    half = 1.99 * np.sqrt(of_seed.var() / seeds + of_document.var() / documents)
    np.testing.assert_allclose([low, high], [gains.mean() - half, gains.mean() + half], atol=0.015)
    np.testing.assert_allclose(resample(worse, better, -1), [low, high])


def test_an_interval_of_a_difference_between_tests_has_the_spread_of_both():
    """The tests have different documents, so the variances of both add."""
    rng = np.random.default_rng(6)
    of_document = rng.normal(0, 0.5, [2, 60])
    sums = [np.stack([np.tile(row, [40, 1]), np.ones([40, 60])], axis=-1) for row in of_document]
    low, high = resample(1 * sums[0], sums[0] * [0, 1], 1, (sums[1], sums[1] * [0, 1]))
    mean = of_document[0].mean() - of_document[1].mean()
    half = 1.96 * np.sqrt(of_document.var(axis=1).sum() / 60)
    np.testing.assert_allclose([low, high], [mean - half, mean + half], atol=0.015)


@pytest.mark.parametrize("gains", [[1.0, 2.0, 3.0, 4.0, 5.0], [0.1, 0.3, 0.25]])
def test_without_differences_between_documents_it_is_the_t_interval(gains):
    better = np.stack([np.tile(gains, [8, 1]).T, np.ones([len(gains), 8])], axis=-1)
    found, expected = resample(better, better * [0, 1]), judge(gains, effect=1)
    # A percentile of 4,000 evenly spaced draws lies between two of them.
    np.testing.assert_allclose(found, [expected.low, expected.high], rtol=1e-3)


@pytest.mark.parametrize("seeds", [3, 5])
def test_an_interval_over_documents_rarely_misses_that_there_is_no_difference(seeds):
    """5 % is expected; 200 sets have a standard deviation of 1.5 points."""
    rng = np.random.default_rng(4)
    found = [resample(*synthetic(rng, seeds, 21)) for _ in range(200)]
    assert sum(low > 0 or high < 0 for low, high in found) <= 0.08 * len(found)
    low, _ = resample(*synthetic(rng, seeds, 21, gain=0.5))
    assert low > 0


def test_what_documents_do_to_both_arms_cancels():
    """Documents' means have a spread of 1: unpaired, 21 of them would leave an error of 0.2."""
    low, high = resample(*synthetic(np.random.default_rng(5), 5, 21))
    assert high - low < 0.3


def test_a_document_counts_by_its_weight():
    """Drawn once each, as in half of the draws, the two have a mean of 10 / 1,000, not 0.5."""
    better = np.array([[[10.0, 10.0], [0.0, 990.0]]] * 2)
    low, high = resample(better, better * [0, 1])
    assert (low, high) == (0, 1)
    middle = np.array([[[10.0, 10.0], [990.0, 990.0]]] * 2)
    assert resample(middle, middle * [0, 1]) == (1, 1)


def row(arm, seed, **known):
    """Returns a finished cell of which only `known` is known."""
    unknown = dict.fromkeys(("masked_lm_loss", "unigram_loss", "failed", "seconds"))
    unknown |= {"finetuned": False, "curve": [], "machine": "", "commit": ""}
    return outcomes.Row(arm=arm, seed=seed, is_finished=True, **unknown | known)


def over_documents(*documents):
    """Returns the interval of a claim whose better arm has 0.1 and 0.2 more in all documents."""
    rows = [
        row(
            arm,
            seed,
            metrics={"accuracy": more},
            finetuned=True,
            documents={"accuracy": [[(mean + more) * count, count] for mean, count in documents]},
        )
        for arm, gains in (("better", (0.1, 0.2)), ("worse", (0.0, 0.0)))
        for seed, more in enumerate(gains)
    ]
    claim = claims.Claim("", "accuracy", "better", "worse", 0.1)
    return outcomes.verdict(claim, rows).over_documents


def test_documents_without_records_are_not_drawn():
    """A draw of these alone would have no mean."""
    two = [(0.3, 10), (0.5, 20)]
    assert over_documents(*two, (0, 0)) == over_documents(*two) is not None
    assert over_documents((0.3, 10), (0, 0)) is None
