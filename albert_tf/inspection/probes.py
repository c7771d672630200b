"""Linear probes: what can be read from each layer, and from those of a fresh model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from albert_tf import figures
from albert_tf.inspection import inputs, models, tables
from albert_tf.inspection.linear_probe import probe_hits
from albert_tf.inspection.probe_data import Labelled
from albert_tf.model.albert import AlbertModel

COLUMNS = ("model", "layer", "train", "test", "accuracy", "control", "majority")
# One in so many groups of rows is held out.
_HELD_OUT = 5


def features(model: AlbertModel, data: Labelled) -> np.ndarray:
    """Returns what probes see of each layer's input and output, `<float32>[L + 1, N, F]`.

    Of a word that is the vector of its first piece, F = H. Of a row it is that of [CLS] beside the
    mean over all positions that are no padding, F = 2H.
    """
    parts = []
    begin = 0
    for count, batch in inputs.batches(data.rows):
        states = np.stack(models.layer_states(model, batch))[:, :count]
        if data.positions is None:
            weights = batch["input_mask"][:count].astype(np.float32)
            weights /= weights.sum(axis=1, keepdims=True)
            means = np.einsum("lbsh,bs->lbh", states, weights)
            parts.append(np.concatenate([states[:, :, 0], means], axis=-1))
        else:
            here = (data.row_numbers >= begin) & (data.row_numbers < begin + count)
            parts.append(states[:, data.row_numbers[here] - begin, data.positions[here]])
        begin += count
    return np.concatenate(parts, axis=1)


def held_out(data: Labelled, seed: int) -> np.ndarray:
    """Returns which labels are held out, `<bool>[N]`: of a fifth of the groups, drawn by a seed.

    Raises:
      ValueError: If only one label remains to train on, or none is held out.
    """
    groups = np.arange(len(data.rows)) if data.groups is None else data.groups
    names = np.random.default_rng(seed).permutation(np.unique(groups))
    if len(names) < _HELD_OUT:
        raise ValueError(
            f"`group_column` has {len(names)} values, expected at least {_HELD_OUT}, of which one "
            "is held out: name another column, or leave it out"
        )
    found = np.isin(groups[data.row_numbers], names[: len(names) // _HELD_OUT])
    if not found.any() or len(set(data.labels[~found])) < 2:
        raise ValueError(
            "`input_file` has too few labels for a probe: give more rows, or raise `max_examples`"
        )
    return found


def measure(model: AlbertModel, control: AlbertModel, data: Labelled, seed: int) -> np.ndarray:
    """Trains a probe on each layer of a model and of a control with random weights.

    Returns:
      `<float64>[L + 1, 2]`: accuracy on what is held out, of the model and of the control. Layer 0
      is the input of layer 1, which follows the E to H map.
    """
    test = held_out(data, seed)
    labels = data.labels
    accuracies = []
    for each in (model, control):
        layers = features(each, data)
        hits = [probe_hits(x[~test], labels[~test], x[test], labels[test]) for x in layers]
        accuracies.append(np.mean(hits, axis=1))
    return np.stack(accuracies, axis=1)


def majority(data: Labelled, seed: int) -> float:
    """Returns the accuracy of the most frequent label."""
    test = held_out(data, seed)
    return float(np.mean(data.labels[test] == np.bincount(data.labels[~test]).argmax()))


def table(found: Mapping[str, np.ndarray], data: Mapping[str, Labelled], seed: int) -> str:
    """Returns what was measured of models by name, on data, as the text of a .csv file."""
    rows = []
    for name, accuracies in found.items():
        test = held_out(data[name], seed)
        sizes = (np.sum(~test), np.sum(test))
        most_frequent = majority(data[name], seed)
        for layer, pair in enumerate(accuracies):
            values = (*pair, most_frequent)
            rows.append([name, layer, *sizes, *(f"{value:.4f}" for value in values)])
    return tables.csv_text(COLUMNS, rows)


def draw(found: Mapping[str, np.ndarray], data: Mapping[str, Labelled], seed: int) -> bytes:
    """Returns the figure, as a PNG; controls are dashed, the majority is dotted."""
    figure = figures.new_figure(7, 4.5)
    axes = figure.subplots()
    for number, (name, accuracies) in enumerate(found.items()):
        layers, color = np.arange(len(accuracies)), f"C{number}"
        axes.plot(layers, accuracies[:, 0], color=color, marker=".", label=name)
        axes.plot(layers, accuracies[:, 1], color=color, linestyle="--", label="random weights")
        axes.axhline(majority(data[name], seed), color=color, linestyle=":", label="majority")
    axes.set_xlabel("layer; 0 is the first layer's input")
    axes.set_ylabel("accuracy of a linear probe")
    figures.whole_numbers(axes.xaxis)
    axes.legend(fontsize=8)
    return figures.png(figure)
