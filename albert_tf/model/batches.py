"""Checks a batch's arrays before a step, since a compiled step can't refuse any."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

# Names of the axes that arrays share.
_ON_AXES = {"B": "rows", "S": "positions", "C": "choices"}
# Losses with a label from 0 to 1 for each class; losses whose labels differ in shape from outputs.
_OF_PROBABILITIES = (
    keras.losses.binary_crossentropy,
    keras.losses.binary_focal_crossentropy,
    keras.losses.categorical_crossentropy,
    keras.losses.categorical_focal_crossentropy,
)
_OF_OTHER_SHAPES = (keras.losses.ctc, keras.losses.circle)
# Larger numbers are infinite in float32.
LARGEST = float(np.finfo("float32").max)


def shape_of(array: Any) -> tuple[int | None, ...] | None:
    """Returns an array's shape, or None; TensorFlow may not know even the rank."""
    shape = getattr(array, "shape", None)
    return None if shape is None or getattr(shape, "rank", 0) is None else tuple(shape)


def check_array(name: str, values: Any) -> None:
    """Refuses lists of numbers, which Keras takes apart, and ragged tensors, which it pads."""
    if not hasattr(values, "__array__"):
        raise TypeError(
            f"expected {name} as an array, got {type(values).__name__}: give one, such as "
            "np.array(...)"
        )


class Sizes(NamedTuple):
    """Arrays with the names of their axes; an axis must have the same size in all arrays."""

    arrays: Mapping[str, tuple[Any, str]]

    def _by_axis(self, shape: Callable[[Any], Any]) -> dict[str, list[Any]]:
        sizes: dict[str, list[Any]] = {}
        for array, axes in self.arrays.values():
            for axis, size in zip(axes.split(", "), shape(array) or (), strict=False):
                sizes.setdefault(axis, []).append(size)
        return sizes

    def holds(self) -> Any:
        """Returns whether sizes are equal, in a graph that may not know them before it runs."""
        import tensorflow as tf

        sizes = self._by_axis(lambda array: tf.unstack(tf.shape(array)))
        return tf.reduce_all([tf.reduce_all(tf.equal(each, each[0])) for each in sizes.values()])

    def check(self) -> None:
        """Refuses sizes that differ; those of a symbolic tensor may be unknown."""
        for axis, sizes in self._by_axis(shape_of).items():
            if len({*sizes} - {None}) > 1 or (axis == "S" and 0 in sizes):
                shapes = [f"{name} {shape_of(array)}" for name, (array, _) in self.arrays.items()]
                raise ValueError(
                    f"expected as many {_ON_AXES.get(axis, axis)}, at least one, in each array, "
                    f"got {', '.join(shapes)}: pad or cut them to one size"
                )


class Limit(NamedTuple):
    """The range of a batch's numbers; `most` is None if it depends on an axis of unknown length."""

    name: str
    values: Any
    least: float
    most: float | None
    whole: bool = True
    besides: Callable[[Any], Any] | None = None
    advice: str = ""

    def _hold(self, values: Any, floor: Callable[[Any], Any] | None) -> Any:
        """Returns whether each number of a NumPy array or TensorFlow tensor is in the range."""
        hold = (values >= self.least) & (values <= self.most)
        hold = hold & (floor(values) == values) if self.whole and floor else hold
        return hold | self.besides(values) if self.besides else hold

    def holds(self) -> Any:
        """Returns whether all numbers are in the range, in a graph."""
        import tensorflow as tf

        if self.most is None or self.values.dtype == tf.string:
            return False  # In doubt, Python decides.
        floor = None if self.values.dtype.is_integer else tf.floor
        return tf.reduce_all(self._hold(tf.cast(self.values, tf.float64), floor))

    def check(self) -> None:
        """Refuses texts, and numbers out of the range; a symbolic tensor has no numbers yet."""
        try:
            values = np.asarray(self.values)
        except (NotImplementedError, TypeError, ValueError):
            return
        if self.most is None:
            return
        if values.dtype.kind in "fV" and values.itemsize < 4:  # float16 and bfloat16.
            values = values.astype("float32")
        if values.dtype.kind in "biuf":
            wrong = values[~self._hold(values, np.floor if values.dtype.kind == "f" else None)]
        else:
            wrong = np.array([x for x in values.flat if isinstance(x, (str, bytes))])
        if wrong.size:
            finite = (("from", self.least), ("to", self.most))
            bounds = "".join(f" {word} {at}" for word, at in finite if abs(at) != LARGEST)
            raise ValueError(
                f"{self.name} must be {'whole' if self.whole else 'finite'} numbers{bounds}, but "
                f"one is {wrong.flat[0]}{self.advice}"
            )


def label_limits(name: str, labels: Any, loss: Any, output: Any, classes: bool) -> Iterator[Limit]:
    """Yields a limit if labels beyond it give no loss or too much, by backend and device.

    The labels that Keras' own losses take are known. For any other loss, integer labels with the
    outputs' axes except the last are taken for classes, if the outputs have classes.
    """
    loss = keras.losses.get(loss)
    function = getattr(loss, "fn", getattr(loss, "func", loss))
    shape, expected = shape_of(labels), shape_of(output)
    is_known = getattr(function, "__module__", "").startswith("keras.")
    takes_classes = function is keras.losses.sparse_categorical_crossentropy
    if not is_known:
        is_integer = getattr(getattr(labels, "dtype", None), "name", "").startswith(("int", "uint"))
        are_classes = classes and is_integer and expected[-1] != 1
        takes_classes = are_classes and _fits(shape, expected[:-1])
    expected = expected[:-1] if takes_classes else expected
    if is_known and function not in _OF_OTHER_SHAPES and not _fits(shape, expected):
        raise ValueError(
            f"{function.__name__} takes labels of the shape {expected}, but {name} have {shape}: "
            "give them these axes, or compile another loss"
        )
    if takes_classes:
        arguments = getattr(loss, "keywords", {})
        ignored = arguments.get("ignore_class", getattr(loss, "ignore_class", None))
        advice = ": count classes from 0; other labels need a loss with `ignore_class`"
        if not is_known:
            advice += ", and labels that are no classes are floats"
        count = shape_of(output)[-1]
        besides = None if ignored is None else lambda x: x == ignored
        yield Limit(name, labels, 0, count and count - 1, besides=besides, advice=advice)
    elif function in _OF_PROBABILITIES:
        yield Limit(name, labels, 0, 1, whole=False, advice=" for this loss")
    elif is_known:
        yield Limit(name, labels, -LARGEST, LARGEST, whole=False)


def _fits(shape: tuple[int | None, ...], expected: tuple[int | None, ...]) -> bool:
    """Whether shapes may be equal, ignoring a last axis of size 1, as Keras does."""
    shape, expected = (x[:-1] if len(x) > 1 and x[-1] == 1 else x for x in (shape, expected))
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(a == b or None in (a, b) for a, b in pairs)


class BatchCheck:
    """Checks data in any form that Keras takes, and keeps the errors that it raises.

    Args:
      limits: Yields the limits of a batch's inputs, labels and weights; or raises an error.

    Example:
      >>> check = BatchCheck(lambda x, *_: iter([Limit("ids", x, 0, 3)]))
      >>> check.data(np.array([2, 4]))
      Traceback (most recent call last):
      ValueError: ids must be whole numbers from 0 to 3, but one is 4
    """

    def __init__(self, limits: Callable[..., Iterator[Limit | Sizes]]) -> None:
        self.refusals: list[Exception] = []
        self._limits = limits

    def data(self, x: Any, *others: Any) -> Any:
        """Returns `x` with a check of each batch when it is drawn; checks arrays at once."""
        if isinstance(x, keras.utils.PyDataset):
            return _CheckedDataset(x, self._passed)
        if isinstance(x, types.GeneratorType):
            return (self._passed(batch) for batch in x)
        if hasattr(x, "element_spec") and hasattr(x, "map"):  # A tf.data.Dataset.
            import tensorflow as tf

            return x.map(tf.autograph.experimental.do_not_convert(self._passed_in_graph))
        # Given texts, Keras would only say "Invalid dtype: str". A Series and an array have shapes.
        if x is None or isinstance(x, (Mapping, str, list, tuple)) or hasattr(x, "shape"):
            self._check(x, *others)
            if isinstance(x, Mapping) and (0,) in [(shape_of(a) or ())[:1] for a in x.values()]:
                raise ValueError("expected rows, but the arrays have none: give at least one")
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
        """Compares all numbers in the graph; calls Python to refuse any, or if in doubt."""
        import tensorflow as tf

        # Check names, types and known sizes now; ragged tensors are not passed on.
        flat = [x if isinstance(x, tf.Tensor) else tf.constant("") for x in tf.nest.flatten(batch)]
        if is_known := all(x.shape.rank is not None for x in flat):
            self._check(*batch)

        def refuse() -> tf.Tensor:
            tf.numpy_function(lambda *x: self._check(*tf.nest.pack_sequence_as(batch, x)), flat, [])
            return tf.constant(True)

        all_hold = [limit.holds() for limit in self._limits(*batch)] if is_known else [False]
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
