"""The library's folders import downwards only; its messages name arguments, the scripts' flags.

Not tested here: modules loaded by a computed name (`importlib`), as the package's `__init__` does.
"""

import ast
import graphlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "albert_tf"
# Lowest first; "" is for modules outside the folders. A folder may import those before it, except
# the ones listed as its value.
FOLDERS = {
    "storage": {"keras"},
    "console": {"keras"},
    "": {"keras", "tensorflow"},
    "text": {"keras", "tensorflow"},
    "records": {"keras"},
    # NumPy only: computing answers needs no framework.
    "answers": {"keras", "tensorflow", "records"},
    "model": set(),
    "conversion": {"tensorflow"},
    "training": set(),
    "tasks": set(),
    # It imports from training only a run's lock and its progress.
    "generator": {"keras", "model", "conversion", "tasks"},
    "serving": set(),
    "inspection": set(),
    "cli": set(),
}
# Modules that re-export a folder's public names, and the one that `python -m` runs.
ALIASES = {"optimization", "export", "predict", "conversion.__main__"}
# Imported upwards, when a method is called (`from_weights` is a method of every model), and by
# `python -m albert_tf.serving.server`.
UPWARDS = {
    ("model.configured", "albert_tf.conversion.loading"),
    ("serving.server", "albert_tf.cli.commands"),
}
# Modules that define flags, or name them in the help of settings.
WITH_FLAGS = {"console", "cli"}
SETTINGS = {"generator.settings", "conversion.settings", "serving.settings"}
# console/errors.py puts the dashes before an argument's name.
FLAG = re.compile(r"(?<![\w-])--[a-z]")
LEAVES = {*("data", "examples", "research", "tests", "tools")}
LEAVES |= {"run_pretraining", "run_finetune"}
# The source of each module by name; "__init__" is the package's own, which loads by computed names.
_NAMES = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in ROOT.rglob("*.py")}
MODULES = {n.removesuffix(".__init__"): p.read_text() for n, p in _NAMES.items() if n != "__init__"}


def _violations(module: str, source: str) -> list[str]:
    """Returns a line for each import or name that `module`, such as "tasks.glue", may not have."""
    imports = _imports(source, module)
    found = [f"imports {name}" for name in imports if not _may_import(module, name)]
    if re.search(r"\bFLAGS\b", source) and not _is_in(module, {"console"}):
        found.append("reads FLAGS")
    if not _is_in(module, WITH_FLAGS | SETTINGS):
        nodes = list(ast.walk(ast.parse(source)))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [getattr(node, "value", None) for node in nodes if id(node) not in docstrings]
        found += [f"speaks of a flag: {s}" for s in texts if isinstance(s, str) and FLAG.search(s)]
    return [f"{module} {each}" for each in dict.fromkeys(found)]


def _may_import(module: str, name: str) -> bool:
    folder, top, order = _folder(module), name.partition(".")[0], list(FOLDERS)
    if module in ALIASES or (module, name) in UPWARDS:
        return True
    if re.match(r"absl\.(flags|app)\b", name):
        return _is_in(module, WITH_FLAGS)
    if top != "albert_tf":
        return top not in LEAVES | FOLDERS[folder]
    imported = _module_of(name)
    if not imported or imported in ALIASES or _folder(imported) in FOLDERS[folder]:
        return False
    return order.index(_folder(imported)) <= order.index(folder)


def _is_in(module: str, names: set[str]) -> bool:
    return bool({module, module.partition(".")[0]} & names)


def _folder(module: str) -> str:
    top = module.partition(".")[0]
    return top if top in FOLDERS else ""


def _module_of(name: str) -> str:
    """Returns the module of "albert_tf.tasks.glue.GLUE_TASKS": "tasks.glue"; "" for the package."""
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts)


def _imports(source: str, module: str) -> list[str]:
    """Returns the full names of all imports, wherever in a module, as "package.module.name"."""
    names = []
    for node in ast.walk(ast.parse(source)):
        origin = ""
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relative to itself"
            origin = f"{node.module}."
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [origin + alias.name for alias in node.names]
    return names


def test_the_library_imports_downwards_and_reads_no_flags():
    assert [line for name, source in MODULES.items() for line in _violations(name, source)] == []


def test_no_module_imports_itself_through_others():
    graph = {
        n: {_module_of(name) for name in _imports(source, n) if (n, name) not in UPWARDS} - {""}
        for n, source in MODULES.items()
    }
    assert "text.tokenization" in graph["text.vocabulary"]
    graphlib.TopologicalSorter(graph).prepare()  # Raises CycleError.


def test_every_folder_has_a_level_and_says_what_it_is():
    folders = {path.parent.name: path for path in ROOT.glob("*/__init__.py")}
    assert {"", *folders} == set(FOLDERS)
    for path in folders.values():
        assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize(
    ("module", "source", "allowed"),
    [
        ("text.tokenization", "def f():\n  import tensorflow as tf", False),
        ("answers.span", "from albert_tf.records import spec", False),
        ("model.layers", "from albert_tf.training import optimizers", False),
        ("tasks.glue", "from albert_tf import optimization", False),
        ("model.heads", "from albert_tf import AlbertModel", False),
        ("records.spec", "import research.experiments.measure", False),
        ("generator.examples", "import albert_tf.model.albert", False),
        ("tasks.glue", "from absl.flags import DEFINE_bool", False),
        ("tasks.glue", "f(f'{a}: set --rows={b}')", False),
        ("records.spec", "import tensorflow as tf\nfrom absl import logging", True),
        ("optimization", "from albert_tf.training.optimizers import AdamW", True),
        ("tasks.glue", "'Source: --rows.'\nx = 'a -- b'", True),
        ("generator.create", "from albert_tf.training import progress", True),
    ],
)
def test_the_checker(module, source, allowed):
    assert len(_violations(module, source)) == (not allowed)
