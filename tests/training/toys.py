"""Toy tasks with losses that one can work out, and the one device that they run on."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from albert_tf.tasks.losses import MultipleNegativesRankingLoss
from albert_tf.training.interfaces import Task
from albert_tf.training.tensorflow_devices import TensorFlowDevices

# Passes of SeedTask's step, and the run's seed.
PARTS, SEED = 4, 5
# The weight of Turned.
MATRIX = np.array([[1.0, -2.0, 0.5], [0.25, 1.0, -1.0]], "float32")


def one_device() -> TensorFlowDevices:
    return TensorFlowDevices(tf.distribute.OneDeviceStrategy("CPU:0"))


def shared(strategy: tf.distribute.Strategy, rows: dict[str, np.ndarray]) -> Any:
    """Gives each replica its part of the rows."""
    count = strategy.num_replicas_in_sync
    return strategy.experimental_distribute_values_from_function(
        lambda of: {
            name: tf.constant(np.split(row, count)[of.replica_id_in_sync_group])
            for name, row in rows.items()
        }
    )


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Runs functions eagerly, because tracing takes longer than a few steps."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


class Slope(keras.Model):
    """y = a * x, and a weight that nothing depends on; keeps the seeds of eager passes."""

    def __init__(self, name: str = "slope") -> None:
        super().__init__(name=name)
        self.a = self.add_weight(shape=(), initializer="ones", name="a")
        self.unused = self.add_weight(shape=(4,), initializer="ones", name="unused")
        self.seeds: list[list[int]] = []
        self.built = True

    def call(self, features, training, dropout_seed):
        assert training
        if tf.executing_eagerly():
            self.seeds.append(dropout_seed.numpy().tolist())
        return self.a * features["x"]


class SlopeTask(Task):
    """Two losses with weights of their own: y weighted, and the mean of y squared."""

    loss_names = ("linear_loss", "square_loss")
    loss_epsilon = {"linear_loss": 0.5}

    def build_model(self) -> keras.Model:
        return Slope()

    def loss_weights(self, features) -> dict[str, Any]:
        count = tf.cast(tf.size(features["x"]), tf.float32)
        return {"linear_loss": tf.reduce_sum(features["weights"]), "square_loss": count}

    def loss_sums(self, outputs, features) -> dict[str, Any]:
        linear = tf.reduce_sum(outputs * features["weights"])
        return {"linear_loss": linear, "square_loss": tf.reduce_sum(outputs**2)}


class Seeds(Slope):
    """Returns the dropout seed of the forward pass."""

    def call(self, features, training, dropout_seed):
        return self.a * ops.cast(ops.convert_to_tensor(dropout_seed) % 2**20, "float32")


class Turned(keras.Model):
    """Two vectors a row, times a matrix; and a weight that nothing depends on."""

    def __init__(self) -> None:
        super().__init__(name="turned")
        start = keras.initializers.Constant(MATRIX)
        self.matrix = self.add_weight(shape=MATRIX.shape, initializer=start, name="matrix")
        self.unused = self.add_weight(shape=(3,), initializer="ones", name="unused")
        self.built = True

    def call(self, features, training, dropout_seed):
        assert training
        return ops.matmul(features["x"], ops.convert_to_tensor(self.matrix))


class PairsTask(Task):
    """Finds each row's second vector among those of the whole batch."""

    loss_names = ("ranking_loss",)
    compares_examples = True

    def build_model(self) -> keras.Model:
        return Turned()

    def loss_weights(self, features) -> dict[str, Any]:
        return {"ranking_loss": ops.sum(ops.ones_like(features["x"][:, 0, 0]))}

    def loss_sums(self, outputs, features) -> dict[str, Any]:
        return {"ranking_loss": ops.sum(MultipleNegativesRankingLoss(3.0).call(None, outputs))}


def pairs_of_vectors() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(4).normal(size=(4, 2, 2)).astype("float32")}


def step_on_pairs() -> tuple[list[float], np.ndarray]:
    """Returns the loss and the gradients' norm of a step on all pairs at once, and the gradient."""
    with tf.GradientTape() as tape:
        matrix = tf.Variable(MATRIX)
        outputs = pairs_of_vectors()["x"] @ matrix
        loss = tf.reduce_mean(MultipleNegativesRankingLoss(3.0).call(None, outputs))
    gradient = tape.gradient(loss, matrix).numpy()
    return [float(loss), float(np.linalg.norm(gradient))], gradient


class SeedTask(Task):
    """The losses are the dropout seeds of a step's passes, each of which has one row."""

    loss_names = tuple(f"{kind}_{i}_loss" for kind in ("pass", "step") for i in range(PARTS))

    def build_model(self) -> keras.Model:
        return Seeds()

    def loss_weights(self, features) -> dict[str, Any]:
        return {name: ops.mean(features["ones"]) / 2 for name in self.loss_names}

    def loss_sums(self, outputs, features) -> dict[str, Any]:
        sums = {}
        for i in range(PARTS):
            here = ops.cast(ops.sum(features["number"]) == i, "float32")
            sums |= {f"pass_{i}_loss": here * outputs[0], f"step_{i}_loss": here * outputs[1]}
        return sums
