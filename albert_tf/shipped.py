"""The models and recipes that come with the package, by name."""

from __future__ import annotations

import os
import pathlib

_FOLDER = pathlib.Path(__file__).parent / "configs"


def is_name(path: str | os.PathLike[str]) -> bool:
    """Returns whether this may be a name: it has no folder and no suffix."""
    path = os.fspath(path)
    return os.path.basename(path) == path and not os.path.splitext(path)[1]


def models() -> dict[str, str]:
    """Returns the paths of the models' albert_config.json, by model name."""
    return _files(_FOLDER, ".json")


def recipes(script: str) -> dict[str, str]:
    """Returns the paths of the flag files of a script (pretraining or finetuning), by name."""
    folder = _FOLDER / "recipes"
    return _files(folder / "pretraining" if script == "pretraining" else folder, ".flags")


def _files(folder: pathlib.Path, suffix: str) -> dict[str, str]:
    return {path.stem: str(path) for path in sorted(folder.glob(f"*{suffix}"))}
