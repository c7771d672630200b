"""Compiles the Trainer's step on JAX for Cloud TPU, without one.

    make tpu-check BACKEND=jax
    make tpu-check BACKEND=jax ARGS='--models base_v2 --length 512 --batch 16 --chips v5e v7x'

For each task, model and chip it compiles the program that --backend=jax runs on all devices of a
slice (forward, backward, all-reduce, clip, update) with libtpu, and prints a line: HBM used and
available, GFLOP and GB moved per step and device, a bound on the step's time, all-reduces, seconds.
It exits with 1 if a line fails. Nothing is executed. XLA counts the body of a loop once, so GFLOP,
GB and the bound are too low with --recompute.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# Before JAX is imported: see __main__.py.
os.environ |= {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "JAX_PLATFORMS": "cpu",
    "KERAS_BACKEND": "jax",
}
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
from jax.experimental import topologies

from albert_tf.config import AlbertConfig
from albert_tf.training.jax_devices import JaxDevices
from tools.tpu_check.steps import TASKS, features, make_parts

CONFIGS = Path(__file__).parents[2] / "configs"
TITLES = (
    f"{'task':<15} {'model':<11} {'dtype':<9} {'recompute':<9} {'B x S':>9} {'chip':<4}"
    f" {'compiles':>8} {'HBM, GiB':>14} {'GFLOP':>8} {'GB':>7} {'bound':>9} {'sums':>4}"
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


def compile_step(
    task_name: str,
    model: str,
    dtype: str,
    recompute: bool,
    shard: bool,
    batch: int,
    length: int,
    chip: Chip,
) -> str:
    """Compiles a step for a chip; returns the rest of its line."""
    config = AlbertConfig.from_json_file(str(CONFIGS / f"albert_{model}.json"))
    task, built, optimizer = make_parts(task_name, config, dtype, recompute)
    topology = topologies.get_topology_desc(chip.topology, platform="tpu")
    devices = JaxDevices(topology.devices, shard_optimizer=shard)
    step = devices.train_step(task, built, optimizer, seed=0, accumulation_steps=1)
    arguments = devices.shapes(
        built,
        optimizer,
        {
            name: ((batch * devices.num_replicas, *spec.shape[1:]), spec.dtype.as_numpy_dtype)
            for name, spec in features(task_name, batch, length).items()
        },
    )
    start = time.monotonic()
    program = step.trace(*arguments).lower(lowering_platforms=("tpu",)).compile()
    seconds = time.monotonic() - start
    memory, cost = program.memory_analysis(), program.cost_analysis()
    hbm = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    gflop, gigabytes = cost["flops"] / 1e9, cost["bytes accessed"] / 1e9
    bound = max(gflop / chip.tflops, gigabytes / chip.gb_per_second * 1e3)  # ms
    sums = len(re.findall(r" all-reduce(?:-start)?\(", program.as_text()))
    used = f"{hbm / 2**30:.2f} of {chip.hbm_gib}"
    return f"{seconds:6.0f} s {used:>14} {gflop:8.0f} {gigabytes:7.1f} {bound:6.1f} ms {sums:4}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each step and chip; exits with 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--models", nargs="+", default=["tiny"], help="configs/albert_*.json")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--shard_optimizer_state", action="store_true")
    parser.add_argument("--batch", type=int, default=8, help="examples per device")
    parser.add_argument("--length", type=int, default=128, help="tokens per example")
    parser.add_argument("--chips", nargs="+", default=list(CHIPS), choices=CHIPS)
    args = parser.parse_args(arguments)
    print(TITLES, flush=True)
    passed = True
    for task, model, dtype, chip in itertools.product(
        args.tasks, args.models, args.dtypes, args.chips
    ):
        fields = (task, model, dtype, args.recompute, args.shard_optimizer_state)
        fields += (args.batch, args.length)
        size, recompute = f"{args.batch} x {args.length}", "yes" if args.recompute else "no"
        line = f"{task:<15} {model:<11} {dtype:<9} {recompute:<9} {size:>9} {chip:<4}"
        try:
            line = f"{line} {compile_step(*fields, CHIPS[chip])}"
        except (jax.errors.JaxRuntimeError, ValueError, TypeError, NotImplementedError) as error:
            passed = False
            used = re.search(r"Used (\S+) of (\S+) hbm", str(error))
            reason = f"needs {used[1]} of {used[2]}" if used else str(error).splitlines()[0]
            line = f"{line} FAILED: {reason}"
        print(line, flush=True)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
