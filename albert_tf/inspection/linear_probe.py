"""The linear probe: a logistic regression on standardised features, by scikit-learn."""

from __future__ import annotations

import importlib.util

import numpy as np


def check_installed() -> None:
    """Checks up front that probes can be trained.

    Raises:
      ImportError: If scikit-learn is not installed.
    """
    if not importlib.util.find_spec("sklearn"):
        raise ImportError(
            "probes need scikit-learn, which is not installed: pip install 'albert_tf[inspect]'"
        )


def probe_hits(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Trains a probe, and returns where it is right.

    Args:
      train: `<float>[M, F]` features.
      train_labels: `<int>[M]`, of at least two classes.
      test: `<float>[N, F]`.
      labels: `<int>[N]`.

    Returns:
      `<float64>[N]`, 1 or 0.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000))
    return (probe.fit(train, train_labels).predict(test) == labels).astype(np.float64)
