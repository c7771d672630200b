"""Runs a script of the release, or one of ours, in a process of its own, unless it has run."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping

THEIRS, OURS = "release", "albert_tf"
ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Scripts:
    """Both sides' scripts.

    Attributes:
      release: A clone of google-research/albert, as it is.
      python: The Python 3.7 that has TensorFlow 1.15.
      folder: Where all runs write; what is complete there is not run again.
    """

    release: pathlib.Path
    python: pathlib.Path
    folder: pathlib.Path

    def run_theirs(self, name: str, script: str, **flags: object) -> pathlib.Path:
        """Runs a script of the release with an `output_dir` of this name, and returns that."""
        # Its modules import each other from a package `albert`.
        package = self.folder / "packages" / "albert"
        if not package.exists():
            package.parent.mkdir(parents=True, exist_ok=True)
            package.symlink_to(self.release.resolve())
        command = [str(self.python), "-m", f"albert.{script}"]
        # The other Python must not see this one's packages.
        paths = {"PYTHONPATH": str(package.parent)}
        return self._run(name, command, paths, flags)

    def run_ours(self, name: str, script: str, **flags: object) -> pathlib.Path:
        """Runs a script of ours with an `output_dir` of this name, and returns that."""
        return self._run(name, [sys.executable, str(ROOT / f"{script}.py")], {}, flags)

    def _run(
        self, name: str, command: list[str], environment: Mapping[str, str], flags: dict
    ) -> pathlib.Path:
        output = self.folder / name
        done = output / "complete"
        if done.exists():
            return output
        output.mkdir(parents=True, exist_ok=True)
        flags = {"output_dir": output, **flags}
        given = [f"--{flag}={value}" for flag, value in flags.items()]
        started = time.monotonic()
        with open(output / "log.txt", "a", encoding="utf-8") as log:
            code = subprocess.run(
                [*command, *given],
                env={**os.environ, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        if code:
            sys.exit(f"error: {name} failed with exit code {code}; see {log.name}")
        seconds = time.monotonic() - started
        done.write_text(f"{seconds:.0f} seconds\n")
        print(f"{name}: {seconds:.0f} s", flush=True)
        return output
