"""A run's checkpoints: listed, found, read, saved, and the best one copied.

A checkpoint is a bundle: files that share a prefix. A run's directory holds model.ckpt-<step>, the
copy model.ckpt-best, and the file `checkpoint`, which lists the complete ones. Each file is
replaced in one rename, the list last, so that a process may be killed at any point.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from absl import logging

from albert_tf.storage import bundle, files

BASENAME = "model.ckpt"
BEST = "best"
_DATA, _INDEX, _META = ".data-00000-of-00001", ".index", ".meta"
_ENDING = re.compile(rf"\.index$|\.meta$|{re.escape(_DATA)}$")
_FILE = "checkpoint"
CLAIM = "model.ckpt-none"
# A line of the list as TensorFlow writes it; the group is a path.
_LIST_LINE = re.compile(
    r'(?:all_)?model_checkpoint_paths?: *"((?:[^"\\]|\\.)*)"|'
    r"(?:all_model_checkpoint|last_preserved)_timestamps?: *[-+.\w]+|\s*"
)
_Read = TypeVar("_Read")


def read_list(directory: str) -> list[str]:
    """Returns the names of the checkpoints in a directory's list, oldest first."""
    path = os.path.join(directory, _FILE)
    if not files.exists(path):
        return []
    try:
        paths = _paths_listed(files.read_bytes(path, files.SMALL_BYTES).decode())
    except files.errors(ValueError) as error:
        raise ValueError(
            f"{path} can't be read as a list of checkpoints ({files.reason(error)}): copy it again "
            "or make it readable; or name another directory, to start afresh"
        ) from None
    return [os.path.basename(path) for path in paths]


def _paths_listed(text: str) -> list[str]:
    """Returns the paths in the text of a list, oldest first.

    The last one is model_checkpoint_path, which a user may have set to an older checkpoint.
    """
    # A checkpoint may be listed twice: as the one to resume from, and among all.
    newest: list[str] = []
    every: list[str] = []
    for line in text.splitlines():
        found = _LIST_LINE.fullmatch(line)
        if not found:
            raise ValueError(f"not a line of a list of checkpoints: {line!r}")
        if found[1] is not None:
            # Non-ASCII bytes may be written as octal escapes.
            path = found[1].encode().decode("unicode_escape").encode("latin-1").decode()
            (every if line.startswith("all") else newest).append(path)
    if not newest:
        raise ValueError("no checkpoint is listed")
    return [path for path in every if path not in newest[-1:]] + newest[-1:]


def write_list(directory: str, names: Sequence[str]) -> None:
    """Replaces a directory's list by these names, oldest first, in one rename."""
    # Names without a directory, so that the output can be moved or mounted elsewhere.
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    files.replace(os.path.join(directory, _FILE), "\n".join(lines) + "\n")


def claim(directory: str) -> None:
    """Marks a directory as claimed by a new run, until its first checkpoint is listed."""
    write_list(directory, [CLAIM])


def resolve(path: str) -> str:
    """Returns the prefix of a checkpoint.

    Args:
      path: The prefix, one of the checkpoint's files, or a directory, which stands for its newest
        checkpoint or, if there is none, its best.
    """
    path = os.fspath(path)
    # Users also give a file's full name, since that is what their shell completes.
    prefix = _ENDING.sub("", path)
    # A directory may have the same name as a prefix; the checkpoint's files take precedence.
    if files.exists(prefix + _INDEX):
        return prefix
    if files.is_dir(path):
        found = latest(path) or best(path)
        if found:
            return found
        raise FileNotFoundError(
            f"{path} contains no checkpoint: expected a file named checkpoint that lists one, or "
            f"{BASENAME}-{BEST}{_INDEX}"
        )
    raise FileNotFoundError(
        f"there is no checkpoint {path}: expected {prefix}{_INDEX}; give the path without .index"
    )


def spelled_out(path: str) -> str:
    """Returns the canonical form of a path: absolute, without links and a file's ending."""
    prefix = _ENDING.sub("", path)
    return prefix.rstrip("/") if files.is_remote(prefix) else os.path.realpath(prefix)


def latest(directory: str) -> str | None:
    """Returns the prefix of the newest complete checkpoint of a directory, or None."""
    return next(reversed(listed(directory)), None)


def best(directory: str) -> str | None:
    """Returns the prefix of a directory's best checkpoint, or None."""
    prefix = os.path.join(directory, f"{BASENAME}-{BEST}")
    return prefix if files.exists(prefix + _INDEX) else None


def to_use(directory: str, evaluates: bool) -> str | None:
    """Returns the checkpoint to predict with: the best, else the newest.

    If the run does not evaluate, a best checkpoint belongs to an earlier run, so the newest is
    preferred.
    """
    finders = (best, latest) if evaluates else (latest, best)
    return finders[0](directory) or finders[1](directory)


def listed(directory: str) -> list[str]:
    """Returns the prefixes of a directory's complete checkpoints, oldest first.

    Differs: only the names in the list count, not their directories: it may have been copied from
    another one. Files elsewhere are never read.
    """
    paths = [os.path.join(directory, name) for name in read_list(directory)]
    return [path for path in paths if files.exists(path + _INDEX)]


def step_of(prefix: str) -> int:
    """Returns the step in the name of a checkpoint, model.ckpt-<step>."""
    return int(prefix.rpartition("-")[2])


def unlisted(directory: str) -> list[str]:
    """Returns the prefixes of a directory's checkpoints that its list does not name.

    In a directory that a run has claimed, model.ckpt-<step> are left out: the run was stopped
    before it could list them.
    """
    names = read_list(directory)
    own = "|".join(map(re.escape, names)) if names != [CLAIM] else rf"{re.escape(BASENAME)}-\d+"
    patterns = (f"*{_INDEX}", "*.data-?????-of-?????")
    found = [path for pattern in patterns for path in files.find(directory, pattern)]
    prefixes = sorted({re.sub(r"\.(index|data-[^/]*)$", "", path) for path in found})
    return [path for path in prefixes if not re.fullmatch(own, os.path.basename(path))]


def lost(directory: str) -> list[str]:
    """Returns the names in a directory's list if none of these checkpoints exists any more."""
    names = [name for name in read_list(directory) if name != CLAIM]
    return [] if listed(directory) else names


def read(path: str) -> dict[str, np.ndarray]:
    """Returns all tensors of a checkpoint by name; `path` is what `resolve` takes."""
    return _read(path, bundle.read)


def shapes(path: str) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a checkpoint's tensors by name, without reading them."""
    return _read(path, lambda prefix: {e.name: e.shape for e in bundle.read_index(prefix)})


def _read(path: str, reader: Callable[[str], _Read]) -> _Read:
    prefix = resolve(path)
    try:
        return reader(prefix)
    except files.errors(IndexError, ValueError) as error:
        if not files.exists(prefix + _INDEX):
            raise FileNotFoundError(
                f"checkpoint {prefix} was deleted while it was being read"
            ) from None
        raise ValueError(
            f"checkpoint {prefix} is damaged ({files.reason(error)}): copy it again, or name an "
            "older one; to resume a run from the one before, remove the files of this one"
        ) from None


def save(directory: str, step: int, tensors: Mapping[str, Any], keep_max: int) -> str:
    """Writes a checkpoint, lists it, and deletes the oldest beyond `keep_max` if it is not 0."""
    prefix = os.path.join(directory, f"{BASENAME}-{step}")
    write(prefix, tensors)
    # List the new checkpoint once it is complete, and delete old ones once they are not listed.
    kept = [path for path in listed(directory) if path != prefix] + [prefix]
    dropped = kept[:-keep_max] if keep_max else []
    kept = kept[len(dropped) :]
    write_list(directory, [os.path.basename(path) for path in kept])
    for path in dropped:
        _delete(path)
    return prefix


def write(prefix: str, tensors: Mapping[str, Any]) -> None:
    """Writes a checkpoint of arrays, tensors or variables by name, without listing it.

    The file .meta, in TensorFlow 1 the graph, is empty: the release's evaluation copies and deletes
    it.
    """
    import tensorflow as tf

    files.replace(prefix + _META, "")
    names = sorted(tensors)
    values = [tf.convert_to_tensor(tensors[name]) for name in names]
    # The op writes temporary files and renames them when they are complete, the index last.
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values
    )
    # Otherwise a power cut could leave empty files that are listed.
    files.flush(prefix + _DATA, prefix + _INDEX)


def copy_to_best(prefix: str) -> dict[str, str]:
    """Copies a checkpoint to model.ckpt-best; returns the files copied -> their copies.

    The index is deleted first and written last: a process killed in between leaves no best
    checkpoint, never a mixture of two.
    """
    import tensorflow as tf

    # Copy under temporary names first: the old best one stays as long as possible.
    target = os.path.join(os.path.dirname(prefix), f"{BASENAME}-{BEST}")
    endings = (_META, _DATA, _INDEX)
    copies = [f"{target}{ending}.tmp" for ending in endings]
    try:
        for ending, copy in zip(endings, copies, strict=True):
            tf.io.gfile.copy(prefix + ending, copy, overwrite=True)
    except tf.errors.OpError:  # A training run may have deleted the checkpoint meanwhile.
        for copy in filter(files.exists, copies):
            tf.io.gfile.remove(copy)
        raise
    # From here until the index is renamed there is no best checkpoint.
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.remove(target + _INDEX)
    for ending, copy in zip(endings, copies, strict=True):
        tf.io.gfile.rename(copy, target + ending, overwrite=True)
    return {prefix + ending: target + ending for ending in endings}


def remove_unfinished(directory: str) -> None:
    """Removes the files of a process killed while saving; no other process may be saving."""
    # Checkpoints after the last listed one, which may be whole: the process was killed before it
    # listed them, or a user has set the list back.
    saved = listed(directory)
    later = [
        prefix
        for prefix in (unlisted(directory) if saved else ())
        if re.fullmatch(rf"{BASENAME}-\d+", os.path.basename(prefix))
        and step_of(prefix) > step_of(saved[-1])
    ]
    if later:
        logging.warning(
            "%s: removing %s, which the file `checkpoint` does not list: the run goes on from %s",
            directory,
            ", ".join(map(os.path.basename, later)),
            os.path.basename(saved[-1]),
        )
    for prefix in later:
        _delete(prefix)
    # TensorFlow's op leaves temporary files when it is killed.
    for path in files.find(directory, f"{BASENAME}-*.tempstate*"):
        files.gfile().remove(path)


def _delete(prefix: str) -> None:
    for ending in (_INDEX, _DATA, _META):
        if files.exists(prefix + ending):
            files.gfile().remove(prefix + ending)
