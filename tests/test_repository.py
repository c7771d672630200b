"""Links between the documents lead somewhere; locks pin what pyproject.toml requires.

Not tested here: whether the pinned versions work together.
"""

import importlib.metadata
import pathlib
import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("*.md", "docs/*.md", "findings/*.md", "research/**/*.md")
DOCUMENTS = [path for folder in FOLDERS for path in ROOT.glob(folder)]


def anchors(document: pathlib.Path) -> set[str]:
    """Returns the anchors of a document's headings, as GitHub makes them."""
    text = re.sub("^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall("^#+ (.*)", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


LOCKS = [f"tools/locks/requirements{end}.lock" for end in ("", "-tpu", "-tpu-jax")]
LOCKS += ["tools/tpu_check/requirements.txt"]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_what_the_project_requires(lock):
    text = (ROOT / lock).read_text()
    # The second line is the command that made it.
    command = text.splitlines()[1]
    extras = ["", *re.findall(r"--extra (\S+)", command)]
    left_out = re.findall(r"--no-emit-package (\S+)", command)
    pinned: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^ ;]+)", text, re.MULTILINE):
        pinned.setdefault(canonicalize_name(name), []).append(version)
    required = [Requirement(line) for line in importlib.metadata.requires("albert_tf")]
    for each in required:
        is_wanted = any(not each.marker or each.marker.evaluate({"extra": e}) for e in extras)
        if is_wanted and each.name not in left_out:
            versions = pinned.get(canonicalize_name(each.name), [])
            assert versions and all(map(each.specifier.contains, versions)), (str(each), versions)
