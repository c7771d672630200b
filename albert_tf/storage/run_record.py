"""run.json: what a run is. A training writes it when it begins; later commands go by it.

Example:
    >>> record = RunRecord(settings={"learning_rate": 0.001}, config={"hidden_size": 64})
    >>> record.write(".")
    >>> find_run("model.ckpt-1000").settings
    {'learning_rate': 0.001}
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from typing import Any

from albert_tf.storage import files
from albert_tf.storage.text_files import read_json_object

RUN_FILE = "run.json"
_PACKAGES = ("albert_tf", "keras", "tensorflow", "jax", "numpy")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """What a run is; all values are plain JSON.

    Attributes:
      settings: The script's settings, by name.
      config: The model's.
      data: Digests of the run's data, by what they are; see `digest`.
      task: What a fine-tuned model is for; empty for pre-training.
      command: The command line.
      versions: Of the packages that it runs on.
    """

    settings: Mapping[str, Any]
    config: Mapping[str, Any]
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)
    task: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    command: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=_versions)

    def write(self, directory: str) -> None:
        """Writes the record into a directory, whole or not at all."""
        text = json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)
        files.replace(os.path.join(directory, RUN_FILE), text + "\n")


def find_run(path: str) -> RunRecord | None:
    """Returns the record in a run's directory, or beside its weights; None if there is none.

    Raises:
      ValueError: If it is damaged.
    """
    file = os.path.join(files.directory_of(path), RUN_FILE)
    if not files.is_file(file):
        return None
    stored = read_json_object(file)
    names = [field.name for field in dataclasses.fields(RunRecord)]
    damaged = [name for name in ("settings", "config") if not isinstance(stored.get(name), dict)]
    if damaged:
        raise ValueError(f"{file} has no {' and '.join(damaged)}: it is no record of a run")
    return RunRecord(**{name: stored[name] for name in names if name in stored})


def digest(value: Any) -> str:
    """Returns a digest of plain JSON, the same in every process.

    Example:
        >>> digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
        True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
