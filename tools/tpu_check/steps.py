"""The train steps to check: a row for each task."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.records.spec import pretraining_spec
from albert_tf.tasks import registry
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.tasks.settings import TaskSettings
from albert_tf.tasks.supervised import ModelOptions
from albert_tf.training.interfaces import Task
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.tensorflow_devices import TrainStep

CHOICES = ("A", "B", "C", "D")


@dataclasses.dataclass(frozen=True)
class Row:
    """A task and how it is trained.

    Attributes:
      make: Makes the task from the model's options.
      shapes: Shape and dtype of an example's features, by sequence length.
      optimizer: "lamb" or "adamw".
    """

    make: Callable[[ModelOptions], Task]
    shapes: Callable[[int], dict[str, tuple[tuple[int, ...], Any]]]
    optimizer: str = "adamw"


def _pretraining_shapes(length: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    # The release's number: 20 at length 128, 77 at 512.
    num_predictions = math.ceil(0.15 * length)
    features = pretraining_spec(length, num_predictions).features
    return {name: (each.shape, each.dtype) for name, each in features.items() if each.parsed}


def _shapes(*axes: int, **others: tuple[tuple[int, ...], Any]) -> dict[str, Any]:
    names = ("input_ids", "input_mask", "segment_ids")
    return {**{name: (axes, tf.int32) for name in names}, **others}


def _made(name: str, options: ModelOptions, classes: tuple[str, ...] = ()) -> Task:
    settings = TaskSettings(task_name=name)
    return registry.row_of(settings).make(settings, options, None, classes)


_LABEL = {"label_ids": ((), tf.int32)}
_ANSWER = dict.fromkeys(("start_positions", "end_positions", "is_impossible"), ((), tf.int32))

TASKS = {
    "pretraining": Row(
        lambda options: PretrainingTask(options.config, options.dtype, options.recompute),
        _pretraining_shapes,
        "lamb",
    ),
    "classification": Row(
        lambda options: _made("classification", options, ("no", "yes")),
        lambda length: _shapes(length, **_LABEL),
    ),
    "token_classification": Row(
        lambda options: _made("token_classification", options, ("O", "B-LOC")),
        lambda length: _shapes(length, tag_ids=((length,), tf.int32)),
    ),
    "race": Row(
        lambda options: _made("race", options, CHOICES),
        lambda length: _shapes(len(CHOICES), length, **_LABEL),
    ),
    # Only the beams matter to a step; they are run_finetune.py's defaults.
    "squad_v2": Row(
        lambda options: _made("squad_v2", options),
        lambda length: _shapes(length, p_mask=((length,), tf.float32), **_ANSWER),
    ),
}


def make_step(
    task_name: str, config: AlbertConfig, dtype: str, recompute: bool
) -> Callable[[Any], Any]:
    """Makes model and optimizer, and the step that the Trainer runs on a replica."""
    return TrainStep(*make_parts(task_name, config, dtype, recompute))


def make_parts(
    task_name: str, config: AlbertConfig, dtype: str, recompute: bool, optimizer: str | None = None
) -> tuple[Task, Any, Any]:
    """Makes a task, its model and the optimizer, by default the task's."""
    row = TASKS[task_name]
    policy = "mixed_bfloat16" if dtype == "bfloat16" else dtype
    task = row.make(ModelOptions(config, dtype=policy, recompute=recompute))
    model = task.build_model()
    made = create_optimizer(0.00176, 125_000, 3125, optimizer or row.optimizer)
    made.build(model.trainable_variables)
    return task, model, made


def features(task_name: str, batch: int, length: int) -> dict[str, tf.TensorSpec]:
    """Returns the features of one replica, by name."""
    return {
        name: tf.TensorSpec([batch, *shape], dtype, name)
        for name, (shape, dtype) in TASKS[task_name].shapes(length).items()
    }
