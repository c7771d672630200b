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
from pathlib import Path

# Before TensorFlow is imported: otherwise it queries Google Cloud for this machine's TPU, for
# minutes, and a second program can't use libtpu.
os.environ |= {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "JAX_PLATFORMS": "cpu",
    "KERAS_BACKEND": "tensorflow",
}
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from albert_tf.config import AlbertConfig
from tools.tpu_check.compiler import CHIPS, Compiled, DoesNotFitError, compile_for
from tools.tpu_check.lowering import Program, lower
from tools.tpu_check.steps import TASKS, features, make_step

CONFIGS = Path(__file__).parents[2] / "configs"
DTYPES = ("float32", "bfloat16")
RECOMPUTE = {"no": (False,), "yes": (True,), "both": (False, True)}
# Every chip type comes with eight, on one host or four: memory hardly depends on their number.
NUM_REPLICAS = 8
# Batch sizes per core that --largest_batch tries.
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
TITLES = (
    f"{'task':<15} {'model':<11} {'dtype':<9} {'recompute':<9} {'B x S':>9} {'chip':<4}"
    f" {'lowers':>7} {'compiles':>8} {'HBM, GiB':>14} {'GFLOP':>7} {'sums':>4}"
)


@dataclasses.dataclass(frozen=True)
class Step:
    """What is lowered, once for all chips."""

    task: str
    model: str
    dtype: str
    recompute: bool
    batch: int
    length: int

    def __str__(self) -> str:
        recompute = "yes" if self.recompute else "no"
        size = f"{self.batch} x {self.length}"
        return f"{self.task:<15} {self.model:<11} {self.dtype:<9} {recompute:<9} {size:>9}"


@functools.lru_cache(maxsize=4)
def lowered(step: Step) -> tuple[Program, float]:
    """Lowers a step; returns it and the seconds taken."""
    start = time.monotonic()
    config = AlbertConfig.from_json_file(str(CONFIGS / f"albert_{step.model}.json"))
    make = functools.partial(make_step, step.task, config, step.dtype, step.recompute)
    program = lower(make, features(step.task, step.batch, step.length), NUM_REPLICAS)
    return program, time.monotonic() - start


def check(step: Step, chip: str) -> Compiled | None:
    """Lowers and compiles a step for a chip and prints its line; None if either fails."""
    line = f"{step} {chip:<4}"
    try:
        program, seconds = lowered(step)
        line += f" {seconds:5.1f} s"
        compiled = compile_for(CHIPS[chip], program)
    except DoesNotFitError as error:
        print(f"{line} too large: {error}", flush=True)
        return None
    except (ValueError, NotImplementedError, tf.errors.OpError) as error:
        print(f"{line} FAILED: {str(error).splitlines()[0]}", flush=True)
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
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument(
        "--models",
        nargs="+",
        default=["tiny"],
        help="models, by their name in configs/albert_*.json, such as base_v2",
    )
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--recompute", default="no", choices=RECOMPUTE)
    parser.add_argument("--batch", type=int, default=8, help="examples per core")
    parser.add_argument("--length", type=int, default=128, help="tokens per example")
    parser.add_argument("--chips", nargs="+", default=list(CHIPS), choices=CHIPS)
    parser.add_argument(
        "--largest_batch",
        action="store_true",
        help="search for the largest batch that fits, starting from --batch",
    )
    args = parser.parse_args(arguments)
    for model in args.models:
        if not (CONFIGS / f"albert_{model}.json").exists():
            parser.error(f"there is no configs/albert_{model}.json")
    return args


if __name__ == "__main__":
    main()
