"""Keras finds our classes by name, in a new process and whatever is imported first."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import keras
import pytest

import albert_tf
from albert_tf import registration
from tests import goldens

ROOT = pathlib.Path(__file__).parents[1]
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
    classifier.compile(optimizer, "sparse_categorical_crossentropy")
    encoder = albert_tf.AlbertModel(config)
    inputs = encoder.symbolic_inputs()
    functional = keras.Model(inputs, keras.layers.Dense(2)(encoder(inputs)["pooled_output"]))
    paths = [str(folder / "classifier.keras"), str(folder / "functional.keras")]
    for model, path in zip((classifier, functional), paths, strict=True):
        model.save(path)
    return paths


@pytest.mark.parametrize(
    "imports",
    [
        "import albert_tf, keras",
        "import keras, albert_tf",
        # Looked for, but not imported; then imported by a module of ours.
        "import albert_tf, importlib.util; importlib.util.find_spec('keras')\n"
        "albert_tf.AlbertModel; import keras",
        "import albert_tf.training.optimizers, keras",
    ],
)
def test_models_are_loaded_in_a_new_process(saved, imports):
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys\n{imports}\n{LOAD}", *saved],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert not ended.returncode, ended.stderr[-3000:]
    loaded = [json.loads(line) for line in ended.stdout.splitlines()]
    ours = "albert_tf.training.optimizers"
    assert loaded == [["AlbertForSequenceClassification", ours], ["Functional", "builtins"]]


def test_all_registered_classes_are_known():
    sources = {
        path: path.read_text()
        for path in (ROOT / "albert_tf").rglob("*.py")
        if path.name != "registration.py"
    }
    homes = {
        ".".join(path.relative_to(ROOT / "albert_tf").with_suffix("").parts)
        for path, source in sources.items()
        if "register_keras_serializable" in source
    }
    # Those import these.
    assert homes == {*registration._MODULES, "model.albert"}
