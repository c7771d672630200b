"""Node, with the packages of tests/peers/package.json."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "peers"
# A module is imported from here by its package's folder, as by name from a script in FOLDER.
PACKAGES = FOLDER / "node_modules"
_HOW = "install Debian's nodejs, npm and chromium, then run make test-peers"


def run_node(script: str | os.PathLike[str], *arguments: object, given: str = "") -> str:
    if not shutil.which("node") or not PACKAGES.is_dir():
        pytest.skip(f"Node or its packages are not installed: {_HOW}")
    command = ["node", os.fspath(script), *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def chromium() -> str:
    """Returns the path of Debian's Chromium; skips the test where there is none."""
    found = shutil.which("chromium")
    if not found:
        pytest.skip(f"chromium is not installed: {_HOW}")
    return found


def show_page(page: str | os.PathLike[str], *questions: object) -> list[dict]:
    """Returns what page.mjs sees in a page for each question; the layout must fit every width."""
    found = json.loads(run_node(FOLDER / "page.mjs", page, chromium(), given=json.dumps(questions)))
    assert found["met"] == [], "errors, or requests to other hosts"
    for answer in found["answers"]:
        for width in answer["widths"]:
            assert width["bar"] > 1 / 3 and width["overflow"] <= 0, answer
    return found["answers"]
