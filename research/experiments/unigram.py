"""The loss of guessing masked pieces by their frequency alone: what a model must beat."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from albert_tf.console import tensorflow_logs
from albert_tf.storage import files


def count_pieces(records: str, max_seq_length: int, most: int) -> np.ndarray:
    """Returns how often each piece is masked in a file of records, `<int64>[pieces]`.

    For records without masks, which are then drawn in training: how often it occurs at all.
    """
    tensorflow_logs.import_tensorflow()
    import tensorflow as tf

    from albert_tf.records import frequencies
    from albert_tf.records.input_files import untuned
    from albert_tf.records.spec import compact_spec, pretraining_spec

    serialized = tf.data.TFRecordDataset(records)
    example = tf.train.Example.FromString(next(iter(serialized)).numpy())
    has_masks = "masked_lm_ids" in example.features.feature
    spec = pretraining_spec(max_seq_length, most) if has_masks else compact_spec(max_seq_length)
    rows = untuned(serialized.batch(1024).map(spec.parse)).as_numpy_iterator()
    if has_masks:
        return frequencies.count_masked(rows)
    counts = np.zeros(0, np.int64)
    for row in rows:
        given = np.arange(row["token_ids"].shape[1]) < row["segment_lengths"].sum(1, keepdims=True)
        found = np.bincount(row["token_ids"][given], minlength=len(counts))
        counts = found + np.pad(counts, (0, len(found) - len(counts)))
    return counts


def cross_entropy(train: np.ndarray, dev: np.ndarray) -> float:
    """Returns the mean loss in nats on `dev`, by frequencies in `train` with one added to each."""
    size = max(len(train), len(dev))
    train, dev = (np.pad(counts, (0, size - len(counts))) for counts in (train, dev))
    log_probs = np.log((train + 1) / (train + 1).sum())
    return float(-(dev * log_probs).sum() / dev.sum())


def main() -> None:
    """Writes the loss on held-out records, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("train", "dev", "output"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("max_seq_length", "max_predictions_per_seq"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    sizes = (arguments.max_seq_length, arguments.max_predictions_per_seq)
    counts = [count_pieces(path, *sizes) for path in (arguments.train, arguments.dev)]
    loss = cross_entropy(*counts)
    files.replace(arguments.output, json.dumps({"unigram_loss": loss}) + "\n")


if __name__ == "__main__":
    main()
