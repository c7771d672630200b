"""Examples column by column, from lists, tables, and datasets of tf.data or Hugging Face."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.answers.kind import class_name
from albert_tf.storage import parquet_files
from albert_tf.storage.text_files import class_of
from albert_tf.tasks.table import WEIGHTS, multi_hot
from albert_tf.text.characters import to_unicode

# A table's columns -> fields of TextColumns.
_TABLE = {"text": "texts", "text_pair": "pairs", "label": "labels"}
_TABLE |= dict.fromkeys(WEIGHTS, "sample_weights")
# Types that hold several labels of a text.
_SEVERAL = (list, tuple, set, frozenset, np.ndarray)


@dataclasses.dataclass(frozen=True)
class TextColumns:
    """N examples, column by column; a column that was not given is None."""

    texts: list[str]
    pairs: list[str] | None = None  # Second texts.
    choices: list[list[str]] | None = None
    contexts: list[str] | None = None  # With them, the texts are questions.
    labels: list[Any] | None = None  # Names, ids or other numbers, or lists of them.
    sample_weights: np.ndarray | None = None  # <float32>[N]
    classes: tuple[str, ...] = ()  # A dataset's names for the ids in its labels.

    def label_ids(self, names: Sequence[str]) -> np.ndarray | None:
        """Returns ids of classes `<int32>[N]`, or other numbers `<float32>[N]`.

        Labels are names if any of them is a string, or one of `names`; the numbers 3 and 3.0 are
        the name "3". Lists of names become multi-hot, `<float32>[N, C]`.
        """
        if self.labels is None:
            return None
        names = names or self.classes
        several = any(isinstance(label, _SEVERAL) for label in self.labels)
        rows = [[*label] if isinstance(label, _SEVERAL) else [label] for label in self.labels]
        # A dataset's own ids become the names that they stand for.
        if self.classes:
            spelt = {i: [*map(class_name, row)] for i, row in enumerate(rows)}
            positions = multi_hot(spelt, "label at index ", len(self.classes)) if several else None
            rows = [[*map(int, row)] for row in positions.values()] if positions else rows
            known_ids = dict(enumerate(self.classes))  # A missing label is -1 or None.
            rows = [[known_ids.get(part, part) for part in row] for row in rows]

        # Decide between names and numbers; several numbers for a text are never names.
        known = {class_of(name): i for i, name in enumerate(names)}
        given = [[class_of(class_name(part)) for part in row] for row in rows]
        found = {part for row in given for part in row}
        are_strings = any(isinstance(part, (str, bytes)) for row in rows for part in row)
        if found and not are_strings and (several or known.keys().isdisjoint(found)):
            return _numbers(self.labels, names)
        if unknown := sorted(found - known.keys()):
            raise ValueError(
                f"label {unknown[0]!r} is not one of `labels` ({', '.join(names) or 'none given'}"
                "): give the names of all classes in the order of their ids"
            )
        # From here on all labels are names that are known.
        ids = [[known[part] for part in row] for row in given]
        if not several:
            return np.array(ids, np.int32)[:, 0]
        # Lists of names become multi-hot rows `<float32>[N, C]`.
        targets = np.zeros((len(ids), len(names)), np.float32)
        for target, row in zip(targets, ids, strict=True):
            target[row] = 1
        return targets


def _numbers(labels: list[Any], names: Sequence[str]) -> np.ndarray:
    is_ragged = len({*map(np.shape, labels)}) > 1
    ids = np.asarray(labels, object if is_ragged else None)
    if ids.dtype.kind not in "biuf" or not np.isfinite(ids).all():
        raise ValueError("labels must be finite numbers, as many for each text, or in `labels`")
    is_wrong = (ids < 0) | (ids >= len(names)) | (ids % 1 != 0)
    if names and ids.ndim == 1 and is_wrong.any():
        raise ValueError(
            f"label {ids[is_wrong][0]} is neither one of `labels` ({', '.join(names)}) nor an id "
            "of one: give the names of all classes in the order of their ids, or `labels=()` for "
            "numbers that are no classes"
        )
    return ids.astype(np.float32 if ids.dtype.kind == "f" else np.int32)


def read(texts: Any, **given: Any) -> TextColumns:
    """Reads the arguments of Preprocessor.dataset; `given` are fields of TextColumns."""
    given = {name: column for name, column in given.items() if column is not None}
    found: dict[str, Any] = {"texts": texts}
    # Tell tables apart by their attributes, without importing their libraries.
    if hasattr(texts, "as_numpy_iterator"):
        found = _from_tf_data(texts, given)
    elif hasattr(texts, "column_names") and hasattr(texts, "features"):
        found = _from_hugging_face(texts)
    elif isinstance(texts, Mapping) or hasattr(texts, "columns"):
        found = _from_table(texts)

    # An argument replaces a column. The dataset's class names apply only to its own labels.
    classes = found.pop("classes", ())
    columns: dict[str, Any] = {"texts": _texts(found.pop("texts"), "texts")}
    for name, column in {**found, **given}.items():
        if column is None:
            continue
        if name == "choices":
            columns[name] = [_texts(choices, name) for choices in column]
        elif name == "labels":
            columns[name] = list(column)
        elif name == "sample_weights":
            columns[name] = np.array(np.nan)
            with contextlib.suppress(TypeError, ValueError):
                columns[name] = np.asarray(column, np.float32)
        else:
            columns[name] = _texts(column, name)

    # A table's weights are of no use where it has no labels, as in a test set.
    if "labels" not in columns and "sample_weights" not in given:
        columns.pop("sample_weights", None)
    weights = columns.get("sample_weights", np.ones(1))
    if weights.ndim != 1 or not np.isfinite(weights).all():
        raise ValueError("`sample_weights` must be finite numbers, one for each text")
    # All columns must have as many entries as there are texts.
    count = len(columns["texts"])
    if not count:
        raise ValueError("there are no texts")
    for name, column in columns.items():
        if len(column) != count:
            raise ValueError(f"expected as many {name} as texts, got {len(column)} and {count}")
    if len({*map(len, columns.get("choices", ()))}) > 1:
        raise ValueError("all texts must have the same number of choices")
    return TextColumns(**columns, classes=() if "labels" in given else classes)


def _from_table(table: Any) -> dict[str, Any]:
    if "text" not in table:
        raise ValueError(
            f"expected a column 'text', got {', '.join(map(repr, table))}: rename the columns, or "
            "give each as an argument"
        )
    found = [(ours, table[name]) for name, ours in _TABLE.items() if name in table]
    if len(dict(found)) < len(found):
        raise ValueError("of the columns sample_weight and sample_weights leave one out")
    return dict(found)


def _from_hugging_face(dataset: Any) -> dict[str, Any]:
    names = dataset.column_names or ()
    if names and "text" not in names:
        return _from_table(dict.fromkeys(names))  # Raises before any row is read.
    selected = dataset.select_columns([n for n in _TABLE if n in names]) if names else dataset
    # Read batches in plain Python types, whatever format the dataset was given.
    columns: dict[str, list[Any]] = {}
    for batch in selected.with_format(None).iter(1000):
        for name, cells in batch.items():
            columns.setdefault(name, []).extend(cells)
    # The labels of a test set are all unknown.
    if all(label in (None, -1) for label in columns.get("label", ())):
        columns.pop("label", None)
    classes = parquet_files.class_names((dataset.features or {}).get("label"))
    return {**_from_table(columns), "classes": classes}


def _from_tf_data(dataset: Any, given: Collection[str]) -> dict[str, Any]:
    """Reads a tf.data.Dataset of texts, (texts, labels) or (texts, labels, weights)."""
    from albert_tf.records.input_files import untuned

    if dataset.cardinality() == -1:  # tf.data.INFINITE_CARDINALITY
        raise ValueError("the dataset of texts never ends: leave its repeat() out, or take() some")
    rows = untuned(dataset).as_numpy_iterator()
    elements = [row if isinstance(row, tuple) else (row,) for row in rows]
    if not elements:
        raise ValueError("there are no texts")
    # Split batches into rows.
    first = elements[0][0]
    if any(map(np.ndim, first.values() if isinstance(first, Mapping) else [first])):
        elements = [row for batch in elements for row in zip(*map(_rows_of, batch), strict=True)]

    texts, *others = zip(*elements, strict=True)
    found = dict(zip(("labels", "sample_weights"), others, strict=False))
    if twice := [name for name in found if name in given]:
        raise ValueError(f"the dataset has its own `{twice[0]}`: leave the argument out")
    if isinstance(first, Mapping):
        return {**_from_table({name: [row[name] for row in texts] for name in first}), **found}
    return {"texts": texts, **found}


def _rows_of(batch: Any) -> list[Any]:
    if isinstance(batch, Mapping):
        rows = zip(*map(_rows_of, batch.values()), strict=True)
        return [dict(zip(batch, row, strict=True)) for row in rows]
    return list(np.asarray(batch))


def _texts(values: Any, name: str) -> list[str]:
    values = values.numpy() if hasattr(values, "numpy") else values  # A tensor of strings.
    values = [values] if isinstance(values, (str, bytes)) else values
    if not isinstance(values, Iterable):
        raise ValueError(f"{name} must be strings, not {values!r}")
    texts = []
    for i, value in enumerate(values):
        if not isinstance(value, (str, bytes)):
            raise ValueError(f"{name} must be strings, but the one at index {i} is {value!r}")
        try:
            texts.append(str(to_unicode(value)))
        except ValueError as error:
            raise ValueError(f"{name}: the one at index {i} is no text: {error}") from error
    return texts
