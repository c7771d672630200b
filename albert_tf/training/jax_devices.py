"""Devices that JAX runs: each training step is one compiled program over all of them.

The program maps the values of weights and optimizer state, and a batch, to new values. Between
calls Keras' variables hold the values; from step to step they stay on the devices, and each step
reuses the memory of the one before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from keras import ops

from albert_tf.records.datasets import untuned
from albert_tf.training import jax_processes
from albert_tf.training.devices import Devices, InputFn, Run
from albert_tf.training.jax_gradients import Gradients
from albert_tf.training.task import Task
from albert_tf.types import Array, Features

_AXIS = "replica"
_SAME, _DIVIDED = PartitionSpec(), PartitionSpec(_AXIS)
# Steps that the host may be ahead of the devices: each has its batch on them.
_STEPS_AHEAD = 2


class JaxDevices(Devices):
    """All devices of JAX's platform, in all processes of jax.distributed.

    Args:
      devices: The devices; None for all. Those of another machine can only be compiled for.
      shard_optimizer: Whether each holds only its share of the optimizer's state.
    """

    def __init__(
        self, devices: Sequence[jax.Device] | None = None, shard_optimizer: bool = False
    ) -> None:
        # TensorFlow only reads the input.
        tf.config.set_visible_devices([], "GPU")
        devices = devices or jax.devices()
        self.name = f"JAX on {devices[0].device_kind}"
        self.is_chief = jax.process_index() == 0
        self.input_context = tf.distribute.InputContext(
            jax.process_count(), jax.process_index(), len(devices)
        )
        self._mesh = Mesh(np.array(devices), (_AXIS,))
        self._same = NamedSharding(self._mesh, _SAME)
        self._divided = NamedSharding(self._mesh, _DIVIDED)
        self._shard_optimizer = shard_optimizer

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            jax_processes.leave(error)

    def mean_over_processes(self, *values: float) -> list[float]:
        """See Devices."""
        # As bytes: JAX would round them to 32 bits.
        sent = np.array(values, np.float64).view(np.uint32)
        received = multihost_utils.process_allgather(sent).reshape(-1, sent.size)
        return received.view(np.float64).mean(axis=0).tolist()

    def host_values(self, tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """See Devices."""
        return {name: self._host_value(tensor) for name, tensor in tensors.items()}

    def _host_value(self, tensor: Any) -> np.ndarray:
        value = getattr(tensor, "value", tensor)
        if isinstance(value, jax.Array) and not value.is_fully_replicated:
            return multihost_utils.process_allgather(value, tiled=True)
        # On a CPU it is the value's own memory, in which JAX then lets no step write.
        return np.asarray(value)

    # --- batches ----------------------------------------------------------------------------

    def iterator(self, input_fn: InputFn) -> Iterator[Features]:
        """Yields global batches, of which this process feeds its devices' shares."""
        shares = untuned(input_fn(self.input_context)).as_numpy_iterator()
        for local in zip(*[shares] * len(self._mesh.local_devices), strict=False):
            yield {
                name: jax.make_array_from_process_local_data(
                    self._divided, np.concatenate([share[name] for share in local])
                )
                for name in local[0]
            }

    def batches(self, input_fn: InputFn) -> Iterator[Features]:
        """See Devices."""
        return self.iterator(input_fn)

    # --- what runs on the devices -----------------------------------------------------------

    def train_steps(
        self,
        task: Task,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        seed: int,
        jit_compile: bool,
        accumulation_steps: int,
    ) -> Callable[[Iterable[Run]], np.ndarray]:
        """See Devices; JAX compiles whatever `jit_compile` is."""
        step = self.train_step(task, model, optimizer, seed, accumulation_steps)
        variables = [*model.trainable_variables, *optimizer.variables]
        shardings = self._shardings(model, optimizer)

        def run_all(runs: Iterable[Run]) -> np.ndarray:
            values, stats = _values(variables, shardings), []
            for iterator, count in runs:
                for _ in range(count):
                    values, of_step = step(values, next(iterator))
                    stats.append(of_step)
                    jax.block_until_ready(stats[-1 - _STEPS_AHEAD :][0])
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            return np.stack(jax.device_get(stats))

        return run_all

    def train_step(
        self,
        task: Task,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        seed: int,
        accumulation_steps: int,
    ) -> Any:
        """Returns a jitted function: values of variables and a batch -> new values and statistics.

        The variables are the model's trainable ones, then the optimizer's. Their memory is reused.

        Args: see TrainStep.
        """
        gradients = Gradients(task, model, seed, accumulation_steps, _AXIS)
        on_replicas = self._on_replicas(gradients, (_SAME, _SAME, _DIVIDED), _SAME)
        count = len(model.trainable_variables)

        def update(values: list[Array], features: Features) -> tuple[list[Array], Array]:
            weights, state = values[:count], values[count:]
            with keras.StatelessScope(list(zip(optimizer.variables, state, strict=True))):
                learning_rate = ops.cast(optimizer.learning_rate, "float32")
                step = ops.convert_to_tensor(optimizer.iterations)
            losses, grads = on_replicas(weights, step, features)
            squares = [ops.sum(ops.square(grad)) for grad in grads if grad is not None]
            stats = [sum(losses), *losses, learning_rate, ops.sqrt(sum(squares))]
            weights, state = optimizer.stateless_apply(state, grads, weights)
            return [*weights, *state], ops.stack(stats)

        shardings = self._shardings(model, optimizer)
        return jax.jit(update, donate_argnums=0, out_shardings=(shardings, self._same))

    def shapes(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        features: Mapping[str, tuple[Any, Any]],
    ) -> tuple[Any, Any]:
        """Returns the arguments of `train_step` without values, to compile it for other devices.

        Args:
          model: The model.
          optimizer: Its optimizer.
          features: Shape and dtype of each feature of a global batch.
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

    def summed(
        self, model: keras.Model, function: Callable[[Features], Any]
    ) -> Callable[[Any], Any]:
        """See Devices."""
        return self._forward(model, lambda batch: lax.psum(function(batch), _AXIS), _SAME)

    def gathered(
        self, model: keras.Model, function: Callable[[Features], Any]
    ) -> Callable[[Any], Any]:
        """See Devices."""
        return self._forward(model, function, _DIVIDED)

    def _forward(
        self, model: keras.Model, function: Callable[[Features], Any], result: PartitionSpec
    ) -> Callable[[Any], Any]:
        variables = model.variables
        everywhere = [self._same] * len(variables)

        def with_values(values: list[Array], batch: Features) -> Any:
            with keras.StatelessScope(list(zip(variables, values, strict=True))):
                return function(batch)

        on_replicas = self._on_replicas(with_values, (_SAME, _DIVIDED), result)
        forward = jax.jit(on_replicas, out_shardings=self._same)
        return lambda batch: jax.device_get(forward(_values(variables, everywhere), batch))

    def _on_replicas(self, function: Callable[..., Any], takes: Any, returns: Any) -> Any:
        """Returns `function` as one of global arrays, which each replica calls on its share."""
        # Without the check: with it JAX would itself sum the gradients of replicated weights over
        # the replicas, for each micro-batch.
        return jax.shard_map(
            function, mesh=self._mesh, in_specs=takes, out_specs=returns, check_vma=False
        )

    def _shardings(
        self, model: keras.Model, optimizer: keras.optimizers.Optimizer
    ) -> list[NamedSharding]:
        """Returns where the values of the trainable variables and the optimizer's lie."""
        weights = [self._same] * len(model.trainable_variables)
        return weights + [self._state_sharding(variable.shape) for variable in optimizer.variables]

    def _state_sharding(self, shape: Sequence[int]) -> NamedSharding:
        for axis, size in enumerate(shape):
            if self._shard_optimizer and size % self.num_replicas == 0:
                return NamedSharding(self._mesh, PartitionSpec(*[None] * axis, _AXIS))
        return self._same


def _values(
    variables: Sequence[keras.Variable], shardings: Sequence[NamedSharding]
) -> list[jax.Array]:
    """Returns the variables' values, placed with these shardings."""
    for variable, sharding in zip(variables, shardings, strict=True):
        if variable.value.sharding != sharding:
            variable.assign(jax.device_put(np.asarray(variable.value), sharding))
    return [variable.value for variable in variables]


def connect(
    use_tpu: bool = False, num_tpu_cores: int | None = None, shard_optimizer: bool = False
) -> JaxDevices:
    """Connects the processes that train together, and returns the devices of all of them.

    They are those of TF_CONFIG if it names more than one, else, on a TPU, those of its hosts.
    JAX chooses the platform: a TPU or GPU if it has one's plugin, else the CPU.

    Args:
      use_tpu: Whether it must be a TPU.
      num_tpu_cores: Expected number of a TPU's devices; None does not check.
      shard_optimizer: See JaxDevices.

    Raises:
      ValueError: If there is no TPU, it has another number of devices, TF_CONFIG is wrong, or JAX
        finds no device.
    """
    # It reports each platform that it doesn't find.
    logging.getLogger("jax").setLevel(logging.WARNING)
    jax_processes.meet()
    try:
        platform = jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that it has found one.
        named = os.environ.get("JAX_PLATFORMS")
        what = f" of JAX_PLATFORMS={named}" if named else ""
        reason = next(iter(str(error).splitlines()), "there is none")
        mend = "correct it, or unset it to let JAX choose" if named else "set JAX_PLATFORMS=cpu"
        raise ValueError(f"JAX finds no device{what} ({reason}): {mend}") from error
    if not use_tpu:
        return JaxDevices(shard_optimizer=shard_optimizer)
    if platform != "tpu":
        raise ValueError(
            f"JAX finds no TPU here, only {platform}: install what docs/tpu.md tells on a TPU VM; "
            "or leave `use_tpu` out to train on CPU or GPU"
        )
    if num_tpu_cores not in (None, jax.device_count()):
        raise ValueError(
            f"the TPU has {jax.device_count()} devices, `num_tpu_cores` is {num_tpu_cores}: set "
            f"it to {jax.device_count()}"
        )
    return JaxDevices(shard_optimizer=shard_optimizer)
