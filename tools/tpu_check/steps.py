"""The train steps that are checked: a row for each task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.optimization import create_optimizer
from albert_tf.records import FeatureSpec, pretraining_spec
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.tasks.task import Task
from albert_tf.train_step import TrainStep

PREDICTIONS = 20


@dataclasses.dataclass(frozen=True)
class Row:
    """A task and how it is trained.

    Attributes:
      make: Makes the task from a config, a dtype policy and whether to recompute.
      spec: Its records, by sequence length.
      optimizer: "lamb" or "adamw".
    """

    make: Callable[[AlbertConfig, str, bool], Task]
    spec: Callable[[int], FeatureSpec]
    optimizer: str


TASKS = {
    "pretraining": Row(
        PretrainingTask, lambda length: pretraining_spec(length, PREDICTIONS), "lamb"
    ),
}


def make_step(
    task_name: str, config: AlbertConfig, dtype: str, recompute: bool
) -> Callable[[Any], Any]:
    """Makes what the Trainer runs on a replica: model, optimizer, step."""
    row = TASKS[task_name]
    task = row.make(config, "mixed_bfloat16" if dtype == "bfloat16" else dtype, recompute)
    model = task.build_model()
    optimizer = create_optimizer(
        0.00176, 125_000, 3125, optimizer=row.optimizer, sum_over_replicas=False
    )
    optimizer.build(model.trainable_variables)
    return TrainStep(task, model, optimizer)


def features(task_name: str, batch: int, length: int) -> dict[str, tf.TensorSpec]:
    """Returns the features of one replica, by name."""
    spec = TASKS[task_name].spec(length)
    return {
        name: tf.TensorSpec([batch, *feature.shape], feature.dtype, name)
        for name, feature in spec.features.items()
        if feature.parsed
    }
