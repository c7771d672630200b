"""Files of predictions: where they lie, and the probabilities from which ensembles are made."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import numpy as np

from albert_tf import files
from albert_tf.text_files import json_member, parse_json


def path_of(directory: str, split: str, name: str) -> str:
    """Returns the path of a file about a split: those of "test" are named without it."""
    return os.path.join(directory, name if split == "test" else f"{split}_{name}")


def probabilities_file(directory: str, split: str) -> str:
    """Returns the path of a split's probabilities: even those of "test" are named with it."""
    return os.path.join(directory, f"{split}_probabilities.json")


def write_probabilities(
    directory: str, split: str, ids: list[str], probabilities: np.ndarray
) -> None:
    """Writes the probabilities or numbers of a split, a row for each id."""
    stored = {"ids": ids, "probabilities": probabilities.tolist()}
    files.replace(probabilities_file(directory, split), json.dumps(stored) + "\n")


def mean_probabilities(directories: Sequence[str], split: str, ids: list[str]) -> np.ndarray:
    """Returns the mean of what `write_probabilities` wrote to directories for these ids.

    Raises:
      FileNotFoundError: If a directory has no such file.
      ValueError: If a file is damaged, has other ids, or another number of classes.
    """
    stored = [_read(probabilities_file(path, split), ids) for path in directories]
    if len({values.shape for values in stored}) > 1:
        raise ValueError(f"{', '.join(directories)} must have the same number of classes")
    return np.mean(stored, axis=0)


def _read(path: str, ids: list[str]) -> np.ndarray:
    if not files.exists(path):
        raise FileNotFoundError(
            f"{path} does not exist: run prediction (`do_predict`; for dev `do_eval`) there first"
        )
    stored = parse_json(files.read_bytes(path), path)
    if json_member(stored, "ids", path, list) != ids:
        raise ValueError(
            f"{path} has other examples than those to predict: predict these there first"
        )
    return np.array(json_member(stored, "probabilities", path, list))
