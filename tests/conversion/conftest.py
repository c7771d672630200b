import pathlib
import shutil
import sys

import pytest

from albert_tf.conversion.convert import convert
from tests.kit import goldens


@pytest.fixture(scope="session")
def _converted(tmp_path_factory):
    """Makes the release's tiny encoder, without heads, in a layout; once."""
    folder, done = tmp_path_factory.mktemp("layouts"), {}

    def make(layout: str) -> pathlib.Path:
        if layout not in done:
            done[layout] = folder / layout
            convert(str(goldens.FOLDER / "base"), layout, str(done[layout]), drop=["cls/"])
        return done[layout]

    return make


@pytest.fixture
def copy_of(_converted, tmp_path):
    """Returns a copy of that encoder in a layout, which the test may damage."""

    def copy(layout: str) -> pathlib.Path:
        return pathlib.Path(shutil.copytree(_converted(layout), tmp_path / layout))

    return copy


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """Makes a module `trap`; yields the path of a file that exists once it has been imported."""
    fired = tmp_path / "fired"
    program = f"open({str(fired)!r}, 'w').close()\ndef spring(*args, **kwargs): return 0\n"
    (tmp_path / "trap.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield fired
    sys.modules.pop("trap", None)
