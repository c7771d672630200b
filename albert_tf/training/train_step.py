"""The training step of one of TensorFlow's replicas: only what runs on the device."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from albert_tf.model import dropout
from albert_tf.training.task import Task
from albert_tf.types import Features


class TrainStep:
    """Forward and backward pass, sum over replicas, clip, update.

    Called in replica context on this replica's share of a global batch. The result depends on the
    global batch, not on how replicas and micro-batches split it: each loss is a sum over a weight,
    and the weights are summed over the whole batch first. (Dropout masks do depend on the split;
    they are a function of seed, step, replica and micro-batch.)

    Args:
      task: Defines the losses.
      model: The result of `task.build_model`.
      optimizer: A built optimizer with `sum_over_replicas=False`.
      seed: Seed of dropout.
      jit_compile: Whether XLA compiles forward and backward pass; on a TPU it always does.
      accumulation_steps: Number of micro-batches that a replica splits its batch into.

    Raises:
      ValueError: If the optimizer would sum gradients over replicas a second time.
    """

    def __init__(
        self,
        task: Task,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        seed: int = 0,
        jit_compile: bool = False,
        accumulation_steps: int = 1,
    ) -> None:
        # Keras' own optimizers sum as well.
        if getattr(optimizer, "sum_over_replicas", True):
            raise ValueError(
                f"the optimizer {type(optimizer).__name__} would sum gradients over replicas a "
                "second time: create it with create_optimizer(..., sum_over_replicas=False)"
            )
        self._task = task
        self._model = model
        self._optimizer = optimizer
        self._accumulation_steps = accumulation_steps
        self._seed = dropout.hashed(seed)
        self._gradients = tf.function(
            self._micro_step, autograph=False, jit_compile=jit_compile or None
        )

    def __call__(self, features: Features) -> tf.Tensor:
        """Performs one update.

        Args:
          features: This replica's features, of static shape but for their length.

        Returns:
          `<float32>[len(stat_names)]` (see devices), the same on all replicas.
        """
        context = tf.distribute.get_replica_context()
        weights = context.all_reduce(tf.distribute.ReduceOp.SUM, self._task.loss_weights(features))
        local = self._accumulate(features, weights, context.replica_id_in_sync_group)
        sums, grads = context.all_reduce(tf.distribute.ReduceOp.SUM, local)
        losses = self._task.losses(sums, weights)
        variables = [self._model.trainable_variables[i] for i in sorted(grads)]
        grads = [grads[i] for i in sorted(grads)]
        learning_rate = tf.cast(self._optimizer.learning_rate, tf.float32)
        stats = [tf.add_n(losses), *losses, learning_rate, tf.linalg.global_norm(grads)]
        self._optimizer.apply(grads, variables)
        return tf.stack(stats)

    def _accumulate(self, features: Features, weights: Any, replica: Any) -> Any:
        """Returns this replica's loss sums, and its share of the gradients of the total loss."""
        count = self._accumulation_steps
        first_pass = tf.cast(replica, tf.int32) * count
        if count == 1:
            return self._gradients(features, weights, self._dropout_seed(first_pass))

        def split(x: tf.Tensor) -> tf.Tensor:
            # At most the length is not static.
            rest = [-1 if size is None else size for size in x.shape[1:]]
            return tf.reshape(x, [count, x.shape[0] // count, *rest])

        def one(i: Any) -> Any:
            micro_batch = {name: feature[i] for name, feature in micro_batches.items()}
            return self._gradients(micro_batch, weights, self._dropout_seed(first_pass + i))

        micro_batches = {name: split(feature) for name, feature in features.items()}
        _, total = tf.while_loop(
            lambda i, _: i < count,
            lambda i, total: (i + 1, tf.nest.map_structure(tf.add, total, one(i))),
            (1, one(0)),
            parallel_iterations=1,  # By default several passes, and their activations, overlap.
        )
        return total

    def _dropout_seed(self, number: Any) -> Any:
        return dropout.pass_seed(self._seed, self._optimizer.iterations, number)

    def _micro_step(self, features: Features, weights: Any, dropout_seed: tf.Tensor) -> Any:
        """Returns the loss sums, and the gradients (those not None) by variable index."""
        with tf.GradientTape() as tape:
            outputs = self._model(features, training=True, dropout_seed=dropout_seed)
            sums = self._task.loss_sums(outputs, features)
            loss = tf.add_n(self._task.losses(sums, weights))
        variables = [variable.value for variable in self._model.trainable_variables]
        grads = enumerate(tape.gradient(loss, variables))
        # Dense: sum over replicas, norm and clipping must not see a gather's duplicate rows.
        return sums, {i: tf.convert_to_tensor(grad) for i, grad in grads if grad is not None}
