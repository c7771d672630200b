"""The table of tasks: what a row gives its task, and that --help needs no TensorFlow for it."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from albert_tf.tasks import glue, registry
from albert_tf.tasks.registry import TASKS, TaskSettings


def task_of(name: str, row=None, **settings):
    given = TaskSettings(task_name=name, **settings)
    return (row or given.row).make(given, None, None)


def test_a_regression_is_clipped_to_the_range_of_its_own_row():
    """A row of GLUE is all that a new task of its kind needs."""
    numbers = np.array([[-1.0], [4.5], [7.0]])
    new = dataclasses.replace(glue.GLUE_TASKS["sts-b"], folder="New", number_range=(-2.0, 6.0))
    task = task_of("sts-b", registry._glue_row("new", new))
    assert task.answers(numbers) == ["-1.000000", "4.500000", "6.000000"]
    assert task.row.results_file == "New.tsv" and task.key_metric == "pearson"
    unbounded = dataclasses.replace(glue.GLUE_TASKS["mrpc"], labels=())
    task = task_of("mrpc", registry._glue_row("new", unbounded))
    assert task.answers(numbers) == ["-1.000000", "4.500000", "7.000000"]


LINEAR, CONDITIONAL = "AlbertForQuestionAnswering", "AlbertForQuestionAnsweringV2"


@pytest.mark.parametrize(
    ("name", "settings", "served_as", "architecture", "dropout"),
    [
        ("squad_v1", {}, "answer_v1", LINEAR, 0.0),
        ("squad_v2", {}, "answer_v2", CONDITIONAL, None),
        ("squad_v2", {"span_head": "linear"}, "answer_v2", LINEAR, 0.0),
        ("question_answering", {}, "answer_v1", LINEAR, 0.0),
        ("question_answering", {"allow_no_answer": True}, "answer_v2", CONDITIONAL, None),
    ],
)
def test_the_settings_choose_the_model(name, settings, served_as, architecture, dropout):
    record = task_of(name, **settings).record(name)
    assert (record["served_as"], record["architecture"]) == (served_as, architecture)
    given = TaskSettings(task_name=name, **settings)
    assert given.row.defaults.get("dropout_prob") == dropout


def test_names_need_no_tensorflow():
    code = (
        "import sys; from albert_tf.tasks import registry; "
        "print(registry.TaskSettings.__dataclass_fields__['task_name'].metadata['help']); "
        "assert not {'tensorflow', 'keras', 'jax'} & set(sys.modules)"
    )
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in text.stdout for name in TASKS)
    assert text.stdout.startswith("GLUE: cola, ") and "ax (predicts only)" in text.stdout
