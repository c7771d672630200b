"""The model without TensorFlow: a process of its own, in which it cannot be imported."""

import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import albert_tf
from tests.kit import goldens, jax_process, tolerances

ROOT = jax_process.ROOT
SQUAD = goldens.FOLDER.parent / "heads" / "squad_v2"

PRELUDE = """
import sys
sys.modules["tensorflow"] = None
import numpy as np
import keras
import albert_tf
from albert_tf import config, optimization
from albert_tf.model import albert, heads, layers
def build(model_class, name, **arguments):
    model = model_class(albert_tf.AlbertConfig.from_json_file(f"{name}.json"), **arguments)
    with np.load(f"{name}_weights.npz") as stored:
        for variable in model.weights:
            variable.assign(stored[variable.path.replace("/", "|")])
    return model
model = build(albert_tf.AlbertForPreTraining, "base")
inputs, packed = (dict(np.load(file)) for file in ("base_inputs.npz", "packed.npz"))
"""

# Compiled as a whole: otherwise JAX compiles each operation separately, which takes longer.
FORWARD = """
import jax
run = jax.jit(lambda features: model(features))
values = run(inputs)
values["packed_sentence_order_logits"] = run(packed)["sentence_order_logits"]
np.savez("outputs.npz", **{name: keras.ops.convert_to_numpy(values[name]) for name in (
    "embedding_output", "sequence_output", "pooled_output", "masked_lm_logits",
    "sentence_order_logits", "packed_sentence_order_logits")})
"""

# The largest head for fine-tuning: the others are each like one of its dense layers.
ANSWERS = """
model = build(albert_tf.AlbertForQuestionAnsweringV2, "squad", start_n_top=4, end_n_top=3)
inputs = dict(np.load("squad_inputs.npz"))
run = jax.jit(lambda features: model(features))
trained = run(inputs)
del inputs["start_positions"]
np.savez("answers.npz", **{name: np.asarray(v) for name, v in {**trained, **run(inputs)}.items()})
"""

# Only shapes are computed, which needs no compilation.
FUNCTIONAL = """
import inspect
for name in filter(lambda name: name.startswith("AlbertFor"), albert_tf.__all__):
    model_class = getattr(albert_tf, name)
    has_classes = "num_labels" in inspect.signature(model_class.__init__).parameters
    model = model_class("squad.json", **({"num_labels": 3} if has_classes else {}))
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


def run(code: str, *arguments: object, folder: pathlib.Path = ROOT, **environment: str) -> str:
    """Returns the output of a program, which must not fail; by default Keras runs on JAX."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    how = {"env": {**jax_process.base_environment(), **environment}, "cwd": folder, "timeout": 300}
    process = subprocess.run(command, capture_output=True, text=True, **how)
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("models")
    squad = albert_tf.AlbertForQuestionAnsweringV2(SQUAD / "albert_config.json")
    albert_tf.load_weights(squad, str(SQUAD / "model.ckpt-best"))
    base = (goldens.pretrained("base"), goldens.FOLDER / "base")
    for name, (model, source) in {"base": base, "squad": (squad, SQUAD)}.items():
        shutil.copy(source / "albert_config.json", folder / f"{name}.json")
        shutil.copy(source / "inputs.npz", folder / f"{name}_inputs.npz")
        weights = {variable.path.replace("/", "|"): variable.numpy() for variable in model.weights}
        np.savez(folder / f"{name}_weights.npz", **weights)
    np.savez(folder / "packed.npz", **goldens.packed(goldens.inputs("base")))
    return folder


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.reshape(-1, logits.shape[-1]).astype("float64")
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.slow
def test_outputs_are_the_releases_without_tensorflow(folder):
    pytest.importorskip("jax")
    run(PRELUDE + FORWARD + ANSWERS + FUNCTIONAL, folder=folder)
    actual, expected = goldens.arrays(folder / "outputs.npz"), goldens.outputs("base")
    for head in ("masked_lm", "sentence_order"):
        actual[f"{head}_log_probs"] = log_softmax(actual.pop(f"{head}_logits"))
    packed = log_softmax(actual.pop("packed_sentence_order_logits"))
    for i, example in enumerate(goldens.ROWS[0] + goldens.ROWS[1]):
        order = expected["sentence_order_log_probs"][example]
        tolerances.assert_close(packed[i], order, tolerances.OUTPUT)
    for name, value in actual.items():
        tolerances.assert_close(value, expected[name], tolerances.OUTPUT, name)
    answers = goldens.arrays(folder / "answers.npz")
    for file in ("outputs_train.npz", "outputs_predict.npz"):
        for name, value in goldens.arrays(SQUAD / file).items():
            if not name.endswith("_loss"):
                limits = tolerances.MASKED_RELATIVE, tolerances.OUTPUT
                np.testing.assert_allclose(answers[name], value, *limits, err_msg=name)


def test_tensorflow_is_imported_only_when_needed():
    """On any backend: configs and tokenizers need no framework at all."""
    printed = run(
        "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None\n"
        "import albert_tf; config = albert_tf.AlbertConfig(31, hidden_size=64)\n"
        "print(config.hidden_size, albert_tf.Tokenizer.__name__)"
    )
    assert printed == "64 Tokenizer\n"
