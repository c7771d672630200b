"""Distance and angle between the input and the output of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.console import figures
from albert_tf.inspection import models
from albert_tf.model.albert import AlbertModel

COLUMNS = ("model", "layer", "is_extra", "l2_distance", "angle_degrees")


def measure(model: AlbertModel, rows: Sequence[Any]) -> np.ndarray:
    """Measures each layer on rows of `input_ids`, `input_mask` and `segment_ids` `<int32>[S]`.

    Returns:
      `<float64>[L, 2]`: mean L2 distance, and mean angle in degrees, between input and output of
      each layer, over all positions but padding.

    Source: section 3.1 of the paper, figure 1.
    """
    # The mean over all positions, not the mean of the batches' means.
    total, count = np.zeros(()), 0
    for _, batch in models.batches(rows):
        real = batch["input_mask"] > 0
        states = [x[real].astype(np.float64) for x in models.layer_states(model, batch)]
        pairs = zip(states, states[1:], strict=False)
        total = total + np.array([_distance_and_angle(x, y) for x, y in pairs])
        count += int(real.sum())
    return total / count


def _distance_and_angle(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Returns L2 distance and angle in degrees, summed over the rows of `<float64>[T, H]`."""
    u, v = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    # The arc cosine would lose half the digits of a small angle.
    angles = 2 * np.arctan2(np.linalg.norm(u - v, axis=1), np.linalg.norm(u + v, axis=1))
    return np.linalg.norm(y - x, axis=1).sum(), np.degrees(angles).sum()


def table(found: Mapping[str, np.ndarray], extra_layers: int) -> str:
    """Returns the measures `<float64>[L, 2]` of models, by name, as the text of a .csv file."""
    rows = []
    for name, measures in found.items():
        for layer, values in enumerate(measures, start=1):
            is_extra = int(layer > len(measures) - extra_layers)
            rows.append([name, layer, is_extra, *(f"{value:.8g}" for value in values)])
    return models.csv_text(COLUMNS, rows)


def draw(found: Mapping[str, np.ndarray], extra_layers: int) -> bytes:
    """Returns the figure as a PNG; the lines of extra layers are dotted."""
    figure = figures.new_figure(11, 4.5)
    figure.suptitle("How far each layer takes its input", fontsize=12)
    panels = figure.subplots(1, 2)
    for column, (axes, measure) in enumerate(
        zip(panels, ("L2 distance", "angle, degrees"), strict=True)
    ):
        for number, (name, measures) in enumerate(found.items()):
            layers = np.arange(1, len(measures) + 1)
            own = len(measures) - extra_layers
            style = figures.style(number)
            axes.plot(layers[:own], measures[:own, column], label=name, **style)
            # Extra layers continue the line at the model's own last layer.
            if extra_layers:
                style |= {"linestyle": ":", "label": f"{name}, beyond its own layers"}
                axes.plot(layers[own - 1 :], measures[own - 1 :, column], **style)
        axes.set_xlabel("layer")
        axes.set_ylabel(f"{measure}, mean over pieces")
        axes.set_ylim(bottom=0)
        figures.whole_numbers(axes.xaxis)
    figures.legend_beside(panels[-1])
    return figures.png(figure)
