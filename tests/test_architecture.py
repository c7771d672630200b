"""docs/architecture.md names only what exists; few files name any one kind of model.

Not tested here: whether its statements are true; code that tells kinds apart by their attributes.
"""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

from albert_tf.answers.kinds import KINDS
from albert_tf.serving import served_tasks

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
# `file.py` or `file.py:name`, relative to albert_tf/.
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


def _named(path: pathlib.Path) -> tuple[set[str], set[str]]:
    """Returns the names in a file's code, and its strings except docstrings."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {ast.get_docstring(n, clean=False) for n in ast.walk(tree) if isinstance(n, documented)}
    nodes = list(ast.walk(tree))
    of = {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name", ast.keyword: "arg"}
    of |= {ast.arg: "arg", ast.ClassDef: "name", ast.AnnAssign: "target"}
    names = {str(getattr(n, attribute)) for n in nodes if (attribute := of.get(type(n)))}
    return names, {n.value for n in nodes if isinstance(n, ast.Constant)} - docs


# Left out: the lists of public names.
PUBLIC = ("__init__.py", "export.py")
_PATHS = {str(p.relative_to(ROOT / "albert_tf")): p for p in (ROOT / "albert_tf").rglob("*.py")}
FILES = {name: _named(path) for name, path in _PATHS.items() if name not in PUBLIC}


@pytest.mark.parametrize("kind", KINDS)
def test_few_files_name_a_kind(kind):
    """By the name of its class, its model (unless pre-training's) or its graph, or by its task."""
    classes = {each.__name__ for each in (kind, served_tasks.graph_of(kind))}
    classes |= {kind.model} if kind.title != KINDS[0].title else set()
    found = [f for f, (names, strings) in FILES.items() if (names | strings) & classes]
    found += [f for f, (_, strings) in FILES.items() if kind.task in strings and f not in found]
    assert len(found) <= 9, found


def test_few_files_know_an_option():
    found = [f for f, (names, strings) in FILES.items() if "doc_stride" in names | strings]
    assert len(found) <= 7, found  # Besides, serving/web/model.js has it.
