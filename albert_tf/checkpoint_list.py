"""The file `checkpoint`: which of a directory's checkpoints are complete, and which is the newest.

It is TensorFlow's CheckpointState as text, replaced in one rename. Before its first checkpoint a
run claims its directory: the list then names model.ckpt-none, which never exists.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from albert_tf import files

_FILE = "checkpoint"
CLAIM = "model.ckpt-none"
# A line of the list as written by TensorFlow; the group is a path.
_LIST_LINE = re.compile(
    r'(?:all_)?model_checkpoint_paths?: *"((?:[^"\\]|\\.)*)"|'
    r"(?:all_model_checkpoint|last_preserved)_timestamps?: *[-+.\w]+|\s*"
)


def read(directory: str) -> list[str]:
    """Returns the names of the checkpoints that a directory's list has, oldest first.

    Raises:
      ValueError: If the list exists but can't be parsed.
    """
    path = os.path.join(directory, _FILE)
    if not files.exists(path):
        return []
    if files.size(path) > files.SMALL_BYTES:
        raise ValueError(f"{path} is too large to be a list of checkpoints: remove it")
    files.check_regular(path)
    try:
        paths = _paths_listed(files.read_bytes(path).decode())
    except files.errors(ValueError):
        raise ValueError(
            f"{path} can't be read as a list of checkpoints: copy it again or make it readable; "
            "or name another directory, to start afresh"
        ) from None
    return [os.path.basename(path) for path in paths]


def _paths_listed(text: str) -> list[str]:
    """Returns the paths in the text of a list, oldest first.

    The last one is that of model_checkpoint_path, which a user may have set back.
    """
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


def write(directory: str, names: Sequence[str]) -> None:
    """Replaces a directory's list by these names, oldest first, in one rename."""
    # Names without a directory: the output can be moved, or mounted elsewhere.
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    files.replace(os.path.join(directory, _FILE), "\n".join(lines) + "\n")


def claim(directory: str) -> None:
    """Marks a directory as claimed by a new run, until its first checkpoint is listed."""
    write(directory, [CLAIM])
