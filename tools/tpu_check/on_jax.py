"""Compiles the Trainer's step on JAX for Cloud TPU, without one.

    make tpu-check BACKEND=jax
    make tpu-check BACKEND=jax ARGS='--models base_v2 --length 512 --batch 16 --chips v5e v7x'

For each task, model and chip it compiles the program that --backend=jax runs on all devices of a
slice (forward, backward, all-reduce, clip, update) with libtpu, and prints a line: HBM used and
available, GFLOP and GB moved per step and device, a bound on the step's time, all-reduces, seconds.
GFLOP, GB and the bound are "-" with --recompute. It exits with 1 if a line fails. Nothing is
executed.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Sequence

from tools.tpu_check import reports

os.environ |= reports.environment("jax")

import jax
from jax.experimental import topologies

from albert_tf.model import jax_ops
from albert_tf.training.interfaces import StepSettings
from albert_tf.training.jax_devices import JaxDevices
from tools.tpu_check.reports import Chip, Compiled, Step
from tools.tpu_check.steps import TASKS, features, make_parts

jax_ops._found = lambda: "tpu"  # The step is not for this process's own devices.

# Devices as JAX counts them: a v7x chip has two.
# Source: docs.cloud.google.com/tpu/docs, the page of each version; for a v7x half of the chip's.
CHIPS = {
    "v5e": Chip("v5e:2x2", 15.75, 197, 819),
    "v5p": Chip("v5p:2x2x1", 95.74, 459, 2765),
    "v6e": Chip("v6e:2x2", 31.25, 918, 1638),
    "v7x": Chip("tpu7x:2x2x1", 94.75, 1153, 3690),
}


def compile_step(shard_optimizer_state: bool, step: Step, chip: Chip) -> Compiled:
    """Compiles a step for all devices of a slice."""
    task, model, optimizer = make_parts(step.task, step.config, step.dtype, step.recompute)
    topology = topologies.get_topology_desc(chip.topology, platform="tpu")
    devices = JaxDevices(topology.devices, shard_optimizer=shard_optimizer_state)
    function = devices.train_step(task, model, optimizer, StepSettings())
    batch = {
        name: ((step.batch * devices.num_replicas, *spec.shape[1:]), spec.dtype.as_numpy_dtype)
        for name, spec in features(step.task, step.batch, step.length).items()
    }
    arguments = devices.shapes(model, optimizer, batch)
    start = time.monotonic()
    program = function.trace(*arguments).lower(lowering_platforms=("tpu",)).compile()
    seconds = time.monotonic() - start
    return Compiled.of(
        program.memory_analysis(), program.cost_analysis(), program.as_text(), seconds
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each step and chip; exits with 1 if one fails."""
    parser = reports.parser(__doc__.split("\n")[0], TASKS, CHIPS, dtypes=["bfloat16"])
    parser.add_argument("--shard_optimizer_state", action="store_true")
    args = parser.parse_args(arguments)
    print(reports.TITLES, flush=True)
    compiles = functools.partial(compile_step, args.shard_optimizer_state)
    check = reports.checker(compiles, CHIPS, jax.errors.JaxRuntimeError)
    sys.exit(0 if reports.run(args, check) else 1)


if __name__ == "__main__":
    main()
