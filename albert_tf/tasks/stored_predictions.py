"""Files of predictions: where they lie, and the probabilities from which ensembles are made."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf import files
from albert_tf.tasks import feature_cache
from albert_tf.text_files import json_member, parse_json


def path_of(directory: str, split: str, name: str) -> str:
    """Returns the path of a file about a split: those of "test" are named without it."""
    return os.path.join(directory, name if split == "test" else f"{split}_{name}")


def probabilities_file(directory: str, split: str) -> str:
    """Returns the path of a split's probabilities: even those of "test" are named with it."""
    return os.path.join(directory, f"{split}_probabilities.json")


def write_probabilities(
    directory: str,
    split: str,
    ids: list[str],
    examples: Sequence[Any],
    probabilities: np.ndarray,
    several_writers: bool = False,
) -> None:
    """Writes the probabilities or numbers of a split's examples, a row for each id.

    Args:
      directory: Directory to write to.
      split: The split.
      ids: Of the rows.
      examples: The split's.
      probabilities: A row for each id.
      several_writers: Whether other runs may write the same file.
    """
    stored = {"ids": ids, "texts": _digest(examples), "probabilities": probabilities.tolist()}
    path = probabilities_file(directory, split)
    files.replace(path, json.dumps(stored) + "\n", several_writers)


def mean_probabilities(
    directories: Sequence[str], split: str, ids: list[str], examples: Sequence[Any]
) -> np.ndarray:
    """Returns the mean of what `write_probabilities` wrote to directories for these examples.

    Raises:
      FileNotFoundError: If a directory has no such file.
      ValueError: If a file is damaged, has other examples, or another number of classes.
    """
    texts = _digest(examples)
    stored = [_read(probabilities_file(path, split), ids, texts) for path in directories]
    if len({values.shape for values in stored}) > 1:
        raise ValueError(f"{', '.join(directories)} must have the same number of classes")
    return np.mean(stored, axis=0)


def _digest(examples: Sequence[Any]) -> str:
    """Returns a digest of texts, if the ids of examples are numbers of lines, which tell nothing.

    Labels don't count: not every file to predict has them.
    """
    if not all(example.guid.isdigit() for example in examples):
        return ""
    label = "labels" if hasattr(next(iter(examples), None), "labels") else "label"
    unlabelled = [dataclasses.replace(each, **{label: None}) for each in examples]
    return feature_cache.digest(unlabelled)


def _read(path: str, ids: list[str], texts: str) -> np.ndarray:
    if not files.exists(path):
        raise FileNotFoundError(
            f"{path} does not exist: run prediction (`do_predict`; for dev `do_eval`) there first"
        )
    stored = parse_json(files.read_bytes(path), path)
    # Earlier versions stored no digest.
    has_others = json_member(stored, "ids", path, list) != ids
    if has_others or stored.get("texts", texts) != texts:
        raise ValueError(
            f"{path} has other examples than those to predict: predict these there first, or "
            "name the file and the columns that it was made of"
        )
    return np.array(json_member(stored, "probabilities", path, list))
