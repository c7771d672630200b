"""Examples in docstrings run and print what they show; public names have one.

Not tested here: other classes, and methods.
"""

import ast
import doctest
import importlib
import pathlib

import pytest

import albert_tf
from albert_tf.training.trainer import Trainer

ROOT = pathlib.Path(albert_tf.__file__).parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


_PATHS = [path for path in sorted(ROOT.rglob("*.py")) if ">>>" in path.read_text()]
_PARTS = [path.relative_to(ROOT.parent).with_suffix("").parts for path in _PATHS]
WITH_EXAMPLES = [".".join(parts).removesuffix(".__init__") for parts in _PARTS]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_print_what_they_say(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(importlib.import_module(module), optionflags=OPTIONS)
    assert results.attempted and not results.failed


def test_what_is_public_has_an_example():
    """Names of `import albert_tf`, the Trainer, and layers and models that are not base classes."""
    documented = {name: getattr(albert_tf, name).__doc__ for name in albert_tf._HOMES}
    documented["Trainer"] = Trainer.__doc__
    trees = [ast.parse(path.read_text()) for path in (ROOT / "model").glob("*.py")]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    bases = {ast.unparse(base).rpartition(".")[2] for node in classes for base in node.bases}
    for node in classes:
        is_tuple = any(ast.unparse(base) == "NamedTuple" for base in node.bases)
        if not (node.name.startswith("_") or node.name in bases or is_tuple):
            documented[node.name] = ast.get_docstring(node)
    assert [name for name, text in documented.items() if ">>>" not in (text or "")] == []
