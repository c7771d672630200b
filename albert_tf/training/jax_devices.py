"""Training on JAX: its devices and processes, and one update as a program over all of them."""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from keras import ops
from keras.optimizers import Optimizer

from albert_tf.console import tf_config
from albert_tf.model import dropout, jax_ops
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
from albert_tf.types import Array, Features

# The mesh axis of the replicas, and the specs of arrays that are replicated or divided over it.
_AXIS = "replica"
_SAME, _DIVIDED = PartitionSpec(), PartitionSpec(_AXIS)
# Steps that the host may run ahead of the devices; each keeps its batch in device memory.
_STEPS_AHEAD = 2
# JAX's messages when another process no longer answers.
_LOST = re.compile(r"Gloo|Connection|[Cc]oordination|heartbeat|UNAVAILABLE|DEADLINE_EXCEEDED")
# Prefixes of JAX's errors, which NumPy raises again as ValueErrors when it reads an array whose
# computation failed.
_JAXS = re.compile(r"(UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED): ")


def connect_processes() -> None:
    """Connects the processes of TF_CONFIG, if it names more than one.

    If others don't start in time, it ends this process with a line of error and exit code 1.
    """
    addresses = tf_config.addresses()
    if len(addresses) < 2:
        return
    tf_config.log_others()
    # JAX would answer an unusable address or a timeout with the stack of its C++ code.
    tf_config.check_first_address()
    late = threading.Timer(tf_config.WAIT_SECONDS, _give_up)
    late.daemon = True
    late.start()
    timeout = int(2 * tf_config.WAIT_SECONDS)
    jax.distributed.initialize(
        addresses[0], len(addresses), tf_config.index(), initialization_timeout=timeout
    )
    late.cancel()
    # JAX treats the signal as a notice of preemption, and would go on.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _give_up() -> None:
    print(
        f"error: TF_CONFIG: not all other workers ({', '.join(tf_config.others())}) have started "
        f"within {tf_config.WAIT_SECONDS:.0f} s: start the same command on each, or correct its "
        "address",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


class Gradients:
    """Computes the losses of a global batch and their gradients, as TrainStep does.

    Each replica calls it on its share of the batch; the results are the same on all replicas.
    """

    def __init__(self, task: Task, model: keras.Model, settings: StepSettings) -> None:
        self._task = task
        self._model = model
        self._seed = settings.seed
        self._accumulation_steps = settings.accumulation_steps

    def __call__(self, weights: list[Array], step: Array, features: Features) -> Any:
        """Returns the losses and gradients; a weight that no loss depends on has None."""
        features = self._task.with_drawn(features, self._seed, step)
        totals = lax.psum(self._task.loss_weights(features), _AXIS)
        count = self._accumulation_steps
        first_pass = lax.axis_index(_AXIS) * count

        def seed(i: Array) -> Array:
            return dropout.pass_seed(self._seed, step, first_pass + i)

        def one(i: Array, features: Features) -> Any:
            return self._micro_step(weights, features, totals, seed(i))

        def add(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(ops.add, total, one(*part)), None

        def split(x: Array) -> Array:
            return ops.reshape(x, (count, -1, *x.shape[1:]))

        if count == 1:
            local = one(0, features)
        else:
            numbers, parts = ops.arange(count), jax.tree.map(split, features)
            if self._task.compares_examples:
                # First the gradients for all outputs; the backward pass recomputes the outputs.
                # Source: Gao et al. 2021 (arXiv 2101.06983).
                outputs = lax.map(
                    lambda part: self._outputs(weights, part[1], seed(part[0])), (numbers, parts)
                )
                outputs = ops.reshape(outputs, (-1, *outputs.shape[2:]))
                of_outputs = jax.value_and_grad(self._loss, has_aux=True)
                (_, sums), grads = of_outputs(outputs, features, totals)
                parts[OUTPUT_GRADIENTS] = split(grads)
            first = one(0, {name: part[0] for name, part in parts.items()})
            rest = {name: part[1:] for name, part in parts.items()}
            local, _ = lax.scan(add, first, (numbers[1:], rest))
            if self._task.compares_examples:
                local = sums, local[1]
        sums, grads = lax.psum(local, _AXIS)
        return self._task.losses(sums, totals), grads

    def _outputs(self, weights: list[Array], features: Features, seed: Array) -> Any:
        variables = self._model.trainable_variables
        with keras.StatelessScope(list(zip(variables, weights, strict=True))):
            return self._model(features, training=True, dropout_seed=seed)

    def _loss(self, outputs: Any, features: Features, totals: Any) -> tuple[Array, Any]:
        """Returns this replica's share of the total loss, and of the losses' sums."""
        if OUTPUT_GRADIENTS in features:
            return ops.sum(outputs * features[OUTPUT_GRADIENTS]), {}
        shares = 1
        if self._task.compares_examples:
            # Each replica computes the sums of the whole batch, and counts an equal share of them.
            outputs, shares = lax.all_gather(outputs, _AXIS, tiled=True), lax.psum(1, _AXIS)
        sums = {name: x / shares for name, x in self._task.loss_sums(outputs, features).items()}
        return sum(self._task.losses(sums, totals)), sums

    def _micro_step(
        self, weights: list[Array], features: Features, totals: Any, seed: Array
    ) -> Any:
        # JAX's gradient of an unused weight is 0, and an update by 0 would still let it decay.
        tracked, is_used = _track_use()

        def loss(weights: list[Array]) -> tuple[Array, Any]:
            outputs = self._outputs(tracked(weights), features, seed)
            return self._loss(outputs, features, totals)

        (_, sums), grads = jax.value_and_grad(loss, has_aux=True)(weights)
        return sums, [grad if used else None for grad, used in zip(grads, is_used, strict=True)]


def _track_use() -> tuple[Callable[[list[Array]], list[Array]], list[bool]]:
    """Returns an identity function of weights, and a list that its differentiation fills.

    The list says for each weight whether the differentiated function depends on it.
    """
    is_used: list[bool] = []

    @jax.custom_vjp
    def identity(weights: list[Array]) -> list[Array]:
        return weights

    def forward(weights: list[Any]) -> tuple[list[Array], None]:
        return [weight.value for weight in weights], None

    def backward(_: None, grads: list[Any]) -> tuple[list[Array]]:
        is_used[:] = [not isinstance(grad, SymbolicZero) for grad in grads]
        zeros = [ops.zeros(grad.shape, grad.dtype) for grad in grads]
        return ([g if used else zero for g, used, zero in zip(grads, is_used, zeros, strict=True)],)

    identity.defvjp(forward, backward, symbolic_zeros=True)
    return identity, is_used


class JaxDevices(Devices):
    """All devices of JAX's platform, in all processes of jax.distributed.

    Args:
      devices: The devices; None for all. Programs for another machine's can only be compiled.
      shard_optimizer: Whether each device holds only its share of the optimizer's state.
    """

    def __init__(
        self, devices: Sequence[jax.Device] | None = None, shard_optimizer: bool = False
    ) -> None:
        devices = devices or jax.devices()
        self.name = f"JAX on {devices[0].device_kind}"
        self.num_processes, self.process = jax.process_count(), jax.process_index()
        self.num_replicas = len(devices)
        self.is_chief = self.process == 0
        self.on_cpu = devices[0].platform == "cpu"
        self._mesh = Mesh(np.array(devices), (_AXIS,))
        self._same = NamedSharding(self._mesh, _SAME)
        self._divided = NamedSharding(self._mesh, _DIVIDED)
        self._shard_optimizer = shard_optimizer

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        """Ends this process at once after an error, once the error's message has appeared.

        JAX would wait five minutes for all processes to end, and then abort them with the stack of
        its C++ code. It may still abort others this way if it notices before their step fails. An
        error about a lost process becomes a ConnectionError of one line.
        """
        if error is None or self.num_processes == 1:
            return
        atexit.register(os._exit, 1)  # The function registered last is called first.
        is_jaxs = isinstance(error, jax.errors.JaxRuntimeError) or _JAXS.match(str(error))
        if is_jaxs and _LOST.search(str(error)):
            cause = str(error).partition("\n")[0]
            raise ConnectionError(
                f"another worker was lost ({cause}): see its log, and start the same command again "
                "on all workers"
            ) from error

    def mean_over_processes(self, *values: float) -> list[float]:
        # Sent as bytes, since JAX would round the numbers to 32 bits.
        sent = np.array(values, np.float64).view(np.uint32)
        received = multihost_utils.process_allgather(sent).reshape(-1, sent.size)
        return received.view(np.float64).mean(axis=0).tolist()

    def host_values(self, tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {name: self._host_value(tensor) for name, tensor in tensors.items()}

    def _host_value(self, tensor: Any) -> np.ndarray:
        value = getattr(tensor, "value", tensor)
        if isinstance(value, jax.Array) and not value.is_fully_replicated:
            return multihost_utils.process_allgather(value, tiled=True)
        # On a CPU this shares the value's memory; JAX then lets no step overwrite it.
        return np.asarray(value)

    # --- batches ----------------------------------------------------------------------------

    def iterator(self, input_fn: InputFn) -> Iterator[Features]:
        """Yields global batches; this process feeds the shares of its own devices."""
        from albert_tf.records.input_files import untuned

        # The shares of this process's devices, in turn, make its part of a global batch.
        shares = untuned(input_fn(self.input_context)).as_numpy_iterator()
        for local in zip(*[shares] * len(self._mesh.local_devices), strict=False):
            yield {
                name: jax.make_array_from_process_local_data(
                    self._divided, np.concatenate([share[name] for share in local])
                )
                for name in local[0]
            }

    def batches(self, input_fn: InputFn) -> Iterator[Features]:
        return self.iterator(input_fn)

    # --- programs on the devices ------------------------------------------------------------

    def train_steps(
        self, task: Task, model: keras.Model, optimizer: Optimizer, settings: StepSettings
    ) -> RunSteps:
        step = self.train_step(task, model, optimizer, settings)
        variables = [*model.trainable_variables, *optimizer.variables]
        shardings = self._shardings(model, optimizer)

        def run_all(runs: Iterable[Run]) -> np.ndarray:
            values, stats = _values(variables, shardings), []
            for iterator, count in runs:
                for _ in range(count):
                    # Launch a step, but don't run too far ahead of the devices.
                    values, of_step = step(values, next(iterator))
                    stats.append(of_step)
                    jax.block_until_ready(stats[-1 - _STEPS_AHEAD :][0])
            # Between calls the variables hold the values.
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            return np.stack(jax.device_get(stats))

        return run_all

    def train_step(
        self, task: Task, model: keras.Model, optimizer: Optimizer, settings: StepSettings
    ) -> Any:
        """Returns a jitted function of variables' values and a batch: new values, statistics.

        The variables are the model's trainable ones, then the optimizer's. Their memory is reused.
        """
        gradients = Gradients(task, model, settings)
        on_replicas = self._on_replicas(gradients, (_SAME, _SAME, _DIVIDED), _SAME)
        count = len(model.trainable_variables)
        if hasattr(optimizer, "each_once"):
            optimizer.each_once = self._each_once

        def update(values: list[Array], features: Features) -> tuple[list[Array], Array]:
            # Learning rate and step of the state before the update.
            weights, state = values[:count], values[count:]
            with keras.StatelessScope(list(zip(optimizer.variables, state, strict=True))):
                learning_rate = ops.cast(optimizer.learning_rate, "float32")
                step = ops.convert_to_tensor(optimizer.iterations)
            # Forward and backward pass of each replica on its share, summed over all replicas.
            losses, grads = on_replicas(weights, step, features)
            squares = [ops.sum(ops.square(grad)) for grad in grads if grad is not None]
            stats = [sum(losses), *losses, learning_rate, ops.sqrt(sum(squares))]
            # Update whole arrays; their sharding determines which device computes which part.
            weights, state = optimizer.stateless_apply(state, grads, weights)
            return [*weights, *state], ops.stack(stats)

        shardings = self._shardings(model, optimizer)
        return jax.jit(update, donate_argnums=0, out_shardings=(shardings, self._same))

    def shapes(
        self, model: keras.Model, optimizer: Optimizer, features: Mapping[str, tuple[Any, Any]]
    ) -> tuple[Any, Any]:
        """Returns arguments of `train_step` without values, to compile it for other devices.

        `features` maps each feature of a global batch to its shape and dtype.
        """
        variables = [*model.trainable_variables, *optimizer.variables]
        values = [
            jax.ShapeDtypeStruct(variable.shape, variable.value.dtype, sharding=sharding)
            for variable, sharding in zip(variables, self._shardings(model, optimizer), strict=True)
        ]
        batch = {
            name: jax.ShapeDtypeStruct(*of, sharding=self._divided) for name, of in features.items()
        }
        return values, batch

    def summed(self, model: keras.Model, function: OnBatch) -> OnBatch:
        return self._forward(model, lambda batch: lax.psum(function(batch), _AXIS), _SAME)

    def gathered(self, model: keras.Model, function: OnBatch) -> OnBatch:
        return self._forward(model, function, _DIVIDED)

    def _forward(self, model: keras.Model, function: OnBatch, result: PartitionSpec) -> OnBatch:
        variables = model.variables
        everywhere = [self._same] * len(variables)

        def with_values(values: list[Array], batch: Features) -> Any:
            with keras.StatelessScope(list(zip(variables, values, strict=True))):
                return function(batch)

        on_replicas = self._on_replicas(with_values, (_SAME, _DIVIDED), result)
        forward = jax.jit(on_replicas, out_shardings=self._same)
        return lambda batch: jax.device_get(forward(_values(variables, everywhere), batch))

    def _on_replicas(self, function: Callable[..., Any], takes: Any, returns: Any) -> Any:
        """Returns a function of global arrays that calls `function` on each replica's share."""
        # With the check, JAX itself would sum the gradients of replicated weights over the replicas
        # once for each micro-batch.
        return jax.shard_map(
            function, mesh=self._mesh, in_specs=takes, out_specs=returns, check_vma=False
        )

    def _each_once(
        self, function: Callable[[Array], Array], arrays: Sequence[Array]
    ) -> list[Array]:
        """Returns `function` of each array; the replicas take turns to compute them."""
        if self.num_replicas == 1:
            return [function(array) for array in arrays]

        def on_replica(arrays: list[Array]) -> list[Array]:
            turn = lax.axis_index(_AXIS)
            mine = [
                lax.cond(turn == i % self.num_replicas, function, ops.zeros_like, array)
                for i, array in enumerate(arrays)
            ]
            return lax.psum(mine, _AXIS)

        return self._on_replicas(on_replica, (_SAME,), _SAME)(list(arrays))

    def _shardings(self, model: keras.Model, optimizer: Optimizer) -> list[NamedSharding]:
        """Returns the shardings of the trainable variables, then of the optimizer's variables."""
        weights = [self._same] * len(model.trainable_variables)
        return weights + [self._state_sharding(variable.shape) for variable in optimizer.variables]

    def _state_sharding(self, shape: Sequence[int]) -> NamedSharding:
        # Divide the first axis that allows it.
        for axis, size in enumerate(shape):
            if self._shard_optimizer and size % self.num_replicas == 0:
                return NamedSharding(self._mesh, PartitionSpec(*[None] * axis, _AXIS))
        return self._same


def _values(
    variables: Sequence[keras.Variable], shardings: Sequence[NamedSharding]
) -> list[jax.Array]:
    for variable, sharding in zip(variables, shardings, strict=True):
        if variable.value.sharding != sharding:
            variable.assign(jax.device_put(np.asarray(variable.value), sharding))
    return [variable.value for variable in variables]


def connect(
    use_tpu: bool = False, num_tpu_cores: int | None = None, shard_optimizer: bool = False
) -> JaxDevices:
    """Connects the processes that train together, and returns the devices of all of them.

    The processes are those of TF_CONFIG if it names more than one, or those of a TPU's hosts. JAX
    chooses the platform: a TPU or GPU if its plugin is installed, otherwise the CPU. With `use_tpu`
    it must be a TPU, with `num_tpu_cores` devices if given. Compiled programs are kept in the
    user's cache directory, unless JAX_COMPILATION_CACHE_DIR names another.
    """
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # TensorFlow only reads the input.
    # JAX reports each platform that it doesn't find.
    logging.getLogger("jax").setLevel(logging.WARNING)
    # A second start of the same command finds its programs compiled.
    if not getattr(jax.config, "jax_compilation_cache_dir", None):
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(caches, "albert_tf", "jax"))
    connect_processes()
    # JAX looks for devices at the first call that needs them.
    try:
        platform = jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that it has found one.
        named = os.environ.get("JAX_PLATFORMS")
        where = f" of JAX_PLATFORMS={named}" if named else ""
        reason = next(iter(str(error).splitlines()), "there is none")
        remedy = "correct it, or unset it to let JAX choose" if named else "set JAX_PLATFORMS=cpu"
        raise ValueError(f"JAX finds no device{where} ({reason}): {remedy}") from error
    if use_tpu:
        _check_tpu(platform, num_tpu_cores)
    devices = JaxDevices(shard_optimizer=shard_optimizer)
    # The kernels may be untested on this device or with these libraries: try them. Kernels that
    # fail in one process are turned off in all, since all must run the same program.
    for kind in jax_ops.KINDS:
        cause = jax_ops.why_not(kind)
        if devices.any_process(cause is not None or jax_ops.accelerator(kind) is None):
            jax_ops.turn_off(kind)
        if cause:
            text = "JAX's own code replaces the %s kernels, which don't run on this device (%s)"
            logging.warning(text, kind, cause)
    return devices


def _check_tpu(platform: str, num_tpu_cores: int | None) -> None:
    if platform != "tpu":
        raise ValueError(
            f"JAX finds no TPU here, only {platform}: install the packages in docs/tpu.md on a TPU "
            "VM, or leave `use_tpu` out to train on CPU or GPU"
        )
    if num_tpu_cores not in (None, jax.device_count()):
        raise ValueError(
            f"the TPU has {jax.device_count()} devices, `num_tpu_cores` is {num_tpu_cores}: set "
            f"it to {jax.device_count()}"
        )
