"""Compiles with libtpu for chips that are absent, with their memory as the limit."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import _jax, xla_client
from jax.experimental import topologies
from jaxlib.mlir import ir

from tools.tpu_check import reports
from tools.tpu_check.lowering import Program
from tools.tpu_check.reports import Chip, Compiled

# Slices with at least eight cores. libtpu describes a v4 as two, each with half of its memory.
CHIPS = {
    "v3": Chip("v3:2x2", 15.48),
    "v4": Chip("v4:2x2x1", 15.25),
    "v5e": Chip("v5e:2x4", 15.75),
    "v6e": Chip("v6e:2x4", 31.25),
}


def compile_for(chip: Chip, program: Program) -> Compiled:
    """Compiles a program ahead of time for the replicas that it was lowered for.

    Raises:
      reports.DoesNotFitError: If it needs more memory than the chip has.
      ValueError: If libtpu refuses it for another reason.
    """
    topology = topologies.get_topology_desc(chip.topology, platform="tpu")
    devices = topology.devices[: program.num_replicas]
    options = compiler.get_compile_options(
        num_replicas=len(devices),
        num_partitions=1,
        device_assignment=np.array([[device.id] for device in devices]),
    )
    start = time.monotonic()
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        try:
            executable = devices[0].client.compile(
                _module(program),
                executable_devices=xla_client.DeviceList(tuple(devices)),
                compile_options=options,
            )
        except _jax.JaxRuntimeError as error:
            raise reports.refusal(str(error)) from None
    seconds = time.monotonic() - start
    (module,) = executable.hlo_modules()
    memory, cost = executable.get_compiled_memory_stats(), executable.cost_analysis()
    compiled = Compiled.of(memory, cost, module.to_string(), seconds)
    if compiled.hbm_gib > chip.hbm_gib:  # libtpu does not refuse it for a v3.
        raise reports.DoesNotFitError(f"needs {compiled.hbm_gib:.2f}G of {chip.hbm_gib}G")
    return compiled


def _module(program: Program) -> Any:
    module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(program.hlo))
    main = next(f for f in module.body.operations if f.attributes["sym_name"].value == "main")
    i32 = ir.IntegerType.get_signless(32)
    # Without aliases a variable would occupy memory twice: before and after the step.
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [
            ir.DictAttr.get(
                {"tf.aliasing_output": ir.IntegerAttr.get(i32, program.aliases[i])}
                if i in program.aliases
                else {}
            )
            for i in range(len(main.arguments))
        ]
    )
    return module
