"""What stands between the Trainer's step and libtpu changes nothing, and refusals are seen.

The latter run where `make tpu-check` has made its environment. Can't see: what a TPU computes.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.train_step import TrainStep
from tests import goldens
from tools.tpu_check.pure import without_variables
from tools.tpu_check.steps import TASKS, features, make_step

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = pathlib.Path(os.environ.get("ALBERT_TPU_PYTHON", ROOT / ".venv-tpu/bin/python"))
needs_libtpu = pytest.mark.skipif(
    not PYTHON.exists(), reason="tensorflow-tpu and libtpu aren't there: run make tpu-check once"
)


@pytest.mark.parametrize("task", TASKS)
def test_a_step_takes_the_features_of_its_task(task):
    step = make_step(task, goldens.config("base"), "float32", recompute=False)
    traced = tf.function(step).get_concrete_function(features(task, batch=2, length=13))
    assert step.stat_names[0] == "loss"
    assert traced.structured_outputs.shape == [len(step.stat_names)]


def test_a_step_without_variables_makes_the_same_update():
    """Dropout, clip and moments included, bit by bit."""
    task = PretrainingTask(goldens.config("base", hidden_dropout_prob=0.1))
    model = task.build_model()
    optimizer = create_optimizer(
        1e-2, 1000, 0, optimizer="lamb", poly_power=1.0, sum_over_replicas=False
    )
    optimizer.build(model.trainable_variables)
    step = TrainStep(task, model, optimizer)
    features = {name: tf.constant(value) for name, value in goldens.inputs("base").items()}

    @tf.function
    def on_features(*values):
        return step(dict(zip(features, values, strict=True)))

    tf.config.run_functions_eagerly(True)
    try:
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in features.values()]
        traced = on_features.get_concrete_function(*specs)
    finally:
        tf.config.run_functions_eagerly(False)
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


# What each of these does to the features' ids, and what is said of it.
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


@needs_libtpu
def test_steps_that_cannot_run_on_a_tpu_are_refused():
    expressions = [expression for expression, _ in STEPS.values()]
    process = subprocess.run(
        [PYTHON, "-c", CHECK.format(expressions=expressions)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = process.stdout.splitlines()
    assert len(lines) == len(STEPS), process.stderr[-3000:]
    for line, (name, (_, expected)) in zip(lines, STEPS.items(), strict=True):
        assert expected in line, f"{name}: {line}"
