"""Linear probes: how much of a property of the text can be read from each layer."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.answers.rows import pair_features
from albert_tf.answers.tag import Tag
from albert_tf.config import AlbertConfig
from albert_tf.console import figures
from albert_tf.inspection import models
from albert_tf.inspection.models import Row
from albert_tf.model.albert import AlbertModel
from albert_tf.tasks import conll, table
from albert_tf.tasks.table import TableSettings
from albert_tf.text.tokenization import Tokenizer

COLUMNS = ("model", "layer", "train", "test", "accuracy", "control", "majority")
# One of so many groups of rows is held out.
_HELD_OUT = 5
# With fewer rows a probe's accuracy says nothing.
_FEWEST_ROWS = 20


def probe_hits(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Trains a probe on features `<float>[M, F]`; returns 1 where it is right on `test`, else 0."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000))
    return (probe.fit(train, train_labels).predict(test) == labels).astype(np.float64)


@dataclasses.dataclass(frozen=True)
class Labelled:
    """Rows, and the labels of rows or of words in them."""

    # `input_ids`, `input_mask` and `segment_ids` `<int32>[L]` of each of R rows.
    rows: Sequence[Row]
    labels: np.ndarray  # `<int64>[N]`, of the rows, or of words in them.
    row_numbers: np.ndarray  # `<int64>[N]`, the row of each label.
    # `<int64>[N]`, the position of a word's first piece in its row; None for labels of rows.
    positions: np.ndarray | None = None
    # `<int64>[R]`, the group of each row, which is held out as a whole; None: a row is a group.
    groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        if len(self.rows) < _FEWEST_ROWS:
            raise ValueError(
                f"expected at least {_FEWEST_ROWS} rows for a probe, got {len(self.rows)} of "
                "`input_file`: give more, or raise `max_examples`"
            )


def _of_rows(
    rows: Sequence[Row], labels: Iterable[Any], groups: np.ndarray | None = None
) -> Labelled:
    numbers = np.arange(len(rows))
    return Labelled(rows, np.array(list(labels), np.int64), numbers, groups=groups)


def of_order(
    paths: Sequence[str], config: AlbertConfig, max_seq_length: int, most: int, seed: int
) -> Labelled:
    """Returns pre-training records, labelled by whether their segments are swapped."""
    rows = models.record_rows(paths, config, max_seq_length, most, seed)
    return _of_rows(rows, (int(row["sentence_order_labels"]) for row in rows))


def of_neighbours(
    lines: Iterable[str], tokenizer: Tokenizer, max_seq_length: int, most: int, seed: int
) -> Labelled:
    """Returns texts; in every other one (label 1) two adjacent pieces are exchanged at random.

    Texts without two different adjacent pieces are left out.
    """
    drawn = random.Random(seed)
    rows: list[Row] = []
    for row in models.text_rows(models.sample(lines, most, seed), tokenizer, max_seq_length):
        ids = row["input_ids"].copy()
        # [CLS] and [SEP] stay where they are.
        places = [i for i in range(1, len(ids) - 2) if ids[i] != ids[i + 1]]
        if places:
            place = drawn.choice(places)
            if len(rows) % 2:
                ids[[place, place + 1]] = ids[[place + 1, place]]
            rows.append({**row, "input_ids": ids})
    return _of_rows(rows, (i % 2 for i in range(len(rows))))


def of_table(
    path: str,
    columns: TableSettings,
    tokenizer: Tokenizer,
    max_seq_length: int,
    most: int,
    seed: int,
    group_column: str | None = None,
) -> Labelled:
    """Returns texts of a table with their labels, grouped by the values of `group_column`."""
    labels = table.find_labels(path, columns)
    examples = models.sample(table.read_texts(path, columns, labels), most, seed)
    rows = [pair_features(tokenizer, each.text_a, each.text_b, max_seq_length) for each in examples]
    # The column is read a second time: examples hold only texts, labels and their row's number.
    groups = None
    if group_column:
        found = table.text_rows(path, [group_column])
        names = {str(number): row[group_column] for number, row in found}
        groups = np.unique([names[each.guid] for each in examples], return_inverse=True)[1]
    return _of_rows(rows, (each.label for each in examples), groups)


def of_words(
    path: str, column: str, tokenizer: Tokenizer, max_seq_length: int, most: int, seed: int
) -> Labelled:
    """Returns words of a CoNLL-U file, labelled by the values of a column; see conllu_sentences.

    A word's first piece stands for it. Words without a value are left out; whole sentences are
    drawn until they have `most` of the others.
    """
    found = list(conll.conllu_sentences(path, column))
    random.Random(seed).shuffle(found)
    # Take sentences until their labelled words are enough; the last one stays whole.
    counts = [len(values) - values.count(conll.NOTHING) for _, values in found]
    found = found[: int(np.searchsorted(np.cumsum(counts), most)) + 1]
    labels = {value for _, values in found for value in values} - {conll.NOTHING}
    ids = {value: i for i, value in enumerate(sorted(labels))}
    # A long sentence is read in several windows, each of which is a row.
    tagger = Tag(max_seq_length=max_seq_length)
    rows: list[Row] = []
    places = []
    for words, values in found:
        for row in tagger.word_rows(tokenizer, words):
            for position in np.flatnonzero(row["word_numbers"]):
                # The row numbers words from 1.
                value = values[row["word_numbers"][position] - 1]
                if value in ids:
                    places.append((len(rows), position, ids[value]))
            rows.append(row)
    row_numbers, positions, numbers = np.array(places, np.int64).reshape(-1, 3).T
    return Labelled(rows, numbers, row_numbers, positions)


def features(model: AlbertModel, data: Labelled) -> np.ndarray:
    """Returns the features of a label in each layer's input and output, `<float32>[L + 1, N, F]`.

    A word has the vector of its first piece (F = H), a row the vector of [CLS] and the mean over
    all positions but padding (F = 2H).
    """
    # Only the features are kept: all states of a data set would not fit into memory.
    parts = []
    begin = 0
    for count, batch in models.batches(data.rows):
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
    """Returns which labels are held out, `<bool>[N]`: those of a random fifth of the groups."""
    groups = np.arange(len(data.rows)) if data.groups is None else data.groups
    names = np.random.default_rng(seed).permutation(np.unique(groups))
    found = np.isin(groups[data.row_numbers], names[: len(names) // _HELD_OUT])
    if not found.any() or len(set(data.labels[~found])) < 2:
        raise ValueError(
            "`input_file` has too few labels, or groups, for a probe: give more rows, or raise "
            "`max_examples`"
        )
    return found


def measure(model: AlbertModel, control: AlbertModel, data: Labelled, seed: int) -> np.ndarray:
    """Trains a probe on each layer of a model and of a control with random weights.

    Returns:
      `<float64>[L + 1, 2]`: held-out accuracy of the model and of the control. Layer 0 is the
      input of layer 1, after the map from E to H.
    """
    test = held_out(data, seed)
    labels = data.labels
    accuracies = []
    # Both are probed on the same rows and labels.
    for each in (model, control):
        layers = features(each, data)
        hits = [probe_hits(x[~test], labels[~test], x[test], labels[test]) for x in layers]
        accuracies.append(np.mean(hits, axis=1))
    return np.stack(accuracies, axis=1)


def majority(data: Labelled, seed: int) -> float:
    """Returns the accuracy of always predicting the most frequent label of the training part."""
    test = held_out(data, seed)
    return float(np.mean(data.labels[test] == np.argmax(np.bincount(data.labels[~test]))))


def csv_table(found: Mapping[str, np.ndarray], data: Mapping[str, Labelled], seed: int) -> str:
    """Returns the accuracies of models, by name, as the text of a .csv file."""
    rows = []
    for name, accuracies in found.items():
        test = held_out(data[name], seed)
        sizes = (np.sum(~test), np.sum(test))
        most_frequent = majority(data[name], seed)
        for layer, pair in enumerate(accuracies):
            shares = [f"{share:.4f}" for share in (*pair, most_frequent)]
            rows.append([name, layer, *sizes, *shares])
    return models.csv_text(COLUMNS, rows)


def draw(found: Mapping[str, np.ndarray], data: Mapping[str, Labelled], seed: int) -> bytes:
    """Returns the figure as a PNG: accuracies with intervals, controls hollow, guessing dotted."""
    figure = figures.new_figure(9, 4.5)
    axes = figure.subplots()
    hollow = {"fillstyle": "none", "linestyle": ":"}
    for number, (name, accuracies) in enumerate(found.items()):
        style, tested = figures.style(number), np.sum(held_out(data[name], seed))
        for column, (of, changes) in enumerate((("", {}), (", random weights", hollow))):
            shares = accuracies[:, column]
            # The normal approximation's 95 % interval of a share.
            bars = 1.96 * np.sqrt(shares * (1 - shares) / tested)
            drawn = {**style, **changes, "label": name + of, "elinewidth": 0.8}
            # Side by side, so that no bar hides another.
            layers = np.arange(len(shares)) + 0.1 * (2 * number + column)
            axes.errorbar(layers, shares, yerr=bars, **drawn)
        most_frequent = {"color": style["color"], "linewidth": 1, "linestyle": (0, (1, 4))}
        share = majority(data[name], seed)
        axes.axhline(share, label=f"{name}, most frequent label", **most_frequent)
    axes.set_title("What a linear probe reads from each layer", fontsize=12)
    axes.set_xlabel("layer; 0 is the first layer's input")
    axes.set_ylabel("accuracy on held-out examples; bars: 95 % interval")
    figures.whole_numbers(axes.xaxis)
    figures.legend_beside(axes)
    return figures.png(figure)
