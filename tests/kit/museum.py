"""Runs and files that are made once for all tests, when a test first asks for one.

A test asks by a session- or module-scoped fixture: `return museum("mrpc")` is the folder that a
function below has filled. Workers of pytest-xdist share it. Nothing is written there (the end of
the session checks that): a test that writes works on a copy, `shutil.copytree(mrpc / "out", ...)`.
A new exhibit is one more function here, for what tests of several files begin with.
"""

import fcntl
import json
import pathlib
import random
import shutil
from collections.abc import Callable

import numpy as np

from tests.kit import finetune_runs, pretraining_runs

_EXHIBITS: dict[str, Callable[[pathlib.Path, "Museum"], None]] = {}


class Museum:
    """The exhibits of a run of pytest, in one folder for all workers."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._states: dict[str, dict[str, str]] = {}

    def __call__(self, name: str) -> pathlib.Path:
        """Returns the folder of an exhibit, which is made if no worker has."""
        folder, state = self._folder / name, self._folder / f"{name}.json"
        self._folder.mkdir(exist_ok=True)
        with open(self._folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not state.exists():
                # An earlier attempt may have left an unfinished exhibit.
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                random.seed(0)
                np.random.seed(0)
                _EXHIBITS[name](folder, self)
                state.write_text(json.dumps(_state(folder)))
        self._states[name] = json.loads(state.read_text())
        return folder

    def check(self) -> None:
        """Checks that nobody has changed an exhibit that was asked for here."""
        for name, state in self._states.items():
            found = _state(self._folder / name)
            changed = sorted({path for path, _ in found.items() ^ state.items()})
            assert not changed, f"a test has changed the exhibit {name!r}: {changed}"


def _state(folder: pathlib.Path) -> dict[str, str]:
    """Returns the size and modification time of every file."""
    files = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {str(path): f"{stat.st_size} {stat.st_mtime_ns}" for path, stat in files.items()}


def exhibit(make: Callable[[pathlib.Path, Museum], None]) -> Callable[[pathlib.Path, Museum], None]:
    """Registers a function that fills the folder of the exhibit with its name."""
    _EXHIBITS[make.__name__] = make
    return make


@exhibit
def records(folder: pathlib.Path, museum: Museum) -> None:
    """A file of 31 pre-training records, a.tfrecord, and a config of one layer."""
    pretraining_runs.write_records(folder / "a.tfrecord", pretraining_runs.examples(31))
    pretraining_runs.write_config(folder / "albert_config.json", num_hidden_layers=1)


@exhibit
def pretrained(folder: pathlib.Path, museum: Museum) -> None:
    """Three updates on those records, checkpoints of steps 2 and 3, and an evaluation, in out."""
    steps = {"num_train_steps": 3, "save_checkpoints_steps": 2, "do_eval": True}
    command = pretraining_runs.command(museum("records"), output_dir=folder / "out", **steps)
    pretraining_runs.main(command)


@exhibit
def mrpc(folder: pathlib.Path, museum: Museum) -> None:
    """Four updates on MRPC, two evaluations, a prediction: out, and features."""
    parts = {"do_train": True, "do_eval": True, "do_predict": True}
    finetune_runs.main(finetune_runs.command("mrpc", folder, **parts))
