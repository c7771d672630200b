"""A step: one command, in a directory named by a digest of all its inputs."""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

SCRIPTS = {
    "text": "data/prepare_sotu.py",
    "part": "research/experiments/part.py",
    "vocabulary": "data/train_sentencepiece.py",
    "extend": "data/extend_vocabulary.py",
    "records": "data/create_pretraining_data.py",
    "unigram": "research/experiments/unigram.py",
    "pretrain": "run_pretraining.py",
    "evaluate": "run_pretraining.py",
    "documents": "research/experiments/corpus.py",
    "words": "research/experiments/corpus.py",
    "measure": "research/experiments/measure.py",
    "finetune": "run_finetune.py",
    "hits": "research/experiments/hits.py",
}
_KEY_CHARACTERS = 12
# `{NAME}` in a flag is the directory of another step.
_REFERENCE = re.compile(r"\{(\w+)\}")
# The scripts run here; relative paths in their flags are relative to it.
ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
      kind: A key of SCRIPTS.
      flags: The script's; {NAME} stands for the directory of a step in `needs`, {out} for its own.
      needs: Keys of other steps, by their names in flags.
      config: The model's config, if it needs one: {out}/albert_config.json.
      files: Digests of the user's local files that flags name.
    """

    kind: str
    flags: dict[str, Any]
    needs: dict[str, str]
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    files: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """Returns all fields, always in the same order."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @property
    def key(self) -> str:
        """Its name: the kind and a digest of the rest; users' files count by digest, not path."""
        named = {name for name in self.files if "{" not in self.flags[name]}
        flags = {name: value for name, value in self.flags.items() if name not in named}
        shaped = dataclasses.replace(self, flags=flags).to_json()
        digest = hashlib.sha256(shaped.encode()).hexdigest()
        return f"{self.kind}-{digest[:_KEY_CHARACTERS]}"


def references(flags: Mapping[str, Any]) -> set[str]:
    """Returns the names of other steps whose directories flags name."""
    texts = [value for value in flags.values() if isinstance(value, str)]
    return {name for text in texts for name in _REFERENCE.findall(text)}


def digests(flags: dict[str, Any]) -> dict[str, str]:
    """Returns, for each flag that names files, a digest of names and content, not of the place."""
    found = {}
    for flag, value in flags.items():
        digest = hashlib.sha256()
        paths = _list_files(value) if isinstance(value, str) else []
        for name, path in paths:
            digest.update(f"{name}\0{_digest(path, path.stat().st_mtime_ns)}\0".encode())
        if paths:
            found[flag] = digest.hexdigest()
    return found


def _list_files(value: str) -> list[tuple[str, pathlib.Path]]:
    """Returns the local files that a flag's value names, each with its name or relative path.

    The value may have several paths or globs, separated by commas. A path with a slash may also be
    a directory, or a checkpoint's prefix.
    """
    found = []
    for pattern in filter(None, value.split(",")):
        matches = glob.glob(pattern, root_dir=ROOT)
        if not matches and os.sep in pattern:
            matches = glob.glob(f"{glob.escape(pattern)}.*", root_dir=ROOT)
        for match in sorted(ROOT / one for one in matches):
            if match.is_file():
                found.append((match.name, match))
            elif os.sep in pattern:
                inside = sorted(path for path in match.rglob("*") if path.is_file())
                found += [(str(path.relative_to(match)), path) for path in inside]
    return found


@functools.cache
def _digest(path: pathlib.Path, changed_ns: int) -> str:
    """Returns the digest of a file's content, cached until the file changes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
