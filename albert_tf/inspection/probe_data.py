"""What probes are to read: labelled rows, or labelled words in rows."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from albert_tf.config import AlbertConfig
from albert_tf.inspection import conllu, inputs
from albert_tf.inspection.inputs import Row
from albert_tf.tasks import sequence_features, table, table_files
from albert_tf.tasks.conll import TokenExample
from albert_tf.tasks.table import TableColumns
from albert_tf.tasks.token_classification import TokenClassificationTask
from albert_tf.text.tokenization import Tokenizer

# Of fewer rows a probe's accuracy says nothing.
_FEWEST_ROWS = 20


@dataclasses.dataclass(frozen=True)
class Labelled:
    """Rows, and the labels that a probe is to read.

    Attributes:
      rows: `input_ids`, `input_mask` and `segment_ids` `<int32>[L]` of each of R rows.
      labels: `<int64>[N]`, of the rows, or of words in them.
      row_numbers: `<int64>[N]`, the row of each label.
      positions: `<int64>[N]`, where in its row a word begins; None if labels are of rows.
      groups: `<int64>[R]`, the group of each row: either all of one are held out, or none. None
        if each row is one.

    Raises:
      ValueError: If there are too few rows, or only one label.
    """

    rows: Sequence[Row]
    labels: np.ndarray
    row_numbers: np.ndarray
    positions: np.ndarray | None = None
    groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        if len(self.rows) < _FEWEST_ROWS:
            raise ValueError(
                f"expected at least {_FEWEST_ROWS} rows for a probe, got {len(self.rows)} of "
                "`input_file`: give more, or raise `max_examples`"
            )
        if len(set(self.labels)) < 2:
            raise ValueError("`input_file` has only one label: a probe needs at least two")


def _of_rows(
    rows: Sequence[Row], labels: Iterable[Any], groups: np.ndarray | None = None
) -> Labelled:
    numbers = np.arange(len(rows))
    return Labelled(rows, np.array(list(labels), np.int64), numbers, groups=groups)


def of_order(
    paths: Sequence[str], config: AlbertConfig, max_seq_length: int, most: int, seed: int
) -> Labelled:
    """Records of pre-training, by whether their segments are swapped; see inputs.record_rows."""
    rows = inputs.record_rows(paths, config, max_seq_length, most, seed)
    return _of_rows(rows, (int(row["sentence_order_labels"]) for row in rows))


def of_neighbours(
    lines: Iterable[str], tokenizer: Tokenizer, max_seq_length: int, most: int, seed: int
) -> Labelled:
    """Texts, in every other of which (label 1) two adjacent pieces are exchanged, of any place.

    Texts without two adjacent pieces that differ are left out.
    """
    drawn = random.Random(seed)
    rows: list[Row] = []
    for row in inputs.text_rows(inputs.sample(lines, most, seed), tokenizer, max_seq_length):
        ids = row["input_ids"].copy()
        places = [i for i in range(1, len(ids) - 2) if ids[i] != ids[i + 1]]
        if places:
            place = drawn.choice(places)
            if len(rows) % 2:
                ids[[place, place + 1]] = ids[[place + 1, place]]
            rows.append({**row, "input_ids": ids})
    return _of_rows(rows, (i % 2 for i in range(len(rows))))


def of_table(
    path: str,
    columns: TableColumns,
    tokenizer: Tokenizer,
    max_seq_length: int,
    most: int,
    seed: int,
    group_column: str | None = None,
) -> Labelled:
    """Texts of a table, by their label, and grouped by what stands in a column, if one is named.

    Raises:
      ValueError: See table.read_texts.
    """
    labels = table.find_labels(path, columns)
    examples = inputs.sample(table.read_texts(path, columns, labels), most, seed)
    rows = [
        sequence_features.pair_features(tokenizer, each.text_a, each.text_b, max_seq_length)
        for each in examples
    ]
    groups = None
    if group_column:
        found = table_files.text_rows(path, [group_column])
        names = {str(number): row[group_column] for number, row in found}
        groups = np.unique([names[each.guid] for each in examples], return_inverse=True)[1]
    return _of_rows(rows, (each.label for each in examples), groups)


def of_words(
    path: str, column: str, tokenizer: Tokenizer, max_seq_length: int, most: int, seed: int
) -> Labelled:
    """Words of a CoNLL-U file, by what stands in a column; see conllu.sentences.

    A word is represented by its first piece; those with nothing in the column are left out.
    Sentences are drawn until they have `most` of the others.
    """
    found = list(conllu.sentences(path, column))
    random.Random(seed).shuffle(found)
    counts = [len(values) - values.count(conllu.NOTHING) for _, values in found]
    found = found[: np.searchsorted(np.cumsum(counts), most) + 1]
    labels = {value for _, values in found for value in values} - {conllu.NOTHING}
    ids = {value: i for i, value in enumerate([*sorted(labels), conllu.NOTHING])}
    examples = [
        TokenExample(str(i), words, tuple(ids[value] for value in values))
        for i, (words, values) in enumerate(found)
    ]
    task = TokenClassificationTask(None, tokenizer, max_seq_length, tuple(ids))
    rows = [dict(row) for row in task.rows(examples, is_training=False)]
    # 0 is no word's first piece, and the last number that of words without a label.
    places = [
        (r, p, tag - 1)
        for r, row in enumerate(rows)
        for p, tag in enumerate(row["tag_ids"])
        if 0 < tag <= len(labels)
    ]
    row_numbers, positions, numbers = np.array(places, np.int64).reshape(-1, 3).T
    return Labelled(rows, numbers, row_numbers, positions)
