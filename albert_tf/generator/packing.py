"""Packs several short examples into one row, so that less of a batch is padding.

Finished examples are packed, each with its own masks and label: a row is just its examples,
concatenated, and the model's outputs for each are those that it would get alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

_TOKEN_FEATURES = ("input_mask", "segment_ids", "token_boundary")
_PREDICTION_FEATURES = ("masked_lm_ids", "masked_lm_weights")


def assign_rows(
    lengths: np.ndarray, predictions: np.ndarray, room: tuple[int, int], max_examples_per_row: int
) -> np.ndarray:
    """Chooses a row for each example: longest first, the first row that still has room for it.

    Args:
      lengths: <int>[N], tokens of each example.
      predictions: <int>[N], masked tokens of each example.
      room: Tokens and predictions that a row can hold; no example has more.
      max_examples_per_row: K.

    Returns:
      <int>[N], rows numbered without gaps, in the order of their first examples.
    """
    needs = np.stack([lengths, predictions, np.ones_like(lengths)])
    free = np.tile([[room[0]], [room[1]], [max_examples_per_row]], len(lengths))
    rows = np.empty(len(lengths), np.int64)
    for example in np.argsort(-lengths, kind="stable"):
        need = needs[:, example]
        row = ((free[0] >= need[0]) & (free[1] >= need[1]) & (free[2] >= 1)).argmax()
        free[:, row] -= need
        rows[example] = row
    _, first_examples, rows = np.unique(rows, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first_examples))[rows]


def pack(
    examples: Mapping[str, np.ndarray], max_examples_per_row: int, pad_id: int
) -> dict[str, np.ndarray]:
    """Packs a batch of examples; the order within a row is kept.

    Args:
      examples: Features of records.pretraining_spec, [N, ...].
      max_examples_per_row: K, above 1.
      pad_id: The padding id.

    Returns:
      The features of packed rows with the same S and P, [R, ...], R <= N.
    """
    lengths = examples["input_mask"].sum(axis=1)
    predictions = np.count_nonzero(examples["masked_lm_weights"], axis=1)
    num_tokens, num_predictions = (
        examples[name].shape[1] for name in ("input_ids", "masked_lm_ids")
    )
    rows = assign_rows(lengths, predictions, (num_tokens, num_predictions), max_examples_per_row)
    order = np.argsort(rows, kind="stable")
    rows, lengths, predictions = rows[order], lengths[order], predictions[order]
    examples = {name: values[order] for name, values in examples.items()}

    ones = np.ones_like(rows)
    before = np.cumsum(lengths) - lengths
    starts = (before - before[np.searchsorted(rows, rows)])[:, None]
    positions = examples["masked_lm_positions"] + starts
    packed = {
        "input_ids": _join(examples["input_ids"], lengths, rows, num_tokens, pad_id),
        "masked_lm_positions": _join(positions, predictions, rows, num_predictions),
    }
    for name in _TOKEN_FEATURES:
        packed[name] = _join(examples[name], lengths, rows, num_tokens)
    for name in _PREDICTION_FEATURES:
        packed[name] = _join(examples[name], predictions, rows, num_predictions)
    for name, values in (
        ("sentence_order_labels", examples["sentence_order_labels"][:, None]),
        ("sentence_order_weights", ones[:, None]),
        ("cls_positions", starts),
    ):
        packed[name] = _join(values, ones, rows, max_examples_per_row)
    return packed


def _join(
    values: np.ndarray, counts: np.ndarray, rows: np.ndarray, width: int, fill: int = 0
) -> np.ndarray:
    """Concatenates the first `counts` values of each example in its row.

    `rows` is ascending, so the kept values are already in the order in which rows are filled.
    """
    totals = np.bincount(rows, counts)
    joined = np.full((len(totals), width), fill, values.dtype)
    kept = np.arange(values.shape[1]) < counts[:, None]
    joined[np.arange(width) < totals[:, None]] = values[kept]
    return joined
