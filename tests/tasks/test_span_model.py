"""The end of a span model: fitted to the ends of a squad_v2 model."""

import numpy as np
import pytest

from albert_tf.tasks import span_model
from albert_tf.tasks.span_model import Window


def windows_of(end: np.ndarray, count: int, seed: int = 0, noise: float = 0.0) -> list[Window]:
    """Returns windows whose ends are softmax(hidden @ end + noise)."""
    rng = np.random.default_rng(seed)
    windows = []
    for positions in rng.integers(5, 30, count):
        hidden = rng.standard_normal((positions, len(end)), np.float32) + 3
        logits = hidden @ end + noise * rng.standard_normal(positions)
        ends = np.exp(logits - logits.max())
        windows.append(Window(hidden, (ends / ends.sum()).astype(np.float32)))
    return windows


@pytest.mark.parametrize("scale", [0.5, 20.0])
def test_a_linear_end_is_recovered(scale):
    """Its argmax on windows that it was not fitted on; at 20, nearly all ends are certain."""
    end = scale * np.random.default_rng(1).standard_normal(12)
    found = span_model.fit_end(windows_of(end, 200))
    assert span_model.agreement(windows_of(end, 300, seed=2), found) > 0.97
    cosine = found @ end / np.linalg.norm(found) / np.linalg.norm(end)
    assert cosine > 0.999


def test_no_map_nearby_fits_better():
    """Neither fewer windows than dimensions nor ends that no map gives upset the fit."""
    windows = windows_of(np.ones(12), 7, noise=2.0)
    found = span_model.fit_end(windows).astype(np.float64)
    ridge = span_model._RIDGE * np.mean([window.hidden.var(axis=0).mean() for window in windows])
    least = span_model._loss(windows, found, ridge)
    for direction in np.eye(12):
        for size in (-1e-2, 1e-2):
            assert span_model._loss(windows, found + size * direction, ridge) > least


def test_derivatives_are_those_of_the_loss():
    windows = windows_of(np.ones(4), 5, noise=1.0)
    solution = np.array([0.3, -0.2, 0.5, 0.1])
    gradient, hessian = span_model._derivatives(windows, solution, 0.1)
    step = 1e-5
    for i, unit in enumerate(np.eye(4)):
        above, below = (solution + sign * step * unit for sign in (1, -1))
        losses = [span_model._loss(windows, point, 0.1) for point in (above, below)]
        assert gradient[i] == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=1e-6)
        gradients = [span_model._derivatives(windows, point, 0.1)[0] for point in (above, below)]
        expected = (gradients[0] - gradients[1]) / (2 * step)
        np.testing.assert_allclose(hessian[i], expected, rtol=1e-4, atol=1e-5)
