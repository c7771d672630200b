"""Checks that the Trainer's step runs on Cloud TPU, as far as possible without a TPU.

    make tpu-check
    make tpu-check ARGS='--models base_v2 --length 512 --batch 16 --chips v5e'

For each task, model and chip it traces the step of one replica (forward, backward, all-reduce,
clip, update), lowers it with TensorFlow's TPU kernels, compiles it with libtpu, and prints a line:
seconds, HBM used and available, GFLOP and GB moved per step ("-" with --recompute), all-reduces. It
exits with 1 if a line fails. Nothing is executed: numerics, speed, input and multiple hosts are not
checked.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence

from tools.tpu_check import reports

os.environ |= reports.environment("tensorflow")

import tensorflow as tf

from tools.tpu_check.compiler import CHIPS, compile_for
from tools.tpu_check.lowering import Program, lower
from tools.tpu_check.reports import Chip, Compiled, Step
from tools.tpu_check.steps import TASKS, features, make_step

# All types of chips come in eights, on one host or four; their number hardly changes the memory.
NUM_REPLICAS = 8


@functools.lru_cache(maxsize=4)
def lowered(step: Step) -> Program:
    """Lowers a step, which is the same for all chips."""
    make = functools.partial(make_step, step.task, step.config, step.dtype, step.recompute)
    return lower(make, features(step.task, step.batch, step.length), NUM_REPLICAS)


def compile_step(step: Step, chip: Chip) -> Compiled:
    """Lowers and compiles a step for a chip."""
    return compile_for(chip, lowered(step))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each step and chip; exits with 1 if one fails."""
    args = reports.parser(__doc__.split("\n")[0], TASKS, CHIPS).parse_args(arguments)
    print(reports.TITLES, flush=True)
    check = reports.checker(compile_step, CHIPS, tf.errors.OpError)
    sys.exit(0 if reports.run(args, check) else 1)


if __name__ == "__main__":
    main()
