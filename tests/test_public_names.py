"""The names of `import albert_tf`; and Keras finds our classes by name in a new process."""

import ast
import pathlib
import pkgutil
import re
import subprocess
import sys

import keras
import pytest

import albert_tf
from albert_tf.cli import commands
from tests.kit import goldens

ROOT = pathlib.Path(__file__).parents[1]


def test_names_are_listed_completed_and_known_to_editors():
    """Not tested here: other names in the docstring of the package."""
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
    with pytest.raises(AttributeError, match="'albert_tf' .* 'AlbertModels'"):
        _ = albert_tf.AlbertModels


def test_the_version_is_told_once():
    """The citation repeats the version, because other programs read that file."""
    assert f"version: {albert_tf.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {albert_tf.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert "\nversion =" not in (ROOT / "pyproject.toml").read_text().partition("[tool")[0]


def test_the_import_is_quick():
    """It imports no framework and no NumPy: whatever is slow is imported on first use."""
    code = "import sys; before = {*sys.modules}; import albert_tf; albert_tf.__version__\n"
    code += "print(*{name.partition('.')[0] for name in {*sys.modules} - before})"
    imported = {*run_python(code).split()}
    assert imported <= {"albert_tf", *sys.stdlib_module_names}, imported


def run_python(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not ended.returncode, ended.stderr[-3000:]
    return ended.stdout


COMMANDS = "pretrain finetune create-pretraining-data train-sentencepiece extend-vocabulary convert"
COMMANDS += " export predict serve inspect"


def test_commands_have_a_function():
    text = (ROOT / "pyproject.toml").read_text()
    declared = dict(re.findall(r'^albert-(\S+) = "albert_tf\.cli\.commands:(\w+)"$', text, re.M))
    assert declared == {name: name.replace("-", "_") for name in COMMANDS.split()}
    assert all(callable(getattr(commands, name)) for name in declared.values())


def test_python_in_the_documents_names_what_there_is():
    found = set()
    texts = [path.read_text() for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))]
    for code in re.findall("^```python\n(.*?)^```", "\n".join(texts), re.S | re.M):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "albert_tf":
                found |= {f"{node.module}.{name.name}" for name in node.names}
            elif isinstance(node, ast.Attribute):
                found |= {*re.findall(r"^albert_tf[\w.]+$", ast.unparse(node))}
    assert len(found) > 10
    for name in found:
        pkgutil.resolve_name(name)


LOAD = """
import keras, sys
from albert_tf import AlbertForSequenceClassification, optimization
for path in sys.argv[1:]:
    model = keras.models.load_model(path)
    print(type(model).__name__, type(getattr(model, "optimizer", None)).__module__)
"""


@pytest.mark.slow
def test_models_are_loaded_in_a_new_process(tmp_path):
    """A compiled classifier, and a functional model with an encoder inside."""
    config = goldens.config("base", num_hidden_layers=1)
    classifier = albert_tf.AlbertForSequenceClassification(config, 2)
    optimizer = albert_tf.optimization.create_optimizer(1e-3, 10, 2)
    classifier.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    encoder = albert_tf.AlbertModel(config)
    inputs = encoder.symbolic_inputs()
    functional = keras.Model(inputs, keras.layers.Dense(2)(encoder(inputs)["pooled_output"]))
    paths = [str(tmp_path / "classifier.keras"), str(tmp_path / "functional.keras")]
    for model, path in zip((classifier, functional), paths, strict=True):
        model.save(path)
    first, second = run_python(LOAD, *paths).splitlines()
    assert first == "AlbertForSequenceClassification albert_tf.training.adamw"
    assert second == "Functional builtins"
