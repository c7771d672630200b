"""The library's modules import downwards only, and never read FLAGS.

Can't see: modules loaded by a computed name (`importlib`), as the package's `__init__` does.
"""

from __future__ import annotations

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "albert_tf"

# Lowest first. A module imports those of lower levels only. `tasks` is the package itself.
LEVELS = (
    {"files"},
    {
        "config",
        "answers",
        "characters",
        "word_starts",
        "example_encoding",
        "masking",
        "metrics",
        "length_batches",
        "stop_signals",
        "flag_files",
    },
    {"word_piece", "feature_spec"},
    {
        "bundle_index",
        "tokenization",
        "records",
        "fusion",
        "dropout",
        "repetition",
        "schedule",
        "distribution",
        "tasks.text_files",
    },
    {"rows", "functional", "user_errors"},
    {
        "layers",
        "optimization",
        "checkpoint",
        "input_files",
        "input_pipeline",
        "dynamic_masking",
        "progress",
        "run_lock",
        "training_input",
    },
    {"modeling"},
    {"heads"},
    {"conversion.names", "conversion.files", "conversion.hdf5", "conversion.values"},
    {"conversion.torch_files"},
    {
        "conversion.bundles",
        "conversion.huggingface",
        "conversion.keras_files",
        "conversion.kerashub",
        "conversion.vocabulary",
    },
    {"conversion.labels", "conversion.layouts", "export.tables"},
    {"export.normalization", "export.sequences"},
    {"export.graph_tokenizer"},
    {
        "tasks.task",
        "tasks.sequence_features",
        "tasks.alignment",
        "conversion",
        "finetuning",
        "running",
    },
    {
        "tasks.losses",
        "tasks.squad_text",
        "tasks.feature_table",
        "tasks.glue",
        "tasks.race",
        "train_step",
        "row_outputs",
        "conversion.convert",
    },
    {
        "tasks.pretraining",
        "tasks.supervised",
        "tasks.feature_cache",
        "tasks.squad_predictions",
        "training",
        "conversion.__main__",
        "export.serving",
    },
    {
        "tasks",
        "tasks.classification",
        "tasks.question_answering",
        "tasks.table",
        "evaluation",
        "export.saved_model",
        "export.answering",
        "export.choosing",
        "export.converted",
    },
    {"supervised_run", "export", "export.trained"},
    {"export.arguments"},
    {"export.__main__", "predict"},
    {
        "generator.lines",
        "generator.packing",
        "generator.pairs",
        "generator.processes",
    },
    {"generator.instances", "generator.formats"},
    {"generator.report", "generator.documents", "generator.flags"},
    {"generator.blocks", "generator.extra.plots", "generator.sentencepiece"},
    {"generator.workers"},
    {"generator.shards"},
    {"generator.extra.beam"},
    {"generator.create", "generator.extra.sotu", "generator.extra", "generator"},
)
LEVEL_OF = {module: level for level, modules in enumerate(LEVELS) for module in modules}
WITHOUT_KERAS = (
    LEVELS[0]
    | LEVELS[1]
    | LEVELS[2]
    | {"bundle_index", "tokenization", "records", "tasks.text_files"}
)
WITHOUT_TENSORFLOW = {
    "config",
    "characters",
    "word_starts",
    "word_piece",
    "tokenization",
    "example_encoding",
    "masking",
    "metrics",
    "length_batches",
    "functional",
    "layers",
    "modeling",
    "heads",
    "finetuning",
    "optimization",
    "schedule",
    "tasks.losses",
    "generator.blocks",
    "generator.packing",
    "generator.pairs",
    "generator.instances",
    "generator.report",
    "generator.workers",
    "generator.processes",
}
# What the generator has in common with training: the text, the records and how they are masked.
OF_THE_GENERATOR = {
    "files",
    "flag_files",
    "user_errors",
    "tokenization",
    "example_encoding",
    "records",
    "masking",
    "rows",
    "checkpoint",
    "progress",
}
# Scripts: their flags are their own.
WITH_FLAGS = {
    "generator.create",
    "generator.flags",
    "generator.sentencepiece",
    "generator.extra.sotu",
}
LEAVES = (
    "data",
    "benchmarks",
    "examples",
    "tests",
    "tools",
    "pretraining_flags",
    "run_pretraining",
    "run_finetune",
    "finetune_flags",
    "finetune_tasks",
)


def _violations(module: str, source: str) -> list[str]:
    """Returns a line for each import or name that `module`, as "tasks.glue", may not have."""
    tree = ast.parse(source)
    found = []
    for name in _imports(tree, module):
        top = name.partition(".")[0]
        if top in LEAVES:
            found.append(f"{module} imports {name}, which is no part of the library")
        elif top == "keras" and module in WITHOUT_KERAS:
            found.append(f"{module} imports keras")
        elif top == "tensorflow" and module in WITHOUT_TENSORFLOW:
            found.append(f"{module} imports tensorflow")
        elif name in ("absl.flags", "absl.app") or name.startswith("absl.flags."):
            if module not in WITH_FLAGS:
                found.append(f"{module} imports {name}")
        elif top == "albert_tf":
            found.extend(_library_violations(module, name))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if "FLAGS" in names | attributes and module not in WITH_FLAGS:
        found.append(f"{module} reads FLAGS")
    return list(dict.fromkeys(found))


def _library_violations(module: str, name: str) -> list[str]:
    imported = _module_of(name)
    if not imported:
        return [f"{module} imports {name}: import it from the module that defines it"]
    if module not in LEVEL_OF:
        return []  # Reported once, by test_every_module_has_a_level.
    is_own = imported.startswith("generator.") or imported in OF_THE_GENERATOR
    if module.startswith("generator.") and not is_own:
        return [f"{module} imports {imported}, which is not the generator's business"]
    if imported not in LEVEL_OF or LEVEL_OF[imported] >= LEVEL_OF[module]:
        return [f"{module} imports {imported}, which is not below it"]
    return []


def _module_of(name: str) -> str:
    """Returns the module of "albert_tf.tasks.task.Task": "tasks.task"; "" for the package."""
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in LEVEL_OF and not _path(parts).exists():
        parts.pop()
    return ".".join(parts)


def _path(parts: list[str]) -> pathlib.Path:
    return ROOT.joinpath(*parts).with_suffix(".py")


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
    assert "optimization" in modules
    found = [line for name, source in modules.items() for line in _violations(name, source)]
    assert not found, "\n".join(found)


def test_every_module_has_a_level():
    assert set(_modules()) <= set(LEVEL_OF), "add the new module to LEVELS"


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("config", "import keras", "config imports keras"),
        ("layers", "def f():\n  import tensorflow as tf", "layers imports tensorflow"),
        ("layers", "from albert_tf import modeling", "layers imports modeling, which is not"),
        ("layers", "from . import optimization", "layers imports optimization, which is not"),
        ("layers", "import albert_tf.heads as h", "layers imports heads, which is not"),
        ("tasks.task", "from ..training import Trainer", "tasks.task imports training, which"),
        (
            "tasks.glue",
            "from albert_tf.tasks import classification",
            "tasks.glue imports tasks.classification,",
        ),
        ("tasks.glue", "from . import race", "tasks.glue imports tasks.race, which is not"),
        ("training", "from albert_tf.tasks import TASKS", "training imports tasks, which is"),
        ("layers", "from albert_tf.heads import A, B", "layers imports heads, which is not"),
        ("heads", "from albert_tf import AlbertModel", "heads imports albert_tf.AlbertModel: im"),
        ("records", "from data import documents", "records imports data.documents, which is no"),
        ("training", "import run_pretraining", "training imports run_pretraining, which is no"),
        (
            "generator.pairs",
            "import albert_tf.config",
            "generator.pairs imports config, which is no",
        ),
        ("generator.pairs", "import tensorflow", "generator.pairs imports tensorflow"),
        ("training", "from albert_tf.generator import pairs", "training imports generator.pairs,"),
        ("training", "from absl import flags", "training imports absl.flags"),
        ("training", "from absl.flags import DEFINE_bool", "training imports absl.flags.DEFINE"),
        ("training", "x = FLAGS.init_lr", "training reads FLAGS"),
        ("training", "x = flags.FLAGS", "training reads FLAGS"),
    ],
)
def test_the_checker_catches(module, source, expected):
    (found,) = _violations(module, source)
    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("heads", "from albert_tf.modeling import AlbertModel, ConfiguredModel"),
        ("tasks.squad_predictions", "from albert_tf.tasks import squad_text"),
        ("tasks.glue", "from albert_tf.tasks.task import Task\nfrom absl import logging"),
        ("records", "import tensorflow as tf\nimport numpy.random"),
        ("tasks", "from albert_tf.tasks.glue import GlueTask"),
        ("generator.create", "from absl import flags\nx = flags.FLAGS"),
    ],
)
def test_the_checker_lets_pass(module, source):
    assert _violations(module, source) == []
