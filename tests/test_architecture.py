"""docs/architecture.md names what is there.

Can't see: whether what it says of a function is true.
"""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
WALKS = TEXT[TEXT.index("## Walks") : TEXT.index("## Decisions")]
# `file.py` or `file.py:name`, from albert_tf/.
NAMED = re.compile(r"`([\w/]+\.py)(?::(\w+))?`")


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(TEXT))))
def test_what_it_names_is_there(file, name):
    tree = ast.parse((ROOT / "albert_tf" / file).read_text())
    defined = {node.name for node in ast.walk(tree) if hasattr(node, "name")}
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not name or name in defined | assigned


def test_the_papers_sections_are_named_once():
    table = TEXT[TEXT.index("## The paper's sections") : TEXT.index("## Decisions")]
    rows = [row.split(" | ") for row in re.findall(r"^\| (.*) \|$", table, re.MULTILINE)[2:]]
    sections = [section for section, _ in rows]
    assert len({*sections}) == len(sections) > 9
    assert all(re.match(r"(\d|A)\.\d [A-Z]", section) for section in sections)
    assert all(NAMED.search(places) for _, places in rows)


def test_it_is_short():
    assert TEXT.count("\n") <= 150


def test_walks_open_few_files():
    walks = re.split(r"\n\*\*From ", WALKS)[1:]
    most = {walk.split("**")[0]: re.search(r"\((\d+) files", walk) for walk in walks}
    found = {walk.split("**")[0]: {file for file, _ in NAMED.findall(walk)} for walk in walks}
    for title, limit in most.items():
        assert not limit or len(found[title]) <= int(limit[1]), title
