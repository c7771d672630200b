import functools

import pytest

from tests.generator import runs


@pytest.fixture
def run(tmp_path):
    """Runs the script on the golden text, with changed flags; returns its output file."""
    return functools.partial(runs.make, tmp_path)


@pytest.fixture
def short_text(tmp_path):
    path = tmp_path / "short.txt"
    whole = runs.TEXT.read_text(encoding="utf-8")
    path.write_text("\n\n".join(whole.split("\n\n")[:9]), encoding="utf-8")
    return path
