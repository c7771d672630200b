"""Chi-square tests of counts, without SciPy.

A correct program fails such a test for one seed in 10,000 (P_VALUE); tests fix their seeds.
"""

import numpy as np

P_VALUE = 1e-4
_NORMAL_QUANTILE = 3.719  # of 1 - P_VALUE


def assert_distribution(counts: np.ndarray, shares: np.ndarray) -> None:
    """Checks that counts come from a distribution with these shares."""
    counts, shares = np.asarray(counts, float), np.asarray(shares, float)
    expected = counts.sum() * shares / shares.sum()
    _assert_small(((counts - expected) ** 2 / expected).sum(), len(counts) - 1)


def assert_same_distribution(first: np.ndarray, second: np.ndarray) -> None:
    """Checks that two rows of counts come from one distribution; the rare end is pooled."""
    table = np.array([first, second], float)
    column = 1
    while column < table.shape[1] and table[:, column:].sum(1).min() >= 10:
        column += 1
    table = np.column_stack([table[:, : column - 1], table[:, column - 1 :].sum(1)])
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    _assert_small(((table - expected) ** 2 / expected).sum(), table.shape[1] - 1)


def _assert_small(statistic: float, degrees: int) -> None:
    # The chi-square quantile by Wilson and Hilferty (1931); off by under 2 % here.
    spread = 2 / (9 * degrees)
    limit = degrees * (1 - spread + _NORMAL_QUANTILE * np.sqrt(spread)) ** 3
    assert statistic < limit, f"chi-square {statistic:.1f} at {degrees} degrees, limit {limit:.1f}"
