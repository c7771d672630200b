"""The table of tasks: what a row gives its task, and that --help needs no TensorFlow for it."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from albert_tf.answers.span import BeamSpan, Span, SpanOrNone
from albert_tf.tasks import glue, registry
from albert_tf.tasks.registry import TASKS
from albert_tf.tasks.settings import TaskSettings
from tests.kit import tiny


def test_a_regression_is_clipped_to_the_range_of_its_own_row():
    """A row of GLUE is all that a new task of its kind needs."""
    numbers = np.array([[-1.0], [4.5], [7.0]])
    new = dataclasses.replace(glue.GLUE_TASKS["sts-b"], folder="New", number_range=(-2.0, 6.0))
    task = registry._glue_row("new", new).make(TaskSettings(task_name="sts-b"), None, None)
    assert task.answers(numbers) == ["-1.000000", "4.500000", "6.000000"]
    assert task.row.results_file == "New.tsv" and task.key_metric == "pearson"
    unbounded = dataclasses.replace(glue.GLUE_TASKS["mrpc"], labels=())
    task = registry._glue_row("new", unbounded).make(TaskSettings(task_name="mrpc"), None, None)
    assert task.answers(numbers) == ["-1.000000", "4.500000", "7.000000"]


@pytest.mark.parametrize(
    ("name", "settings", "kind", "dropout"),
    [
        ("squad_v1", {}, Span, 0.0),
        ("squad_v2", {}, BeamSpan, None),
        ("squad_v2", {"span_head": "linear"}, SpanOrNone, 0.0),
        ("question_answering", {}, Span, 0.0),
        ("question_answering", {"allow_no_answer": True}, BeamSpan, None),
    ],
)
def test_the_settings_choose_the_model(name, settings, kind, dropout):
    task = tiny.task(name, **settings)
    assert type(task.kind) is kind and task.row.defaults.get("dropout_prob") == dropout


def test_names_need_no_tensorflow():
    code = (
        "import sys; from albert_tf.tasks import registry; "
        "print(registry.names_in_help()); "
        "assert not {'tensorflow', 'keras', 'jax'} & set(sys.modules)"
    )
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in text.stdout for name in TASKS)
    assert text.stdout.startswith("GLUE: cola, ") and "ax (predicts only)" in text.stdout
