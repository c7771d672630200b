"""Training on TensorFlow: the replicas of a tf.distribute strategy, and one update on them."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from keras.optimizers import Optimizer

from albert_tf.console import tf_config
from albert_tf.model import dropout
from albert_tf.records.input_files import untuned
from albert_tf.storage import files
from albert_tf.training.interfaces import (
    OUTPUT_GRADIENTS,
    Devices,
    InputFn,
    OnBatch,
    Run,
    RunSteps,
    StepSettings,
    Task,
)
from albert_tf.types import Features

# The name of a worker that no longer answers, in TensorFlow's messages. The lookahead excludes
# names of devices, which begin alike.
_LOST_WORKER = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)\b(?!/device)")


def create_strategy(
    use_tpu: bool = False,
    tpu_name: str | None = None,
    tpu_zone: str | None = None,
    gcp_project: str | None = None,
    master: str | None = None,
    num_tpu_cores: int | None = None,
) -> tf.distribute.Strategy:
    """Chooses the strategy to train with.

    With `use_tpu` it is a TPU, found by its name or grpc address ("local" on a TPU VM) and, if
    Google Cloud does not provide them, its zone and project. The TPU must have `num_tpu_cores`
    cores, if given. Otherwise the strategy has all workers of TF_CONFIG, if it names more than one;
    or all GPUs of this machine (or all logical CPUs, if there are several); or the one device.
    """
    # 1. A TPU.
    if use_tpu:
        if tf_config.num_workers() > 1:  # Each would train alone and write the same files.
            raise ValueError(
                f"TF_CONFIG names {tf_config.num_workers()} workers, but TensorFlow trains on a "
                "TPU from one process: set `backend=jax` on each, or unset TF_CONFIG and give "
                "`tpu_name` on one machine"
            )
        return _tpu_strategy(tpu_name or master or "local", tpu_zone, gcp_project, num_tpu_cores)
    # 2. Several workers.
    if tf_config.num_workers() > 1:
        tf_config.log_others()
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        if threading.current_thread() is threading.main_thread():
            # TensorFlow treats the signal as a notice of preemption, and would go on.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return strategy
    # 3. The GPUs of this machine, or its CPUs.
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(devices) > 1:
        return _mirrored(*(device.name for device in devices))
    return tf.distribute.OneDeviceStrategy(devices[0].name)


@functools.cache
def _mirrored(*devices: str) -> tf.distribute.MirroredStrategy:
    """Returns the one strategy of this process: two would give their collectives equal numbers."""
    return tf.distribute.MirroredStrategy(devices)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes the files."""
    resolver = strategy.cluster_resolver
    if resolver is None or isinstance(strategy, tf.distribute.TPUStrategy):
        return True
    return not resolver.task_type or (
        resolver.task_type == "chief"
        or (resolver.task_type == "worker" and resolver.task_id == 0 and not tf_config.has_chief())
    )


@tf.function(autograph=False)
def _mean_over_replicas(strategy: tf.distribute.Strategy, values: tf.Tensor) -> tf.Tensor:
    def mean(x: tf.Tensor) -> tf.Tensor:
        # The reduction needs its operand's device, which an argument does not have.
        x = tf.identity(x)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, x)

    return strategy.experimental_local_results(strategy.run(mean, args=(values,)))[0]


def _tpu_strategy(
    name: str, zone: str | None, project: str | None, num_cores: int | None
) -> tf.distribute.TPUStrategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=name, zone=zone, project=project
        )
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    # Any error: Google's packages, which find a TPU by its name, raise errors of their own.
    except Exception as error:
        reason = files.reason(error)
        first = reason.partition(". ")[0]  # The rest describes TensorFlow's internals.
        raise ValueError(
            f"TPU {name!r} can't be used ({first}): {_tpu_remedy(name, reason)}; or leave "
            "`use_tpu` out to train on CPU or GPU"
        ) from error
    if num_cores is not None and strategy.num_replicas_in_sync != num_cores:
        raise ValueError(
            f"TPU {name!r} has {strategy.num_replicas_in_sync} cores, but `num_tpu_cores` is "
            f"{num_cores}: set it to {strategy.num_replicas_in_sync}"
        )
    return strategy


def _tpu_remedy(name: str, reason: str) -> str:
    """Returns advice for a TPU that was not found, since TensorFlow's messages have none."""
    packages = {
        (distribution.metadata["Name"] or "").lower().replace("_", "-")
        for distribution in importlib.metadata.distributions()
    }
    if "cloud-tpu-client" in reason:
        return "install cloud-tpu-client, which finds a TPU by its name"
    if "tensorflow-tpu" not in packages:
        return "this TensorFlow has no TPU support: install the packages in docs/tpu.md"
    if packages & {"tensorflow", "tensorflow-cpu"}:
        return (
            "tensorflow and tensorflow-tpu are both installed: install the packages in docs/tpu.md "
            "into a new environment"
        )
    if name != "local":
        return "check `tpu_name`, `tpu_zone` and `gcp_project`"
    if "lockfile" in reason or "in use" in reason:
        return "another process is using it: stop that process first"
    return "this machine has no TPU: run on a TPU VM"


class TrainStep:
    """One update: forward and backward pass, sum over replicas, clipping, optimizer.

    Call it in replica context on this replica's share of a global batch. The result depends on the
    global batch, not on its split into replicas and micro-batches: each loss is a sum divided by a
    weight that has been summed over the whole batch first. (Dropout masks depend on the split:
    they are a function of seed, step, replica and micro-batch.)
    """

    def __init__(
        self,
        task: Task,
        model: keras.Model,
        optimizer: Optimizer,
        settings: StepSettings | None = None,
    ) -> None:
        settings = settings or StepSettings()
        # This step sums the gradients over the replicas, so the optimizer must not do it again.
        if hasattr(optimizer, "sum_over_replicas"):
            optimizer.sum_over_replicas = False
        else:
            optimizer._all_reduce_sum_gradients = lambda grads_and_variables: grads_and_variables
        self._task = task
        self._model = model
        self._optimizer = optimizer
        self._accumulation_steps = settings.accumulation_steps
        self._seed = settings.seed
        # On a GPU XLA compiles the step, unless the settings say otherwise.
        jit_compile = settings.jit_compile
        if jit_compile is None and tf.config.list_logical_devices("GPU"):
            jit_compile = True
            logging.info("XLA compiles the training step, since TensorFlow runs on a GPU")
        how = {"autograph": False, "jit_compile": jit_compile or None}
        self._gradients = tf.function(self._micro_step, **how)
        self._outputs = tf.function(self._forward, **how)

    def __call__(self, features: Features) -> tf.Tensor:
        """Performs one update on this replica's features; only their length may be dynamic.

        Returns `<float32>[len(stat_names)]`, the same on all replicas.
        """
        features = self._task.with_drawn(features, self._seed, self._optimizer.iterations)
        # The weights of the whole batch: each replica's losses are shares of its means.
        context = tf.distribute.get_replica_context()
        weights = context.all_reduce(tf.distribute.ReduceOp.SUM, self._task.loss_weights(features))
        accumulate = self._compare if self._task.compares_examples else self._accumulate
        local = accumulate(features, weights, context)
        # Sum over all replicas: the losses and gradients of the whole batch.
        sums, grads = context.all_reduce(tf.distribute.ReduceOp.SUM, local)
        losses = self._task.losses(sums, weights)
        # Clip and update. A weight that no loss depends on has no gradient and stays unchanged.
        variables = [self._model.trainable_variables[i] for i in sorted(grads)]
        grads = [grads[i] for i in sorted(grads)]
        learning_rate = tf.cast(self._optimizer.learning_rate, tf.float32)
        stats = [tf.add_n(losses), *losses, learning_rate, tf.linalg.global_norm(grads)]
        self._optimizer.apply(grads, variables)
        return tf.stack(stats)

    def _accumulate(self, features: Features, weights: Any, context: Any) -> Any:
        """Returns this replica's loss sums and its share of the gradients of the total loss."""
        count, part = self._accumulation_steps, self._parts(features, context)
        # The first micro-batch gives the loop's initial value, the others are added to it.
        total = self._gradients(*part(0), weights)
        if count == 1:
            return total
        _, total = tf.while_loop(
            lambda i, _: i < count,
            lambda i, total: (
                i + 1,
                tf.nest.map_structure(tf.add, total, self._gradients(*part(i), weights)),
            ),
            (1, total),
            parallel_iterations=1,  # Otherwise several passes, and their activations, overlap.
        )
        return total

    def _compare(self, features: Features, weights: Any, context: Any) -> Any:
        """Does what `_accumulate` does, for losses that compare examples of the whole batch.

        With several micro-batches all outputs are computed first, for the gradients with respect to
        them, and once more in the backward pass.

        Source: Gao et al. 2021 (arXiv 2101.06983).
        """
        count, part = self._accumulation_steps, self._parts(features, context)
        if count > 1:
            each = {"fn_output_signature": tf.float32, "parallel_iterations": 1}
            outputs = tf.map_fn(lambda i: self._outputs(*part(i)), tf.range(count), **each)
            size = next(iter(features.values())).shape[0]
            outputs = tf.reshape(outputs, [size, *outputs.shape[2:]])
        with tf.GradientTape() as tape:
            if count == 1:
                outputs = self._outputs(*part(0))
            tape.watch(outputs)
            # Each replica computes the sums of the whole batch, and counts an equal share of them.
            replicas = context.num_replicas_in_sync
            everything = outputs
            if replicas > 1:  # all_gather loses static sizes.
                everything = context.all_gather(outputs, axis=0)
                everything = tf.ensure_shape(everything, [None, *outputs.shape[1:]])
            sums = self._task.loss_sums(everything, features)
            sums = {name: total / replicas for name, total in sums.items()}
            loss = tf.add_n(self._task.losses(sums, weights))
        if count == 1:
            return sums, self._by_index(tape, loss)
        grads = {OUTPUT_GRADIENTS: tape.gradient(loss, outputs)}
        return sums, self._accumulate({**features, **grads}, weights, context)[1]

    def _parts(self, features: Features, context: Any) -> Callable[[Any], tuple[Features, Any]]:
        """Returns a function of a micro-batch's number: its features, and its dropout seed."""
        count = self._accumulation_steps
        first_pass = tf.cast(context.replica_id_in_sync_group, tf.int32) * count
        if count == 1:
            return lambda _: (features, self._dropout_seed(first_pass))

        def split(x: tf.Tensor) -> tf.Tensor:
            # Only the length may be dynamic.
            rest = [-1 if size is None else size for size in x.shape[1:]]
            return tf.reshape(x, [count, x.shape[0] // count, *rest])

        parts = {name: split(feature) for name, feature in features.items()}
        return lambda i: (
            {name: part[i] for name, part in parts.items()},
            self._dropout_seed(first_pass + i),
        )

    def _dropout_seed(self, number: Any) -> Any:
        return dropout.pass_seed(self._seed, self._optimizer.iterations, number)

    def _forward(self, features: Features, dropout_seed: tf.Tensor) -> Any:
        return self._model(features, training=True, dropout_seed=dropout_seed)

    def _micro_step(self, features: Features, dropout_seed: tf.Tensor, weights: Any) -> Any:
        """Returns the loss sums, and the gradients that are not None by variable index."""
        with tf.GradientTape() as tape:
            outputs, sums = self._forward(features, dropout_seed), {}
            if OUTPUT_GRADIENTS in features:
                loss = tf.reduce_sum(outputs * features[OUTPUT_GRADIENTS])
            else:
                sums = self._task.loss_sums(outputs, features)
                loss = tf.add_n(self._task.losses(sums, weights))
        return sums, self._by_index(tape, loss)

    def _by_index(self, tape: tf.GradientTape, loss: tf.Tensor) -> dict[int, tf.Tensor]:
        variables = [variable.value for variable in self._model.trainable_variables]
        grads = enumerate(tape.gradient(loss, variables))
        # Make them dense: a gather's duplicate rows would make the norm, and the clipping, wrong.
        return {i: tf.convert_to_tensor(grad) for i, grad in grads if grad is not None}


class TensorFlowDevices(Devices):
    """The replicas of a strategy that create_strategy returned."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        self.name = type(strategy).__name__
        self.is_chief = is_chief(strategy)
        several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        hosts, host = (tf_config.num_workers(), tf_config.index()) if several else (1, 0)
        replicas = strategy.num_replicas_in_sync
        self.num_processes, self.process, self.num_replicas = hosts, host, replicas
        self.on_cpu = all("CPU" in name for name in strategy.extended.worker_devices)
        self.static_shapes = not self.on_cpu

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        """Names the lost worker in one line, if the run ends because a worker was lost."""
        if self.num_processes == 1 or not isinstance(error, tf.errors.OpError):
            return
        cause = files.reason(error)
        if lost := _LOST_WORKER.search(cause):
            raise ConnectionError(
                f"{tf_config.describe_task(lost[1], int(lost[2]))} was lost ({cause}): see its "
                "log, and start the same command again on all workers; they resume from the last "
                "checkpoint"
            ) from error

    def scope(self) -> contextlib.AbstractContextManager:
        return self._strategy.scope()

    def mean_over_processes(self, *values: float) -> list[float]:
        if self.num_processes == 1:
            return list(values)
        means = _mean_over_replicas(self._strategy, tf.constant(values, tf.float64))
        return means.numpy().tolist()

    def host_values(self, tensors: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        # On a CPU this shares the variable's memory; TensorFlow then writes updates elsewhere.
        with tf.device("CPU"):
            return {
                name: tf.identity(tf.convert_to_tensor(tensor)) for name, tensor in tensors.items()
            }

    # --- batches ----------------------------------------------------------------------------

    def iterator(self, input_fn: InputFn) -> Iterator[Any]:
        """Returns an iterator over a host's dataset, without autotuning.

        tf.distribute's own iterators autotune whatever the dataset's options say. Only TPUs use
        them, because they also feed the hosts of a pod.
        """
        if self._on_tpu:
            return iter(
                self._strategy.distribute_datasets_from_function(
                    lambda context: untuned(input_fn(context))
                )
            )
        return iter(untuned(input_fn(self.input_context)))

    def batches(self, input_fn: InputFn) -> Iterator[Any]:
        iterator = self.iterator(input_fn)
        with contextlib.suppress(StopIteration):
            while True:
                yield self._next_batch(iterator)

    def _next_batch(self, iterator: Iterator[Any]) -> Any:
        """Returns one batch for each of this host's replicas, for `strategy.run`."""
        if self._on_tpu:
            return next(iterator)
        return self._strategy.experimental_distribute_values_from_function(lambda _: next(iterator))

    # --- programs on the devices ------------------------------------------------------------

    def train_steps(
        self, task: Task, model: keras.Model, optimizer: Optimizer, settings: StepSettings
    ) -> RunSteps:
        train_step = TrainStep(task, model, optimizer, settings)

        # No Python code called here needs AutoGraph, which would take more than a second per run.
        @tf.autograph.experimental.do_not_convert
        def step(iterator: Any) -> tf.Tensor:
            replicas = self._strategy.run(train_step, args=(self._next_batch(iterator),))
            # All replicas hold the same numbers, since they have been summed.
            return self._first(replicas)

        @tf.function
        def run(iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
            stats = tf.TensorArray(tf.float32, size=num_steps)
            for i in tf.range(num_steps):
                stats = stats.write(i, step(iterator))
            return stats.stack()  # [steps, len(stat_names)]

        def run_all(runs: Iterable[Run]) -> np.ndarray:
            stats = [run(iterator, tf.constant(count)) for iterator, count in runs]
            return tf.concat(stats, axis=0).numpy()

        return run_all

    def summed(self, model: keras.Model, function: OnBatch) -> OnBatch:
        def replica_sums(batch: Features) -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, function(batch))

        @tf.function(autograph=False)
        def sums(batch: Any) -> Any:
            replicas = self._strategy.run(replica_sums, args=(batch,))
            return {name: self._first(value) for name, value in replicas.items()}

        return lambda batch: _arrays(sums(batch))

    def gathered(self, model: keras.Model, function: OnBatch) -> OnBatch:
        @tf.function(autograph=False)
        def rows(batch: Any) -> Any:
            replicas = self._strategy.run(function, args=(batch,))
            return tf.nest.map_structure(lambda x: self._strategy.gather(x, axis=0), replicas)

        # One trace per length is intended; calling `rows` itself would warn about them.
        return lambda batch: _arrays(rows.get_concrete_function(batch)(batch))

    def _first(self, replicas: Any) -> tf.Tensor:
        return self._strategy.experimental_local_results(replicas)[0]


def _arrays(tensors: Any) -> Any:
    return tf.nest.map_structure(lambda x: x.numpy(), tensors)
