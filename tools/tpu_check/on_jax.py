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

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Sequence

from tools.tpu_check import environment

os.environ |= environment.variables("jax")

import jax
from jax.experimental import topologies

from albert_tf.training.devices import StepSettings
from albert_tf.training.jax_devices import JaxDevices
from tools.tpu_check import reports
from tools.tpu_check.reports import Step
from tools.tpu_check.steps import TASKS, features, make_parts

TITLES = (
    f"{reports.TITLES} {'compiles':>8} {'HBM, GiB':>14} {'GFLOP':>8} {'GB':>7} {'bound':>9}"
    f" {'sums':>4}"
)


@dataclasses.dataclass(frozen=True)
class Chip:
    """A device of a slice, as JAX counts them.

    Attributes:
      topology: A slice.
      hbm_gib: The memory that libtpu says is available when it refuses a program.
      tflops: Peak in bfloat16, 10^12 per second.
      gb_per_second: Bandwidth of its memory.

    Source: docs.cloud.google.com/tpu/docs, the page of each version; for a v7x, a chip of two
    devices, half of the chip's.
    """

    topology: str
    hbm_gib: float
    tflops: float
    gb_per_second: float


CHIPS = {
    "v5e": Chip("v5e:2x2", 15.75, 197, 819),
    "v5p": Chip("v5p:2x2x1", 95.74, 459, 2765),
    "v6e": Chip("v6e:2x2", 31.25, 918, 1638),
    "v7x": Chip("tpu7x:2x2x1", 94.75, 1153, 3690),
}


def compile_step(step: Step, chip: Chip, shard_optimizer_state: bool) -> str:
    """Compiles a step for all devices of a slice; returns the rest of its line."""
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
    cost = program.cost_analysis()
    gflop, gigabytes = cost["flops"] / 1e9, cost["bytes accessed"] / 1e9
    bound = max(gflop / chip.tflops, gigabytes / chip.gb_per_second * 1e3)  # ms
    counted = f"{reports.costs(step, gflop, gigabytes)} "
    counted += f"{'-':>9}" if step.recompute else f"{bound:6.1f} ms"
    hbm = f"{reports.hbm_gib(program.memory_analysis()):.2f} of {chip.hbm_gib}"
    sums = reports.count_all_reduces(program.as_text())
    return f"{seconds:6.0f} s {hbm:>14} {counted} {sums:4}"


def check(shard_optimizer_state: bool, step: Step, chip: str) -> bool:
    """Compiles a step for a chip and prints its line; False if that fails."""
    try:
        end, passed = compile_step(step, CHIPS[chip], shard_optimizer_state), True
    except (jax.errors.JaxRuntimeError, ValueError, TypeError, NotImplementedError) as error:
        end, passed = reports.failure(error), False
    print(f"{step} {chip:<4} {end}", flush=True)
    return passed


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each step and chip; exits with 1 if one fails."""
    parser = reports.parser(__doc__.split("\n")[0], TASKS, CHIPS, dtypes=["bfloat16"])
    parser.add_argument("--shard_optimizer_state", action="store_true")
    args = parser.parse_args(arguments)
    print(TITLES, flush=True)
    passed = reports.run(args, functools.partial(check, args.shard_optimizer_state))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
