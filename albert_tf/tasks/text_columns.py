"""A caller's texts and labels, in whatever holds them, as lists of one length."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class TextColumns:
    """N examples, column by column.

    Attributes:
      texts: The texts.
      pairs: Second texts, if there are any.
      choices: The choices of each text, if there are any.
      contexts: The context of each question, if the texts are questions.
      labels: Classes, their names or numbers, if there are any.
      weights: `<float32>[N]`, weights of the examples, if there are any.
    """

    texts: list[str]
    pairs: list[str] | None = None
    choices: list[list[str]] | None = None
    contexts: list[str] | None = None
    labels: list[Any] | None = None
    weights: np.ndarray | None = None

    @classmethod
    def of(cls, texts: Any, labels: Any = None, weights: Any = None, **others: Any) -> TextColumns:
        """Reads what a caller gives.

        Args:
          texts: A text; a sequence of them; a table with columns `text`, perhaps `text_pair` and
            `label`; or a tf.data.Dataset, see Preprocessor.dataset.
          labels: Sequence of labels.
          weights: Sequence of numbers.
          **others: `pairs`, `choices`, `contexts`.

        Raises:
          ValueError: If there are no texts, numbers of texts differ, one is not a string, or a
            weight is not finite.
        """
        if hasattr(texts, "as_numpy_iterator"):
            texts, labels, weights = _from_dataset(texts, labels, weights)
        if isinstance(texts, Mapping) or hasattr(texts, "columns"):
            if "text" not in texts:
                raise ValueError(
                    f"expected a column 'text', got {', '.join(map(repr, texts))}: rename the "
                    "columns, or give each as an argument"
                )
            labels = texts["label"] if labels is None and "label" in texts else labels
            if others.get("pairs") is None and "text_pair" in texts:
                others["pairs"] = texts["text_pair"]
            texts = texts["text"]
        columns: dict[str, Any] = {"texts": _texts(texts, "texts")}
        for name, given in others.items():
            if given is not None and name == "choices":
                columns[name] = [_texts(choices, name) for choices in given]
            elif given is not None:
                columns[name] = _texts(given, name)
        columns["labels"] = None if labels is None else list(labels)
        columns["weights"] = None if weights is None else np.asarray(weights, np.float32)
        count = len(columns["texts"])
        if not count:
            raise ValueError("there are no texts")
        for name, column in columns.items():
            if column is not None and len(column) != count:
                raise ValueError(f"expected as many {name} as texts, got {len(column)} and {count}")
        if len({len(choices) for choices in columns.get("choices") or ()}) > 1:
            raise ValueError("all texts must have the same number of choices")
        if columns["weights"] is not None and not np.isfinite(columns["weights"]).all():
            raise ValueError("`sample_weights` must be finite numbers")
        return cls(**columns)

    def label_ids(self, names: Sequence[str]) -> np.ndarray | None:
        """Returns the labels, `<int32>[N]` for classes and `<float32>[N]` for other numbers.

        Args:
          names: The names of the classes, if they have names. Labels are looked up there if they
            are strings or any is one of them, as the numbers 3 and 3.0 are of "3"; else they are
            ids.

        Raises:
          ValueError: If a label is not one of the names nor an id, or not a finite number.
        """
        if self.labels is None:
            return None
        known = {name: i for i, name in enumerate(names)}
        given = [_name_among(names, label) for label in self.labels]
        if isinstance(self.labels[0], (str, bytes)) or not known.keys().isdisjoint(given):
            unknown = sorted(set(given) - set(known))
            if unknown:
                raise ValueError(
                    f"label {unknown[0]!r} is not one of `labels` "
                    f"({', '.join(names) or 'none given'}): give the names of all classes in the "
                    "order of their ids"
                )
            return np.array([known[name] for name in given], np.int32)
        ids = np.asarray(self.labels)
        if ids.dtype.kind not in "biuf" or not np.isfinite(ids).all():
            raise ValueError("labels must be finite numbers, or strings that are all in `labels`")
        # Several numbers for a text are no ids.
        is_wrong = (ids < 0) | (ids >= len(names)) | (ids % 1 != 0)
        if names and ids.ndim == 1 and is_wrong.any():
            raise ValueError(
                f"label {ids[is_wrong][0]} is neither one of `labels` ({', '.join(names)}) nor "
                "an id of one: give the names of all classes in the order of their ids, or "
                "`labels=()` for numbers that are no classes"
            )
        return ids.astype(np.float32 if ids.dtype.kind == "f" else np.int32)


def class_names(labels: Any) -> tuple[str, ...]:
    """Returns the names of classes that are given by names or numbers, in the order of their ids.

    Raises:
      ValueError: If they are a dictionary, or one is missing.
    """
    if isinstance(labels, Mapping):
        raise ValueError(
            "`labels` must be a list of names in the order of their ids, not a dictionary"
        )
    labels = list(labels)
    if any(_is_missing(label) for label in labels):
        raise ValueError(f"`labels` must be names, but one is missing: {labels}")
    return tuple(map(class_name, labels))


def _is_missing(label: Any) -> bool:
    """Whether a label is None, or NaN, as pandas has it."""
    return label is None or (isinstance(label, numbers.Number) and label != label)


def class_name(label: Any) -> str:
    """Returns the name of a class that is given by its name or a number."""
    return label.decode("utf-8", "ignore") if isinstance(label, bytes) else str(label)


def _name_among(names: Sequence[str], label: Any) -> str:
    """Returns a label's name: of the numbers 3 and 3.0 "3" or "3.0", whichever is in `names`."""
    text = class_name(label)
    if text in names or not isinstance(label, numbers.Number):
        return text
    try:
        return next((name for name in names if float(name) == label), text)
    except ValueError:  # Names that are no numbers.
        return text


def _from_dataset(dataset: Any, labels: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Reads a tf.data.Dataset of texts, (texts, labels) or (texts, labels, weights)."""
    from albert_tf.records.datasets import untuned

    elements = list(untuned(dataset).as_numpy_iterator())
    if not elements:
        raise ValueError("there are no texts")
    if not isinstance(elements[0], tuple):
        elements = [(element,) for element in elements]
    texts, *others = (_joined(column) for column in zip(*elements, strict=True))
    own = dict(zip(("labels", "sample_weights"), others, strict=False))
    for name, given in (("labels", labels), ("sample_weights", weights)):
        if name in own and given is not None:
            raise ValueError(f"the dataset has its own `{name}`: leave the argument out")
    return texts, own.get("labels", labels), own.get("sample_weights", weights)


def _joined(column: Sequence[Any]) -> Any:
    """Joins the elements of a dataset's column: single values, batches, or named ones."""
    if isinstance(column[0], Mapping):
        return {name: _joined([row[name] for row in column]) for name in column[0]}
    return np.concatenate([np.atleast_1d(np.asarray(value)) for value in column])


def _texts(values: Any, name: str) -> list[str]:
    values = [values] if isinstance(values, (str, bytes)) else values
    if not isinstance(values, Iterable):
        raise ValueError(f"{name} must be strings, not {values!r}")
    return [_text(value, i, name) for i, value in enumerate(values)]


def _text(value: Any, place: int, name: str) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "ignore")
    if not isinstance(value, str):
        raise ValueError(f"{name} must be strings, but the one at index {place} is {value!r}")
    return str(value)
