"""run.json, the record of a run: written when a training begins or continues, read by others."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from typing import Any

from albert_tf.storage import files
from albert_tf.storage.text_files import json_member, read_json_object

RUN_FILE = "run.json"
_PACKAGES = ("albert_tf", "keras", "tensorflow", "jax", "numpy")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


@dataclasses.dataclass(frozen=True)
class TaskRecord:
    """The task of a fine-tuned model."""

    name: str  # "" if the task is not known.
    # The kind of its answers as JSON, as far as it is known; see answers.kind.Kind.to_json.
    kind: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The description of a run; all values are plain JSON."""

    settings: Mapping[str, Any]  # The script's settings, by name.
    config: Mapping[str, Any]  # The model's.
    # Digests of the run's data, by their names; see `digest`.
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)
    task: TaskRecord | None = None  # None for pre-training.
    command: str = ""  # The command line.
    # Versions of Python and of packages.
    versions: Mapping[str, str] = dataclasses.field(default_factory=_versions)
    # Settings as they were given, if the run then chose other values, which are in `settings`.
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def write(self, directory: str) -> None:
        """Writes the record into a directory, whole or not at all."""
        text = json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)
        files.replace(os.path.join(directory, RUN_FILE), text + "\n")


def find_run(path: str) -> RunRecord | None:
    """Returns the record in a run's directory, or beside its weights; None if there is none."""
    file = os.path.join(files.directory_of(path), RUN_FILE)
    if not files.is_file(file):
        return None
    stored = read_json_object(file)
    names = [field.name for field in dataclasses.fields(RunRecord)]
    damaged = [name for name in ("settings", "config") if not isinstance(stored.get(name), dict)]
    if damaged:
        raise ValueError(f"{file} has no {' and '.join(damaged)}: it is no record of a run")
    found = {name: stored[name] for name in names if name in stored}
    if stored.get("task"):
        members = {"name": str, "kind": dict}
        task = {n: json_member(stored["task"], n, file, member) for n, member in members.items()}
        found["task"] = TaskRecord(**task)
    return RunRecord(**found)


def digest(value: Any) -> str:
    """Returns a digest of plain JSON, the same in every process."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
