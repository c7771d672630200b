"""Limits of a batch's numbers, checked before Keras' compiled step, which can't refuse any."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

# Losses of a number from 0 to 1 for each class.
_OF_PROBABILITIES = (
    keras.losses.BinaryCrossentropy,
    keras.losses.BinaryFocalCrossentropy,
    keras.losses.CategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
)


class Limit(NamedTuple):
    """The range of a batch's numbers; texts have none, nor has an axis of unknown length."""

    name: str
    values: Any
    least: float
    most: int | None
    whole: bool = True
    ignored: int | None = None
    advice: str = ""

    def hold(self, values: Any, floor: Callable[[Any], Any] | None) -> Any:
        """Returns whether each number, of NumPy or TensorFlow, is in the range."""
        hold = (values >= self.least) & (values <= self.most)
        hold = hold & (floor(values) == values) if self.whole and floor else hold
        return hold if self.ignored is None else hold | (values == self.ignored)

    def check(self) -> None:
        """Refuses numbers out of the range; a symbolic tensor has none."""
        try:
            values = np.asarray(self.values)
        except (NotImplementedError, TypeError, ValueError):
            return
        values = values.astype("float32") if values.dtype.kind == "V" else values  # bfloat16.
        if self.most is None or values.dtype.kind not in "biuf":
            return
        wrong = values[~self.hold(values, np.floor if values.dtype.kind == "f" else None)]
        if wrong.size:
            numbers = "whole numbers " if self.whole else ""
            bounds = "up" if self.least == -np.inf else f"from {self.least}"
            raise ValueError(
                f"{self.name} must be {numbers}{bounds} to {self.most}, but one is {wrong[0]}"
                f"{self.advice}"
            )


def label_limits(name: str, labels: Any, loss: Any, count: int | None) -> Iterator[Limit]:
    """Yields a limit if labels beyond it cost nothing, or too much, by backend and device."""
    loss = keras.losses.get(loss)
    is_function = getattr(loss, "func", None) is keras.losses.sparse_categorical_crossentropy
    if is_function or isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
        ignored = getattr(loss, "keywords", vars(loss)).get("ignore_class")
        advice = ": count classes from 0; other labels need a loss with `ignore_class`"
        yield Limit(name, labels, 0, count and count - 1, ignored=ignored, advice=advice)
    elif isinstance(loss, _OF_PROBABILITIES):
        yield Limit(name, labels, 0, 1, whole=False, advice=" for this loss")


class BatchCheck:
    """Checks data of any form that Keras takes, and keeps its refusals.

    Args:
      limits: Yields the limits of a batch's inputs, labels and weights; or raises an error.
    """

    def __init__(self, limits: Callable[..., Iterator[Limit]]) -> None:
        self.refusals: list[Exception] = []
        self._limits = limits

    def data(self, x: Any, *others: Any) -> Any:
        """Returns `x` such that each batch is checked when it is drawn; checks arrays now."""
        if isinstance(x, keras.utils.PyDataset):
            return _CheckedDataset(x, self._passed)
        if isinstance(x, types.GeneratorType):
            return (self._passed(batch) for batch in x)
        if hasattr(x, "element_spec") and hasattr(x, "map"):  # A tf.data.Dataset.
            import tensorflow as tf

            return x.map(tf.autograph.experimental.do_not_convert(self._passed_in_graph))
        # Given texts, Keras would only say "Invalid dtype: str". A Series and an array have shapes.
        if isinstance(x, (Mapping, str, list, tuple)) or hasattr(x, "shape"):
            self._check(x, *others)
        return x

    def _check(self, *batch: Any) -> None:
        try:
            for limit in self._limits(*batch):
                limit.check()
        except (TypeError, ValueError) as error:
            self.refusals.append(error)
            raise

    def _passed(self, batch: Any) -> Any:
        self._check(*batch) if isinstance(batch, (tuple, list)) else self._check(batch)
        return batch

    def _passed_in_graph(self, *batch: Any) -> Any:
        """Has the graph compare all numbers, and calls Python to refuse some, or in doubt."""
        import tensorflow as tf

        # Ragged and sparse tensors are no inputs.
        flat = [x if isinstance(x, tf.Tensor) else tf.constant("") for x in tf.nest.flatten(batch)]

        def holds(limit: Limit) -> Any:
            if limit.most is None:
                return False
            floor = None if limit.values.dtype.is_integer else tf.floor
            return tf.reduce_all(limit.hold(tf.cast(limit.values, tf.float64), floor))

        def refuse() -> tf.Tensor:
            tf.numpy_function(lambda *x: self._check(*tf.nest.pack_sequence_as(batch, x)), flat, [])
            return tf.constant(True)

        try:
            limits = [*self._limits(*tf.nest.pack_sequence_as(batch, flat))]
            all_hold = [holds(limit) for limit in limits if limit.values.dtype != tf.string]
        except (TypeError, ValueError):  # Refused by name or axis, or of unknown rank.
            all_hold = [False]
        tf.cond(tf.reduce_all(all_hold), lambda: tf.constant(True), refuse)
        return batch if len(batch) > 1 else batch[0]


class _CheckedDataset(keras.utils.PyDataset):
    def __init__(self, dataset: keras.utils.PyDataset, passed: Callable[[Any], Any]) -> None:
        super().__init__(dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size)
        self._dataset, self._passed = dataset, passed
        self.on_epoch_begin, self.on_epoch_end = dataset.on_epoch_begin, dataset.on_epoch_end

    @property
    def num_batches(self) -> int | None:
        return self._dataset.num_batches

    def __getitem__(self, index: int) -> Any:
        return self._passed(self._dataset[index])
