"""Training one model for several depths: each step also trains a shallower one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from albert_tf.training.interfaces import Task
from albert_tf.types import Array, Features

# Number of steps for which depths are drawn; after them the draws repeat.
_DRAWS = 4096


class ElasticTask(Task):
    """A task that adds the loss at a smaller depth to the loss at full depth.

    The layers share their weights, so one forward pass has the outputs at every depth: a smaller
    depth only costs another pass through the head. Evaluations report metrics for each depth, such
    as `masked_lm_loss_after_2`.

    Args:
      task: The task of the full depth.
      depths: The shallower depths, in layers; each step draws one, by seed and step.
      weight: Factor of the shallower depth's losses.
      trains: Whether the task is trained. If not, the model may have been cut to fewer layers, and
        depths that it lacks are left out.

    Source: depths that are drawn: LoopFormer (arXiv 2602.11451).
    """

    def __init__(
        self,
        task: Task,
        depths: Sequence[Any],
        weight: float = 1.0,
        trains: bool = True,
    ) -> None:
        self.task = task
        self.depths = tuple(depths)
        self.weight = weight
        self.trains = trains
        self.key_metric, self.classes = task.key_metric, task.classes
        self.loss_names = (*task.loss_names, *(f"shallow_{name}" for name in task.loss_names))
        self.loss_epsilon = {**task.loss_epsilon, **_shallow(task.loss_epsilon)}

    def build_model(self) -> keras.Model:
        model = self.task.build_model()
        if "depths" not in model.input_axes:
            raise ValueError("`elastic_depths` does not apply to this task: leave it out")
        if not self.trains:
            layers = model.config.num_hidden_layers
            there = (d for d in self.depths if not str(d).isdecimal() or int(d) < layers)
            self.depths = tuple(there)
        self.depths = model.config.smaller_depths("elastic_depths", self.depths)
        # Other depths are never read, and need no gradient.
        model.albert.readable_depths = self.depths
        return model

    def with_drawn(self, features: Features, seed: int, step: Array) -> Features:
        depths = ops.convert_to_tensor(np.array(self.depths, "int32"))
        if step is not None:
            drawn = np.random.default_rng(seed).choice(np.array(self.depths, "int32"), _DRAWS)
            depths = ops.take(ops.convert_to_tensor(drawn), [ops.cast(step, "int32") % _DRAWS])
        # Every row gets the depths, so that a batch can be split.
        rows = ops.shape(features["input_ids"])[0]
        return {**features, "depths": ops.broadcast_to(depths, (rows, *ops.shape(depths)))}

    def loss_weights(self, features: Features) -> dict[str, Array]:
        weights = self.task.loss_weights(features)
        return {**weights, **_shallow(weights)}

    def loss_sums(self, outputs: Any, features: Features) -> dict[str, Array]:
        full, shallow = self._by_depth(outputs, features)
        sums = self.task.loss_sums(full, features)
        shallow = self.task.loss_sums(shallow, features)
        return {**sums, **_shallow({name: self.weight * x for name, x in shallow.items()})}

    def metrics(self, outputs: Any, features: Features) -> dict[str, tuple[Array, Array]]:
        full, *others = self._by_depth(outputs, features)
        metrics = self.task.metrics(full, features)
        for depth, of_depth in zip(self.depths, others, strict=True):
            found = self.task.metrics(of_depth, features)
            metrics |= {f"{name}_after_{depth}": pair for name, pair in found.items()}
        return metrics

    def _by_depth(self, outputs: Any, features: Features) -> list[Any]:
        """Splits outputs `<float>[B + D * B, ...]` by depth, the full one first."""
        # An output that has no rows for smaller depths is empty there; no task reads it.
        rows, count = ops.shape(features["depths"])
        return [
            keras.tree.map_structure(lambda x, i=i: x[i * rows : (i + 1) * rows], outputs)
            for i in range(1 + count)
        ]


def _shallow(of_losses: Mapping[str, Any]) -> dict[str, Any]:
    return {f"shallow_{name}": value for name, value in of_losses.items()}
