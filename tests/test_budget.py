"""The repository's weight: a number below grows only if another one shrinks.

A commit that raises a number says in its body what was removed in return. One that leaves much
room lowers it, so that nobody uses up the room unnoticed; the test enforces that.
"""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# Lines of Python in the library's folders ("." has the files beside them) ...
LIBRARY = {
    ".": 602,
    "answers": 1682,
    "cli": 3007,
    "console": 822,
    "conversion": 2936,
    "generator": 2690,
    "inspection": 679,
    "model": 3238,
    "records": 1365,
    "serving": 5828,
    "storage": 1794,
    "tasks": 5404,
    "text": 2035,
    "training": 2945,
}
# ... in all of tests/ and research/, and lines of the pages in docs/.
TESTS, RESEARCH, DOCS = 34_514, 10_581, 3_456
TRACKED_FILES = 902
ROOT_FOLDERS, ROOT_FILES = 10, 12
# Share of the library's lines that are comments.
COMMENTS = 0.05
# A number that exceeds the actual count by more than this must be lowered.
ROOM = 100
HEADLESS = re.compile(r"^\s*#:? (Of|What|Whose|Those)\b", re.MULTILINE)


def texts(folder: str, pattern: str = "**/*.py") -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).glob(pattern))]


def lines(texts: list[str]) -> int:
    return sum(text.count("\n") for text in texts)


@pytest.mark.parametrize("folder", LIBRARY)
def test_lines_of_the_library(folder):
    pattern = "*.py" if folder == "." else "**/*.py"
    found = lines(texts(f"albert_tf/{folder}", pattern))
    assert LIBRARY[folder] - ROOM <= found <= LIBRARY[folder]


def test_every_folder_has_a_number():
    found = {path.parent.name for path in (ROOT / "albert_tf").glob("*/*.py")}
    assert found == LIBRARY.keys() - {"."}


@pytest.mark.parametrize(
    ("folder", "pattern", "most"),
    [("tests", "**/*.py", TESTS), ("research", "**/*.py", RESEARCH), ("docs", "*.md", DOCS)],
)
def test_lines_of_other_folders(folder, pattern, most):
    assert most - ROOM <= lines(texts(folder, pattern)) <= most


def test_files():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("this is not a clone")
    assert len(tracked) <= TRACKED_FILES
    folders = {name.partition("/")[0] for name in tracked if "/" in name}
    assert len(folders) <= ROOT_FOLDERS
    assert len([name for name in tracked if "/" not in name]) <= ROOT_FILES


def test_comments_are_many_and_have_a_noun():
    library = texts("albert_tf")
    comments = [line for text in library for line in text.splitlines() if line.strip()[:1] == "#"]
    assert len(comments) >= COMMENTS * lines(library)
    found = [m[0].strip() for t in (*library, *texts("tests")) for m in HEADLESS.finditer(t)]
    assert not found
