"""The code between the Trainer's step and libtpu changes nothing, and refusals are detected.

Tests of refusals need the environment of `make tpu-check`. Not tested here: what a TPU computes.
"""

import os
import pathlib
import re
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training.interfaces import stat_names
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.tensorflow_devices import TrainStep
from tests.kit import goldens
from tests.training.toys import eagerly
from tools.tpu_check import reports
from tools.tpu_check.pure import without_variables
from tools.tpu_check.steps import TASKS, features, make_parts

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = pathlib.Path(os.environ.get("ALBERT_TPU_PYTHON", ROOT / ".venv-tpu/bin/python"))
JAX_PYTHON = os.environ.get("ALBERT_TPU_JAX_PYTHON", ROOT / ".venv-tpu-jax/bin/python")
_WHY = "libtpu is not installed: run make tpu-check once, or make tpu-check BACKEND=jax"
needs_libtpu = pytest.mark.skipif(not PYTHON.exists(), reason=_WHY)
needs_libtpu_of_jax = pytest.mark.skipif(not os.path.exists(JAX_PYTHON), reason=_WHY)


@pytest.mark.parametrize("task", TASKS)
def test_a_step_takes_the_features_of_its_task(task):
    config = goldens.config("base", num_hidden_layers=1)
    made, *others = make_parts(task, config, "float32", recompute=False)
    step = TrainStep(made, *others)
    traced = tf.function(step).get_concrete_function(features(task, batch=2, length=13))
    assert traced.structured_outputs.shape == [len(stat_names(made))]


def test_a_step_without_variables_makes_the_same_update():
    """Bit by bit, including dropout, clipping and moments."""
    config = goldens.config("base", hidden_dropout_prob=0.1, num_hidden_layers=2)
    task = PretrainingTask(config)
    model = task.build_model()
    optimizer = create_optimizer(1e-2, 1000, 0, optimizer="lamb", poly_power=1.0)
    optimizer.build(model.trainable_variables)
    step = TrainStep(task, model, optimizer)
    features = {name: tf.constant(value) for name, value in goldens.inputs("base").items()}

    @tf.function
    def on_features(*values):
        return step(dict(zip(features, values, strict=True)))

    with eagerly():
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in features.values()]
        traced = on_features.get_concrete_function(*specs)
    pure = without_variables(traced)
    captured = {id(variable.handle): variable for variable in traced.graph.variables}
    handles = [outer for outer, inner in traced.graph.captures if inner.dtype == tf.resource]
    before = [captured[id(handle)].value() for handle in handles]
    function = tf.function(pure.function, autograph=False)
    (stats, *after) = function(*features.values(), *before)

    expected_stats = traced(*features.values())
    np.testing.assert_array_equal(stats, expected_stats)
    for handle, value in zip(handles, after, strict=True):
        np.testing.assert_array_equal(value, captured[id(handle)].value())
    changed = [not np.array_equal(x, y) for x, y in zip(before, after, strict=True)]
    assert sum(changed) > len(model.trainable_variables)
    first = len(features)
    assert {first + i for i, is_changed in enumerate(changed) if is_changed} <= set(pure.aliases)


def test_a_use_of_a_variable_that_is_not_known_is_named():
    variable = tf.Variable(tf.zeros([3]))
    scatter = tf.function(lambda: variable.scatter_nd_add([[1]], [2.0]))
    with pytest.raises(NotImplementedError, match="ResourceScatterNdAdd .* on a variable"):
        tf.function(without_variables(scatter.get_concrete_function()).function)(variable.value())


# An expression of the features' ids for a step to compute, and the text that its report contains.
STEPS = {
    "a string": ("tf.strings.length(tf.strings.as_string(x))", "AsString"),
    "Python": ("tf.py_function(lambda x: x, [x], tf.int32)", "EagerPyFunc"),
    "too large": ("tf.sort(tf.tile(x, [2**18, 1]), axis=0)", "DoesNotFitError needs"),
    "nothing": ("x", "compiled True"),
}
CHECK = """
import tools.tpu_check.__main__ as check
import tensorflow as tf
from tools.tpu_check.compiler import CHIPS, compile_for
from tools.tpu_check.lowering import lower
for ids in {expressions}:
    def make_step():
        v = tf.Variable(1.0)
        def step(features):
            x = features["x"]
            return v.assign_add(tf.reduce_sum(tf.cast(eval(ids), tf.float32)))
        return step
    try:
        program = lower(make_step, {{"x": tf.TensorSpec([8, 1024], tf.int32)}}, 8)
        print("compiled", compile_for(CHIPS["v5e"], program).hbm_gib > 0)
    except (ValueError, tf.errors.OpError) as error:
        print(type(error).__name__, str(error).replace("\\n", " "))
"""


def run(*command: str | pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@needs_libtpu
def test_steps_that_cannot_run_on_a_tpu_are_refused():
    expressions = [expression for expression, _ in STEPS.values()]
    process = run(PYTHON, "-c", CHECK.format(expressions=expressions))
    lines = process.stdout.splitlines()
    assert len(lines) == len(STEPS), process.stderr[-3000:]
    for line, (name, (_, expected)) in zip(lines, STEPS.items(), strict=True):
        assert expected in line, f"{name}: {line}"


def test_a_refusal_is_said_in_one_line():
    # libtpu 0.0.30 wrote this.
    too_large = reports.refusal(
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 18.40G of 15.75G hbm. Exceeded hbm capacity by 2.66G.\n\nTotal hbm usage"
    )
    assert reports.failure(too_large) == "too large: needs 18.40G of 15.75G"
    # The first line is of libtpu 0.0.42.1, for xxlarge on a v7x.
    vmem = reports.refusal("RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\n\nRan out of it")
    shown = "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom: Ran out of it"
    assert reports.failure(vmem) == f"FAILED: {shown}"
    unsupported = NotImplementedError("no such operation\nfor TPU")
    assert reports.failure(unsupported) == "FAILED: no such operation"


@pytest.mark.parametrize("smallest", [40, 0])
def test_the_largest_batch_is_searched_up_and_down(capsys, smallest):
    limits = {"small": smallest, "large": 100}
    flags = ["--batch=48", "--length=13", "--largest_batch", "--dtypes=float32"]
    tried = []

    def check(step: reports.Step, chip: str) -> bool:
        tried.append((chip, step.batch))
        return step.batch <= limits[chip]

    passed = reports.run(reports.parser("", ["task"], limits).parse_args(flags), check)
    small, large = (line.split("no ")[1].strip() for line in capsys.readouterr().out.splitlines())
    assert large == "96 x 13 large the largest"
    if smallest:
        assert passed and small == "32 x 13 small the largest"
        # The second search starts where the first one ended.
        expected = {"small": [48, 32], "large": [32, 48, 64, 96, 128]}
        assert tried == [(chip, batch) for chip in limits for batch in expected[chip]]
    else:
        assert not passed and small == "1 x 13 small does not fit, nor any larger"


@needs_libtpu_of_jax
def test_a_step_on_jax_compiles_and_its_memory_is_reported():
    how = ["--chips", "v5e", "--tasks", "classification", "--batch", "2", "--length", "16"]
    process = run(JAX_PYTHON, "-m", "tools.tpu_check.on_jax", *how)
    assert process.returncode == 0, process.stderr[-3000:]
    titles, line = process.stdout.splitlines()
    assert titles.split()[-1] == "sums" and line.startswith("classification  tiny ")
    used, available = re.search(r" (\S+) of (\S+) ", line).groups()
    # At least the word embeddings and their two moments, whatever the batch.
    config = reports.Step("", "tiny", "", False, 0, 0).config
    least = 3 * 4 * config.vocab_size * config.embedding_size / 2**30
    assert round(least, 2) <= float(used) < float(available) == 15.75
    # The gradients of all devices are summed.
    assert int(line.split()[-1]) >= 1
