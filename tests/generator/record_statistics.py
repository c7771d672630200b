"""Measures of records, counted from the records alone as in golden/pretrain_data/stats.json."""

import collections
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from albert_tf.records import input_files
from albert_tf.records.input_files import untuned
from albert_tf.records.masking import Rows
from albert_tf.records.spec import RowFormat, compact_spec


def read_records(paths: Iterable[str]) -> dict[str, np.ndarray]:
    """All eight features as they are on disk, <int64 or float32>[N, ...]."""
    columns = collections.defaultdict(list)
    records = untuned(tf.data.TFRecordDataset([str(path) for path in paths]))
    for serialized in records.as_numpy_iterator():
        for name, feature in tf.train.Example.FromString(serialized).features.feature.items():
            columns[name].append(getattr(feature, feature.WhichOneof("kind")).value)
    return {name: np.array(rows) for name, rows in columns.items()}


def read_compact(path: object) -> tuple[dict[str, np.ndarray], RowFormat, Rows]:
    """The features of records without masks, their format, and the rows that they make."""
    found = input_files.check_features([str(path)], compact_spec())
    row_format = RowFormat(*found.features["row_format"].expected)
    serialized = list(untuned(tf.data.TFRecordDataset(str(path))))
    examples = {n: v.numpy() for n, v in compact_spec().parse(tf.stack(serialized)).items()}
    parts = (examples[name] for name in ("token_ids", "segment_lengths", "word_starts"))
    return examples, row_format, Rows.lay_out(*parts, row_format)


def restore_text(records: dict[str, np.ndarray]) -> np.ndarray:
    ids = records["input_ids"].copy()
    rows, slots = np.nonzero(records["masked_lm_weights"])
    ids[rows, records["masked_lm_positions"][rows, slots]] = records["masked_lm_ids"][rows, slots]
    return ids


def measure(records: dict[str, np.ndarray], max_predictions: int) -> dict[str, float]:
    size = records["input_ids"].shape[1]
    lengths = records["input_mask"].sum(1)
    masked = records["masked_lm_weights"].sum(1)
    length_b = records["segment_ids"].sum(1) - 1
    budget = np.clip(np.rint(0.15 * lengths), 1, max_predictions)
    return {
        "instances": len(lengths),
        "mean_length": lengths.mean(),
        "std_length": lengths.std(),
        "fraction_full_length": (lengths == size).mean(),
        "fraction_shorter_than_half": (lengths < size / 2).mean(),
        "fraction_shorter_than_90_percent": (lengths < 0.9 * size).mean(),
        "mean_padding_fraction": 1 - lengths.mean() / size,
        "mean_length_a": (lengths - 3 - length_b).mean(),
        "mean_length_b": length_b.mean(),
        "sop_label_1_rate": records["next_sentence_labels"].mean(),
        "masked_per_instance_mean": masked.mean(),
        "masked_per_instance_std": masked.std(),
        "masked_tokens_over_all_tokens": masked.sum() / lengths.sum(),
        "fraction_reaching_budget": (masked == budget).mean(),
        "masked_over_budget": masked.sum() / budget.sum(),
    }


def count_replacements(records: dict[str, np.ndarray], mask_id: int) -> dict[str, int]:
    rows, slots = np.nonzero(records["masked_lm_weights"])
    now = records["input_ids"][rows, records["masked_lm_positions"][rows, slots]]
    before = records["masked_lm_ids"][rows, slots]
    mask, keep = now == mask_id, now == before
    return {"mask": mask.sum(), "keep": keep.sum(), "random": (~mask & ~keep).sum()}


def count_words(
    records: dict[str, np.ndarray], cls_id: int, sep_id: int
) -> tuple[dict[int, int], dict[int, int]]:
    """Pieces per word, and lengths of maximal runs of masked words, both value -> count.

    Words are the release's: runs that begin at a token_boundary, [CLS] and [SEP] left out. A
    [SEP] ends a run.
    """
    ids, keep = restore_text(records), records["input_mask"] > 0
    rows, slots = np.nonzero(keep & ~np.isin(ids, (cls_id, sep_id)))
    is_first = np.diff(rows, prepend=-1) > 0
    starts = np.flatnonzero(is_first | (records["token_boundary"][rows, slots] > 0))
    pieces = np.diff(starts, append=len(rows))
    labelled = np.zeros(ids.shape, bool)
    labelled_rows, labels = np.nonzero(records["masked_lm_weights"])
    labelled[labelled_rows, records["masked_lm_positions"][labelled_rows, labels]] = True
    is_masked = np.logical_and.reduceat(labelled[rows, slots], starts)
    # A run stays within a segment: insert an unmasked word where the segment changes.
    segments = 2 * rows[starts] + records["segment_ids"][rows, slots][starts]
    is_masked = np.insert(is_masked, np.flatnonzero(np.diff(segments)) + 1, False)
    edges = np.flatnonzero(np.diff(is_masked.astype(int), prepend=0, append=0))
    runs = edges[1::2] - edges[::2]
    return dict(collections.Counter(pieces.tolist())), dict(collections.Counter(runs.tolist()))


def count_token_runs(records: dict[str, np.ndarray]) -> dict[int, int]:
    """Lengths of maximal runs of neighbouring labelled positions, value -> count."""
    labelled = np.zeros((len(records["input_ids"]), records["input_ids"].shape[1] + 2), int)
    rows, slots = np.nonzero(records["masked_lm_weights"])
    labelled[rows, records["masked_lm_positions"][rows, slots] + 1] = 1
    edges = np.flatnonzero(np.diff(labelled.ravel()))
    return dict(collections.Counter((edges[1::2] - edges[::2]).tolist()))
