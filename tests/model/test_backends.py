"""The model without TensorFlow: a process of its own, in which it cannot be imported."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import albert_tf
from tests import goldens, tolerances

ROOT = pathlib.Path(__file__).parents[2]
BACKENDS = [
    pytest.param(
        backend,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(package) is None,
            reason=f"Keras' {backend} backend needs {package}, which isn't installed",
        ),
    )
    for backend, package in (("jax", "jax"), ("numpy", "jax"))
]

PRELUDE = """
import sys
sys.modules["tensorflow"] = None
import numpy as np
import keras
import albert_tf
from albert_tf import config, optimization
from albert_tf.model import albert, heads, layers
weights, inputs, packed, outputs = sys.argv[2:6]
model = albert_tf.AlbertForPreTraining(albert_tf.AlbertConfig.from_json_file(sys.argv[1]))
with np.load(weights) as stored:
    for variable in model.weights:
        variable.assign(stored[variable.path.replace("/", "|")])
inputs, packed = (dict(np.load(file)) for file in (inputs, packed))
"""

# Compiled where that is possible: JAX compiles each operation by itself otherwise, for longer.
FORWARD = """
run = model
if keras.config.backend() == "jax":
    import jax
    run = jax.jit(lambda features: model(features))
values = run(inputs)
values["packed_sentence_order_logits"] = run(packed)["sentence_order_logits"]
np.savez(outputs, **{name: keras.ops.convert_to_numpy(values[name]) for name in (
    "embedding_output", "sequence_output", "pooled_output", "masked_lm_logits",
    "sentence_order_logits", "packed_sentence_order_logits")})
"""

# The largest of the heads for fine-tuning: the others are one of its dense maps.
ANSWERS = """
config, weights, inputs, outputs = sys.argv[6:]
config = albert_tf.AlbertConfig.from_json_file(config)
model = albert_tf.AlbertForQuestionAnsweringV2(config, start_n_top=4, end_n_top=3)
with np.load(weights) as stored:
    for variable in model.weights:
        variable.assign(stored[variable.path.replace("/", "|")])
inputs = dict(np.load(inputs))
run = jax.jit(lambda features: model(features))
trained = run(inputs)
del inputs["start_positions"]
np.savez(outputs, **{name: np.asarray(v) for name, v in {**trained, **run(inputs)}.items()})
"""


# Shapes alone, which costs no compilation.
FUNCTIONAL = """
import inspect
for name in filter(lambda name: name.startswith("AlbertFor"), albert_tf.__all__):
    model_class = getattr(albert_tf, name)
    has_classes = "num_labels" in inspect.signature(model_class.__init__).parameters
    model = model_class(config, **({"num_labels": 3} if has_classes else {}))
    symbolic = model.symbolic_inputs()
    described = model(symbolic)
    functional = keras.Model(symbolic, described)
    features = {key: np.ones((2, 4, 8)[-x.ndim:], "int32") for key, x in symbolic.items()}
    for each in (model, functional):
        computed = jax.eval_shape(lambda features: each(features), features)
        for spec, value in zip(*map(keras.tree.flatten, (described, computed)), strict=True):
            assert spec.dtype == str(value.dtype), name
            assert all(a in (None, b) for a, b in zip(spec.shape, value.shape, strict=True)), name
"""


def run(code: str, *arguments: object, **environment: str) -> str:
    """Returns what a program prints, which must not fail."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    # XLA works longer on JAX's programs than they run.
    quick = {"PYTHONPATH": path, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **quick, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> pathlib.Path:
    """The weights of the release by the paths of ours, read once for all backends."""
    return write_weights(
        goldens.pretrained("base"), tmp_path_factory.mktemp("weights") / "weights.npz"
    )


def write_weights(model, file: pathlib.Path) -> pathlib.Path:
    np.savez(file, **{v.path.replace("/", "|"): v.numpy() for v in model.weights})
    return file


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.reshape(-1, logits.shape[-1]).astype("float64")
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_are_the_releases_without_tensorflow(backend, weights, tmp_path):
    folder = goldens.FOLDER / "base"
    np.savez(tmp_path / "packed.npz", **goldens.packed(goldens.inputs("base")))
    # One process for all of a backend: it imports Keras for seconds.
    in_jax = backend == "jax"
    run(
        PRELUDE + FORWARD + (ANSWERS + FUNCTIONAL if in_jax else ""),
        folder / "albert_config.json",
        weights,
        folder / "inputs.npz",
        tmp_path / "packed.npz",
        tmp_path / "outputs.npz",
        *(files_of_answers(tmp_path) if in_jax else ()),
        KERAS_BACKEND=backend,
        JAX_PLATFORMS="cpu",
    )
    actual, expected = goldens.arrays(tmp_path / "outputs.npz"), goldens.outputs("base")
    for head in ("masked_lm", "sentence_order"):
        actual[f"{head}_log_probs"] = log_softmax(actual.pop(f"{head}_logits"))
    packed = log_softmax(actual.pop("packed_sentence_order_logits"))
    for i, example in enumerate(goldens.ROWS[0] + goldens.ROWS[1]):
        order = expected["sentence_order_log_probs"][example]
        tolerances.assert_close(packed[i], order, tolerances.OUTPUT)
    for name, value in actual.items():
        tolerances.assert_close(value, expected[name], tolerances.OUTPUT, name)
    if in_jax:
        check_answers(goldens.arrays(tmp_path / "answers.npz"))


SQUAD = goldens.FOLDER.parent / "heads" / "squad_v2"


def files_of_answers(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Returns what ANSWERS reads, and the file that it writes."""
    config = SQUAD / "albert_config.json"
    model = albert_tf.AlbertForQuestionAnsweringV2(albert_tf.AlbertConfig.from_json_file(config))
    albert_tf.load_weights(model, str(SQUAD / "model.ckpt-best"))
    weights = write_weights(model, folder / "weights.npz")
    return config, weights, SQUAD / "inputs.npz", folder / "answers.npz"


def check_answers(actual: dict[str, np.ndarray]) -> None:
    for file in ("outputs_train.npz", "outputs_predict.npz"):
        for name, expected in goldens.arrays(SQUAD / file).items():
            if name.endswith("_loss"):
                continue
            np.testing.assert_allclose(
                actual[name],
                expected,
                rtol=tolerances.MASKED_RELATIVE,
                atol=tolerances.OUTPUT,
                err_msg=name,
            )


def test_tensorflow_is_imported_only_when_needed():
    """Whatever the backend is: a config and a tokenizer take no framework at all."""
    printed = run(
        "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None\n"
        "import albert_tf; config = albert_tf.AlbertConfig(31, hidden_size=64)\n"
        "print(config.hidden_size, albert_tf.Tokenizer.__name__)"
    )
    assert printed == "64 Tokenizer\n"
