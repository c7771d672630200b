"""The library's folders import downwards only; it speaks of arguments, and scripts of flags.

Can't see: modules loaded by a computed name (`importlib`), as the package's `__init__` does.
"""

from __future__ import annotations

import ast
import graphlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "albert_tf"

# Lowest first: a folder imports those before it. "" holds what lies beside the folders.
FOLDERS = (
    "storage",
    "console",
    "",
    "text",
    "records",
    "model",
    "conversion",
    "training",
    "tasks",
    "generator",
    "serving",
    "inspection",
    "cli",
)
# Public names for what lies in a folder.
ALIASES = {
    *("agreement", "attention", "export", "optimization", "predict", "probes", "similarity"),
    "sizes",
}
WITHOUT_KERAS = {
    *("config", "costs", "registration", "scripts", "storage", "console", "text", "records"),
    *("tasks.metrics", "training.length_buckets", "training.stop_signals"),
}
WITHOUT_TENSORFLOW = {
    *("config", "costs", "registration", "scripts", "text"),
    *("model.albert", "model.finetuning", "model.heads"),
    *("console.tf_config", "console.figures"),
    *("storage.bundle", "storage.hub", "storage.parquet_files", "storage.protobuf"),
    *("storage.text_files", "records.example_encoding", "records.masking"),
    *("training.length_buckets", "training.optimizers", "tasks.losses", "tasks.metrics"),
    *("generator.documents", "generator.examples", "generator.report", "generator.workers"),
}
# What the generator has in common with training: the text and the records, and what a run needs.
NOT_THE_GENERATORS = {"model", "conversion", "training", "tasks"}
ITS_EXCEPTIONS = {"training.progress", "training.run_lock"}
# A model's `from_weights`.
MODELS_EXCEPTION = ("model.albert", "conversion.built")
# Scripts define flags and take their values. What a process's own are is scripts.py's business.
WITH_FLAGS = {
    "scripts",
    "cli",
    "console.settings",
    "generator.settings",
    "generator.create",
    "generator.flags",
    "generator.masking_flags",
    "generator.sentencepiece",
    "generator.text_flags",
    "generator.sotu",
}
# Of argparse.
WITH_OPTIONS = {
    *("conversion.__main__", "inspection.commands", "inspection.flags"),
    *("serving.arguments", "serving.export", "serving.predict"),
}
# errors.py puts the dashes before an argument's name.
FLAG = re.compile(r"(?<![\w-])--[a-z]")
LEAVES = (
    "data",
    "benchmarks",
    "examples",
    "experiments",
    "tests",
    "tools",
    "run_pretraining",
    "run_finetune",
)


def _violations(module: str, source: str) -> list[str]:
    """Returns a line for each import or name that `module`, as "tasks.glue", may not have."""
    tree = ast.parse(source)
    found = []
    for name in _imports(tree, module):
        top = name.partition(".")[0]
        if top in LEAVES:
            found.append(f"{module} imports {name}, which is no part of the library")
        elif top == "keras" and _is_in(module, WITHOUT_KERAS):
            found.append(f"{module} imports keras")
        elif top == "tensorflow" and _is_in(module, WITHOUT_TENSORFLOW):
            found.append(f"{module} imports tensorflow")
        elif name in ("absl.flags", "absl.app") or name.startswith("absl.flags."):
            if not _is_in(module, WITH_FLAGS):
                found.append(f"{module} imports {name}")
        elif top == "albert_tf":
            found.extend(_library_violations(module, name))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if "FLAGS" in names | attributes and module not in ("scripts", "console.settings"):
        found.append(f"{module} reads FLAGS")
    if not _is_in(module, WITH_FLAGS | WITH_OPTIONS):
        messages = _strings(tree)
        found += [f"{module} speaks of a flag: {text}" for text in messages if FLAG.search(text)]
    return list(dict.fromkeys(found))


def _strings(tree: ast.AST) -> list[str]:
    """Returns the strings of a tree that are no docstrings."""
    nodes = list(ast.walk(tree))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = (n for n in nodes if isinstance(n, ast.Constant) and id(n) not in alone)
    return [constant.value for constant in constants if isinstance(constant.value, str)]


def _is_in(module: str, names: set[str]) -> bool:
    return module in names or module.partition(".")[0] in names


def _library_violations(module: str, name: str) -> list[str]:
    imported = _module_of(name)
    if not imported:
        return [f"{module} imports {name}: import it from the module that defines it"]
    if imported in ALIASES:
        return [f"{module} imports {imported}, an alias: import what it stands for"]
    folder, other = _folder(module), _folder(imported)
    is_not_its_business = other in NOT_THE_GENERATORS and imported not in ITS_EXCEPTIONS
    if folder == "generator" and is_not_its_business:
        return [f"{module} imports {imported}, which is not the generator's business"]
    if (module, imported) == MODELS_EXCEPTION:
        return []
    if module not in ALIASES and FOLDERS.index(other) > FOLDERS.index(folder):
        return [f"{module} imports {imported}, which is not below it"]
    return []


def _folder(module: str) -> str:
    top = module.partition(".")[0]
    return top if top in FOLDERS else ""


def _module_of(name: str) -> str:
    """Returns the module of "albert_tf.training.task.Task": "training.task"; "" for the package."""
    parts = name.split(".")[1:]
    while parts and not any(path.exists() for path in _paths(parts)):
        parts.pop()
    return ".".join(parts)


def _paths(parts: list[str]) -> tuple[pathlib.Path, pathlib.Path]:
    return ROOT.joinpath(*parts).with_suffix(".py"), ROOT.joinpath(*parts, "__init__.py")


def _imports(tree: ast.AST, module: str) -> list[str]:
    """Returns the full names that a tree imports, wherever in it, as "package.module.name"."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = ["albert_tf", *module.split(".")][: -node.level] if node.level else []
            origin = ".".join([*package, *([node.module] if node.module else [])])
            names += [f"{origin}.{alias.name}" for alias in node.names]
    return names


def _modules() -> dict[str, str]:
    """Returns the source of each module by name, but for the package's own `__init__`."""
    paths = sorted(ROOT.rglob("*.py"))
    dotted = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    return {
        name.removesuffix(".__init__"): path.read_text()
        for path, name in dotted.items()
        if name != "__init__"
    }


def test_the_library_imports_downwards_and_reads_no_flags():
    modules = _modules()
    assert "training.optimizers" in modules
    found = [line for name, source in modules.items() for line in _violations(name, source)]
    assert not found, "\n".join(found)


def test_no_module_imports_itself_through_others():
    graph = {
        name: {_module_of(each) for each in _imports(ast.parse(source), name)} - {""}
        for name, source in _modules().items()
    }
    assert "text.tokenization" in graph["text.vocabulary"]
    model, builder = MODELS_EXCEPTION
    graph[model].remove(builder)
    graphlib.TopologicalSorter(graph).prepare()  # Raises CycleError.


def test_every_folder_has_a_level_and_says_what_it_is():
    folders = {path.parent.name: path for path in ROOT.glob("*/__init__.py")}
    assert {"", *folders} == set(FOLDERS)
    for path in folders.values():
        assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("config", "import keras", "config imports keras"),
        ("records.masking", "import keras.ops", "records.masking imports keras"),
        ("model.heads", "def f():\n  import tensorflow as tf", "model.heads imports tensorflow"),
        ("config", "from albert_tf.text import word_piece", "config imports text.word_piece, whi"),
        ("model.layers", "from ..training import optimizers", "model.layers imports training.opt"),
        ("text.tokenization", "import albert_tf.model.heads as h", "text.tokenization imports mo"),
        ("training.task", "from ..tasks.glue import GLUE", "training.task imports tasks.glue, wh"),
        ("training.trainer", "from albert_tf import tasks", "training.trainer imports tasks, whi"),
        ("tasks.glue", "from albert_tf.cli.checks import A, B", "tasks.glue imports cli.checks, w"),
        ("tasks.glue", "from albert_tf import optimization", "tasks.glue imports optimization, a"),
        ("model.heads", "from albert_tf import AlbertModel", "model.heads imports albert_tf.Albe"),
        ("records.spec", "from data import documents", "records.spec imports data.documents, w"),
        (
            "records.spec",
            "import experiments.measure",
            "records.spec imports experiments.measure",
        ),
        ("cli.pretrain", "import run_pretraining", "cli.pretrain imports run_pretraining, which"),
        (
            "generator.examples",
            "import albert_tf.training.trainer",
            "generator.examples imports training.trainer, which is not the generator's",
        ),
        ("generator.examples", "import tensorflow", "generator.examples imports tensorflow"),
        (
            "tasks.glue",
            "from albert_tf.generator import examples",
            "tasks.glue imports generator.ex",
        ),
        ("tasks.glue", "from absl import flags", "tasks.glue imports absl.flags"),
        ("tasks.glue", "from absl.flags import DEFINE_bool", "tasks.glue imports absl.flags.DEF"),
        ("tasks.glue", "x = FLAGS.init_lr", "tasks.glue reads FLAGS"),
        ("tasks.glue", "x = flags.FLAGS", "tasks.glue reads FLAGS"),
        ("cli.pretrain", "x = flags.FLAGS", "cli.pretrain reads FLAGS"),
        ("tasks.glue", "f(f'{a}: set --rows={b}')", "tasks.glue speaks of a flag: : set --rows="),
    ],
)
def test_the_checker_catches(module, source, expected):
    (found,) = _violations(module, source)
    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("model.heads", "from albert_tf.model.albert import AlbertModel, ConfiguredModel"),
        ("tasks.question_answering", "from albert_tf.tasks import squad_text"),
        ("tasks.glue", "from albert_tf.training.task import Task\nfrom absl import logging"),
        ("records.spec", "import tensorflow as tf\nimport numpy.random"),
        ("optimization", "from albert_tf.training.optimizers import AdamW"),
        ("generator.create", "from absl import flags\nx = flags.FlagValues()"),
        ("scripts", "from absl import flags\nx = flags.FLAGS"),
        ("cli.checks", "raise ValueError('set --rows')"),
        ("tasks.glue", "'Source: --rows.'\nx = 'a -- b'"),
        ("generator.create", "from albert_tf.training import progress"),
        ("generator.shards", "from albert_tf.training import run_lock"),
    ],
)
def test_the_checker_lets_pass(module, source):
    assert _violations(module, source) == []
