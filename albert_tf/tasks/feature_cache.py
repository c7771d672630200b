"""Features cached on disk, in a file whose name identifies everything that shaped them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf import files
from albert_tf.tasks.feature_table import FeatureTable

# Increment this whenever the same examples and settings give other features than before.
FORMAT = 4
_LOG_EVERY = 10_000
# The array that holds the names of the others.
_NAMES = "names"

Row = Mapping[str, np.ndarray]


def load_or_make(
    examples: Sequence[Any],
    make_rows: Callable[[Sequence[Any]], Iterable[Row]],
    settings: Mapping[str, Any],
    stem: str,
) -> FeatureTable:
    """Returns the features of examples, from the cached file if there is one.

    The file's name ends in a digest of the examples and the settings, and the file is written by
    one rename: it is always complete, and never stale. If it is damaged later, it is made again.

    Args:
      examples: Dataclasses whose `repr` shows all that they hold.
      make_rows: Makes their features, in the form that FeatureTable.from_rows takes.
      settings: Everything else that shapes the features, as JSON.
      stem: Beginning of the file's path.

    Raises:
      ValueError: If the examples give no row at all; also whatever `make_rows` raises.
    """
    path = f"{stem}-{digest(examples, [FORMAT, settings])}.npz"
    if files.exists(path):
        stored = _read(path)
        if stored is not None:
            logging.info("features of %d examples: read from %s", len(examples), path)
            return stored
        logging.warning("%s is damaged: it is written again", path)
    rows = list(_counted(make_rows(examples), len(examples)))
    if not rows:
        raise ValueError(
            f"none of {len(examples)} examples yields any features: check that they have text"
        )
    table = FeatureTable.from_rows(rows)
    _write(path, table)
    logging.info("features of %d examples: %d rows, in %s", len(examples), len(rows), path)
    return table


def digest(examples: Sequence[Any], settings: Any = None) -> str:
    """Returns a digest of examples, dataclasses, and of settings, as JSON."""
    found = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for example in examples:
        found.update(repr(example).encode("utf-8", "surrogatepass") + b"\n")
    return found.hexdigest()[:16]


def _counted(rows: Iterable[Row], num_examples: int) -> Iterator[Row]:
    for count, row in enumerate(rows, start=1):
        if count % _LOG_EVERY == 0:
            logging.info("features: %d rows of %d examples so far", count, num_examples)
        yield row


def _write(path: str, table: FeatureTable) -> None:
    arrays: dict[str, Any] = {
        "lengths": table.lengths,
        **{f"scalars/{name}": values for name, values in table.scalars.items()},
        **{f"sequences/{name}": values for name, values in table.sequences.items()},
    }
    content = io.BytesIO()
    arrays[_NAMES] = np.array(list(arrays))
    np.savez(content, **arrays)
    tf.io.gfile.makedirs(os.path.dirname(path) or ".")
    files.replace(path, content.getvalue(), several_writers=True)


def _read(path: str) -> FeatureTable | None:
    """Reads a file; returns None if it is damaged."""
    content = files.read_bytes(path)
    if not _is_whole(content):
        return None
    with np.load(io.BytesIO(content)) as stored:
        # An archive's list of members has no checksum, and may have lost some.
        if _NAMES not in stored or {_NAMES, *stored[_NAMES]} != set(stored.files):
            return None
        found: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in ("scalars", "sequences")}
        for name in stored.files:
            kind, _, feature = name.partition("/")
            if feature:
                found[kind][feature] = stored[name]
        return FeatureTable(stored["lengths"], **found)


def _is_whole(content: bytes) -> bool:
    # NumPy checks no checksum if an array's header asks for less data than there is.
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except Exception:  # For damaged bytes zipfile raises a dozen different errors.
        return False
