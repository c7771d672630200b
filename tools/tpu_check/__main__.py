"""Checks that the Trainer's step runs on Cloud TPU, as far as possible without a TPU.

    make tpu-check
    make tpu-check ARGS='--models base_v2 --length 512 --batch 16 --chips v5e'

For each task, model and chip it traces the step of one replica (forward, backward, all-reduce,
clip, update), lowers it with TensorFlow's TPU kernels, compiles it with libtpu, and prints a line:
HBM used and available, GFLOP per step, all-reduces, seconds. It exits with 1 if a line fails.
Nothing is executed: numerics, speed, input and multiple hosts are not checked.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import os
import sys
import time
from collections.abc import Sequence

from tools.tpu_check import environment

os.environ |= environment.variables("tensorflow")

import tensorflow as tf

from tools.tpu_check import reports
from tools.tpu_check.compiler import CHIPS, Compiled, compile_for
from tools.tpu_check.lowering import Program, lower
from tools.tpu_check.reports import Step
from tools.tpu_check.steps import TASKS, features, make_step

RECOMPUTE = {"no": (False,), "yes": (True,), "both": (False, True)}
# Every chip type comes with eight, on one host or four: memory hardly depends on their number.
NUM_REPLICAS = 8
# Batch sizes per core that --largest_batch tries.
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
TITLES = f"{reports.TITLES} {'lowers':>7} {'compiles':>8} {'HBM, GiB':>14} {'GFLOP':>7} {'sums':>4}"


@functools.lru_cache(maxsize=4)
def lowered(step: Step) -> tuple[Program, float]:
    """Lowers a step; returns it and the seconds taken."""
    start = time.monotonic()
    make = functools.partial(make_step, step.task, step.config, step.dtype, step.recompute)
    program = lower(make, features(step.task, step.batch, step.length), NUM_REPLICAS)
    return program, time.monotonic() - start


def check(step: Step, chip: str) -> Compiled | None:
    """Lowers and compiles a step for a chip and prints its line; None if either fails."""
    line = f"{step} {chip:<4}"
    try:
        program, seconds = lowered(step)
        line += f" {seconds:5.1f} s"
        compiled = compile_for(CHIPS[chip], program)
    except (ValueError, NotImplementedError, tf.errors.OpError) as error:
        print(f"{line} {reports.failure(error)}", flush=True)
        return None
    hbm = f"{compiled.hbm_gib:.2f} of {CHIPS[chip].hbm_gib}"
    print(
        f"{line} {compiled.seconds:6.0f} s {hbm:>14} {compiled.gflop:7.0f}"
        f" {compiled.all_reduces:4}",
        flush=True,
    )
    return compiled


def largest_batch(step: Step, chip: str, guess: int) -> int:
    """Returns the largest of BATCHES whose step fits a chip, 0 if none does; tries guess first.

    The step's own batch is not used.
    """

    def fits(batch: int) -> bool:
        return check(dataclasses.replace(step, batch=batch), chip) is not None

    below, above = [b for b in BATCHES if b < guess], [b for b in BATCHES if b > guess]
    if fits(guess):
        return ([guess] + list(itertools.takewhile(fits, above)))[-1]
    return next(filter(fits, reversed(below)), 0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each step and chip; exits with 1 if one fails."""
    args = _parse(arguments)
    print(TITLES, flush=True)
    passed = True
    for fields in itertools.product(
        args.tasks, args.models, args.dtypes, RECOMPUTE[args.recompute], [args.batch], [args.length]
    ):
        step, guess = Step(*fields), args.batch
        for chip in args.chips:
            if args.largest_batch:
                guess = largest_batch(step, chip, guess) or 1
                print(f"{dataclasses.replace(step, batch=guess)} {chip:<4} the largest", flush=True)
            else:
                passed &= check(step, chip) is not None
    sys.exit(0 if passed else 1)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = reports.parser(__doc__.split("\n")[0], TASKS, CHIPS)
    parser.add_argument("--recompute", default="no", choices=RECOMPUTE)
    parser.add_argument(
        "--largest_batch",
        action="store_true",
        help="search for the largest batch that fits, starting from --batch",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
