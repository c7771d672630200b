"""A classifier's class names, stored beside its weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from albert_tf.conversion import huggingface, layouts
from albert_tf.conversion.names import CLASSIFIER, CLASSIFIER_BIAS
from albert_tf.storage import files
from albert_tf.storage.text_files import class_of, parse_json

LABELS_FILE = "labels.jsonl"


def write(directory: str, labels: Sequence[str]) -> None:
    """Writes class names in the order of their ids, one per line."""
    lines = [json.dumps(label, ensure_ascii=False) + "\n" for label in labels]
    files.replace(os.path.join(directory, LABELS_FILE), "".join(lines))


def read(directory: str) -> tuple[str, ...]:
    """Returns class names in the order of their ids, as `write` stored them."""
    path = os.path.join(directory, LABELS_FILE)
    if not files.exists(path):
        raise FileNotFoundError(
            f"{path} does not exist: it lists the labels that the model was trained on"
        )
    labels: dict[str, None] = {}
    lines = files.read_bytes(path, files.SMALL_BYTES).splitlines()
    if len(lines) > huggingface.MOST_LABELS:
        raise ValueError(f"{path} has {len(lines):,} labels, more than {huggingface.MOST_LABELS:,}")
    for number, line in enumerate(lines, start=1):
        label = parse_json(line, f"{path}:{number}")
        if not isinstance(label, str) or label in labels:
            raise ValueError(
                f"{path}:{number}: expected a label that is not listed before, got {label!r}"
            )
        labels[label] = None
    return tuple(labels)


def find(path: str, num_labels: int) -> tuple[str, ...]:
    """Returns the class names stored beside a model's weights, by id; () if there are none."""
    labels = stored(path) if num_labels > 1 else ()
    if labels and len(labels) != num_labels:
        raise ValueError(
            f"expected {num_labels} labels beside the weights of {path}, one per class of the "
            f"model, got {len(labels)} ({', '.join(labels)}): put the model's own labels there"
        )
    return labels


def stored(path: str) -> tuple[str, ...]:
    """Returns the class names in LABELS_FILE or Hugging Face's config, however many."""
    directory = files.directory_of(path)
    if files.exists(os.path.join(directory, LABELS_FILE)):
        return read(directory)
    return huggingface.read_labels(directory) if huggingface.matches(directory) else ()


def check_order(labels: Sequence[str], path: str) -> None:
    """Checks that labels, if the same as beside a model's weights, are in the same order, too."""
    beside = stored(path) if labels else ()
    if tuple(labels) != beside and sorted(labels) == sorted(beside):
        raise ValueError(
            f"the classes of {path} are stored in the order {', '.join(beside)}, `labels` in "
            f"another ({', '.join(labels)}): leave `labels` out"
        )


def in_order(
    path: str, weights: Mapping[str, np.ndarray], classes: Sequence[str], leave_others: bool
) -> dict[str, np.ndarray]:
    """Returns a model's weights with its classifier's rows in the order of a task's classes.

    A classifier without stored names, or with another number of classes, stays as it is. If the
    names differ, that is an error or, with `leave_others`, the classifier is left out.
    """
    # Matrix and bias of a classifier have a row per class.
    rows = {np.shape(weights.get(name, ()))[:1] for name in CLASSIFIER}
    named = stored(path) if classes and rows == {(len(classes),)} else ()
    if not named:
        return dict(weights)
    # The same names in another order: sort the rows.
    known = {class_of(name): i for i, name in enumerate(named)}
    if known.keys() == {*map(class_of, classes)}:
        ids = [known[class_of(name)] for name in classes]
        return {**weights, **{name: weights[name][ids] for name in CLASSIFIER}}
    # Other names: another task's classifier.
    if not leave_others:
        raise ValueError(
            f"{path} has the classes {', '.join(named)}, but the task has {', '.join(classes)}: "
            f"train first (`do_train`); or, if only the names differ, put a {LABELS_FILE} with "
            "the task's names beside the weights, in the order of the class ids"
        )
    logging.warning(
        "%s has the head of another task (classes %s), which is not loaded", path, ", ".join(named)
    )
    return {name: value for name, value in weights.items() if name not in CLASSIFIER}


def count(path: str) -> int:
    """Returns the number of outputs of a stored classifier; 0 if there is none."""
    return sum(layouts.read_shapes(path).get(CLASSIFIER_BIAS, ()))
