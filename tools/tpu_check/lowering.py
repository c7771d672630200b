"""A train step as a TPU core receives it: traced, without variables, lowered to HLO."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import one_device_strategy

from tools.tpu_check.pure import without_variables


@dataclasses.dataclass(frozen=True)
class Program:
    """The program that TensorFlow passes to the TPU compiler.

    Attributes:
      hlo: Serialized HloModuleProto.
      aliases: Argument -> the result that reuses its memory.
      num_replicas: Number of cores that share a batch.
    """

    hlo: bytes
    aliases: Mapping[int, int]
    num_replicas: int


class AbsentTPUStrategy(tf.distribute.TPUStrategy):
    """Stands in for TPUStrategy while a step is traced on a machine without a TPU.

    Variables are on the CPU, and a sum over replicas is the operation that TPUStrategy uses.
    """

    def __init__(self, num_replicas: int) -> None:
        # TPUStrategy's own __init__ would look for a TPU.
        tf.distribute.Strategy.__init__(self, _Extended(self, num_replicas))


class _Extended(one_device_strategy.OneDeviceExtended):
    def __init__(self, strategy: tf.distribute.Strategy, num_replicas: int) -> None:
        super().__init__(strategy, "/cpu:0")
        self._num_replicas = num_replicas

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._num_replicas

    def _use_merge_call(self) -> bool:
        return False

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if reduce_op != tf.distribute.ReduceOp.SUM:
            raise NotImplementedError(f"{reduce_op} over replicas")
        everyone = [list(range(self._num_replicas))]
        return tf.nest.map_structure(
            lambda x: tf.raw_ops.CrossReplicaSum(input=x, group_assignment=everyone), value
        )


def lower(
    make_step: Callable[[], Callable[[Any], Any]],
    features: Mapping[str, tf.TensorSpec],
    num_replicas: int,
) -> Program:
    """Lowers a step for TPU with TensorFlow's own TPU kernels."""
    strategy = AbsentTPUStrategy(num_replicas)
    with strategy.scope():
        step = make_step()
        names = list(features)

        @tf.function
        def replica_step(replica: tf.Tensor, *values: tf.Tensor) -> tf.Tensor:
            with tf.distribute.ReplicaContext(strategy, replica):
                return step(dict(zip(names, values, strict=True)))

        # Inlines inner functions into this graph, to see what reads a variable.
        tf.config.run_functions_eagerly(True)
        try:
            traced = replica_step.get_concrete_function(
                tf.TensorSpec([], tf.int32), *features.values()
            )
        finally:
            tf.config.run_functions_eagerly(False)
    pure = without_variables(traced)
    compiled = tf.function(pure.function, jit_compile=True, autograph=False)
    ir = compiled.experimental_get_compiler_ir(*pure.arguments)
    hlo = ir(stage="hlo_serialized", platform_name="TPU")
    return Program(hlo, pure.aliases, num_replicas)
