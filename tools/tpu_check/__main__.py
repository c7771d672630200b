"""Checks that the Trainer's step runs on Cloud TPU, as far as possible without a TPU.

    make tpu-check
    make tpu-check ARGS='--models base_v2 --length 512 --batch 16 --chips v5e'

For each task, model and chip it traces the step of one replica (forward, backward, all-reduce,
clip, update), lowers it with TensorFlow's TPU kernels, compiles it with libtpu, and prints a line:
HBM used and available, GFLOP and GB moved per step ("-" with --recompute), all-reduces, seconds. It
exits with 1 if a line fails. Nothing is executed: numerics, speed, input and multiple hosts are not
checked.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Sequence

from tools.tpu_check import environment

os.environ |= environment.variables("tensorflow")

import tensorflow as tf

from tools.tpu_check import reports
from tools.tpu_check.compiler import CHIPS, compile_for
from tools.tpu_check.lowering import Program, lower
from tools.tpu_check.reports import Step
from tools.tpu_check.steps import TASKS, features, make_step

# Every chip type comes with eight, on one host or four: memory hardly depends on their number.
NUM_REPLICAS = 8
TITLES = (
    f"{reports.TITLES} {'lowers':>7} {'compiles':>8} {'HBM, GiB':>14} {'GFLOP':>8} {'GB':>7}"
    f" {'sums':>4}"
)


@functools.lru_cache(maxsize=4)
def lowered(step: Step) -> tuple[Program, float]:
    """Lowers a step; returns it and the seconds taken."""
    start = time.monotonic()
    make = functools.partial(make_step, step.task, step.config, step.dtype, step.recompute)
    program = lower(make, features(step.task, step.batch, step.length), NUM_REPLICAS)
    return program, time.monotonic() - start


def check(step: Step, chip: str) -> bool:
    """Lowers and compiles a step for a chip and prints its line; False if either fails."""
    line = f"{step} {chip:<4}"
    try:
        program, seconds = lowered(step)
        line += f" {seconds:5.1f} s"
        compiled = compile_for(CHIPS[chip], program)
    except (ValueError, NotImplementedError, tf.errors.OpError) as error:
        print(f"{line} {reports.failure(error)}", flush=True)
        return False
    hbm = f"{compiled.hbm_gib:.2f} of {CHIPS[chip].hbm_gib}"
    costs = reports.costs(step, compiled.gflop, compiled.gigabytes)
    line += f" {compiled.seconds:6.0f} s {hbm:>14} {costs} {compiled.all_reduces:4}"
    print(line, flush=True)
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each step and chip; exits with 1 if one fails."""
    args = reports.parser(__doc__.split("\n")[0], TASKS, CHIPS).parse_args(arguments)
    print(TITLES, flush=True)
    sys.exit(0 if reports.run(args, check) else 1)


if __name__ == "__main__":
    main()
