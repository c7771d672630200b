"""What `import albert_tf` gives, and that Keras finds our classes by name in a new process."""

import ast
import importlib
import json
import pathlib
import pkgutil
import re
import subprocess
import sys

import keras
import pytest

import albert_tf
from tests import goldens

ROOT = pathlib.Path(__file__).parents[1]


def test_names_are_listed_completed_and_known_to_editors():
    """Can't see: names in the documentation of the package that are no words of Python's."""
    tree = ast.parse(pathlib.Path(albert_tf.__file__).read_text())
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    for_editors = {alias.name: node.module for node in checked.body for alias in node.names}
    homes = {name: f"albert_tf.{home}" for name, home in albert_tf._HOMES.items()}
    modules = dict.fromkeys(albert_tf._MODULES, "albert_tf")
    assert for_editors == homes | modules
    assert set(albert_tf.__all__) == set(for_editors) <= set(dir(albert_tf))
    for name in albert_tf.__all__:
        assert getattr(albert_tf, name) is not None
        assert re.search(rf"^  {name}\b", albert_tf.__doc__, re.MULTILINE), name


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'albert_tf' has no attribute 'AlbertModels'"):
        _ = albert_tf.AlbertModels


def test_the_version_is_told_once():
    """The citation has it, too, for it is read by other programs."""
    assert f"version: {albert_tf.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {albert_tf.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert "\nversion =" not in (ROOT / "pyproject.toml").read_text().partition("[tool")[0]


def test_the_import_is_quick():
    """No framework, no NumPy: what takes longer than Python's own start is imported when used."""
    code = (
        "import sys; before = set(sys.modules); import albert_tf; albert_tf.__version__\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = set(ended.stdout.split())
    assert imported <= {"albert_tf", *sys.stdlib_module_names}, imported


COMMANDS = (
    *("pretrain", "finetune", "create-pretraining-data", "train-sentencepiece"),
    *("extend-vocabulary", "convert", "export", "predict", "serve", "inspect"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_have_a_function(command):
    commands = importlib.import_module("albert_tf.cli.commands")
    name = command.replace("-", "_")
    assert callable(getattr(commands, name))
    declared = f'albert-{command} = "albert_tf.cli.commands:{name}"'
    text = (ROOT / "pyproject.toml").read_text()
    assert declared in text and text.count('"albert_tf.cli.commands:') == len(COMMANDS)


def python_blocks() -> list[str]:
    texts = [path.read_text() for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))]
    return [
        code for text in texts for code in re.findall("^```python\n(.*?)^```", text, re.S | re.M)
    ]


def dotted(node: ast.AST) -> list[str]:
    """Returns the parts of a.b.c; [] if it is something else."""
    if isinstance(node, ast.Name):
        return [node.id]
    start = dotted(node.value) if isinstance(node, ast.Attribute) else []
    return [*start, node.attr] if start else []


def test_python_in_the_documents_names_what_there_is():
    found = set()
    for code in python_blocks():
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "albert_tf":
                found |= {f"{node.module}.{name.name}" for name in node.names}
            elif dotted(node)[:1] == ["albert_tf"]:
                found.add(".".join(dotted(node)))
    assert len(found) > 10
    for name in found:
        pkgutil.resolve_name(name)


LOAD = """
import json
for path in sys.argv[1:]:
    model = keras.models.load_model(path)
    optimizer = getattr(model, "optimizer", None)
    print(json.dumps([type(model).__name__, type(optimizer).__module__]))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> list[str]:
    """A compiled classifier, and a functional model with an encoder inside."""
    folder = tmp_path_factory.mktemp("saved")
    config = goldens.config("base", num_hidden_layers=1)
    classifier = albert_tf.AlbertForSequenceClassification(config, 2)
    optimizer = albert_tf.optimization.create_optimizer(1e-3, 10, 2)
    classifier.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    encoder = albert_tf.AlbertModel(config)
    inputs = encoder.symbolic_inputs()
    functional = keras.Model(inputs, keras.layers.Dense(2)(encoder(inputs)["pooled_output"]))
    paths = [str(folder / "classifier.keras"), str(folder / "functional.keras")]
    for model, path in zip((classifier, functional), paths, strict=True):
        model.save(path)
    return paths


def test_models_are_loaded_in_a_new_process(saved):
    imports = "from albert_tf import AlbertForSequenceClassification, optimization"
    ended = subprocess.run(
        [sys.executable, "-c", f"import keras, sys\n{imports}\n{LOAD}", *saved],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert not ended.returncode, ended.stderr[-3000:]
    loaded = [json.loads(line) for line in ended.stdout.splitlines()]
    ours = "albert_tf.training.adamw"
    assert loaded == [["AlbertForSequenceClassification", ours], ["Functional", "builtins"]]
