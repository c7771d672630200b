"""Shared by both checks: the steps to compile, libtpu's statistics, and how they are printed."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from albert_tf.config import AlbertConfig

CONFIGS = Path(__file__).parents[2] / "configs"
DTYPES = ("float32", "bfloat16")
RECOMPUTE = {"no": (False,), "yes": (True,), "both": (False, True)}
# Batch sizes per core that --largest_batch tries.
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
TITLES = (
    f"{'task':<15} {'model':<11} {'dtype':<9} {'recompute':<9} {'B x S':>9} {'chip':<4}"
    f" {'compiles':>8} {'HBM, GiB':>14} {'GFLOP':>8} {'GB':>7} {'bound':>9} {'sums':>4}"
)


def environment(keras_backend: str) -> dict[str, str]:
    """Returns what must be in os.environ before TensorFlow or JAX is imported.

    Otherwise TensorFlow queries Google Cloud for this machine's TPU, for minutes, and a second
    program can't use libtpu.
    """
    return {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": keras_backend,
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3"),
    }


@dataclasses.dataclass(frozen=True)
class Chip:
    """A TPU as libtpu knows it.

    Attributes:
      topology: Name of a slice.
      hbm_gib: Memory that a program may use on a core, from libtpu's message when it refuses one.
      tflops: Peak in bfloat16, 10^12 per second; 0 if no bound is asked for.
      gb_per_second: Bandwidth of its memory.
    """

    topology: str
    hbm_gib: float
    tflops: float = 0
    gb_per_second: float = 0


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step; its text is the beginning of a line, below TITLES."""

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

    @property
    def config(self) -> AlbertConfig:
        """The model's config."""
        return AlbertConfig.from_json_file(str(CONFIGS / f"albert_{self.model}.json"))


class DoesNotFitError(ValueError):
    """The program needs more memory than the chip has."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """libtpu's statistics of a compiled program.

    Attributes:
      hbm_gib: Memory that a device uses: weights, moments, batch, activations and code.
      gflop: GFLOP of a step, as XLA counts them; a loop's body counts once.
      gigabytes: GB that its operations read and write, counted likewise.
      seconds: Compilation time.
      all_reduces: All-reduces left after XLA has combined them.
    """

    hbm_gib: float
    gflop: float
    gigabytes: float
    seconds: float
    all_reduces: int

    @classmethod
    def of(cls, memory: Any, cost: Mapping[str, float], hlo: str, seconds: float) -> Compiled:
        """Returns the statistics in libtpu's objects and in the program's text."""
        used = (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
            + memory.generated_code_size_in_bytes
        )
        sums = len(re.findall(r" all-reduce(?:-start)?\(", hlo))
        flop, moved = cost["flops"], cost["bytes accessed"]
        return cls(used / 2**30, flop / 1e9, moved / 1e9, seconds, sums)

    def shown(self, step: Step, chip: Chip) -> str:
        """Returns the end of a step's line, below TITLES."""
        counts = f"{'-':>8} {'-':>7}"
        # With recomputation the layers are a loop, and XLA counts its body only once.
        if not step.recompute:
            counts = f"{self.gflop:8.0f} {self.gigabytes:7.1f}"
        bound = f"{'-':>9}"
        if chip.tflops and not step.recompute:
            ms = max(self.gflop / chip.tflops, self.gigabytes / chip.gb_per_second * 1e3)
            bound = f"{ms:6.1f} ms"
        hbm = f"{self.hbm_gib:.2f} of {chip.hbm_gib}"
        return f"{self.seconds:6.0f} s {hbm:>14} {counts} {bound} {self.all_reduces:4}"


def refusal(message: str) -> ValueError:
    """Returns an error that gives libtpu's message in one line."""
    used = re.search(r"Used (\S+) of (\S+) hbm", message)
    if used:
        return DoesNotFitError(f"needs {used[1]} of {used[2]}")
    first, *rest = filter(None, message.splitlines())
    reason = " ".join([first, *rest[:1]]) if first.endswith(":") else first
    # If a core's own fast memory, vmem, is too small, a smaller batch does not help.
    is_hbms = "RESOURCE_EXHAUSTED" in reason and "Vmem" not in reason
    return (DoesNotFitError if is_hbms else ValueError)(reason)


def failure(error: Exception) -> str:
    """Returns the end of the line of a step that can't be compiled."""
    shown = error if isinstance(error, DoesNotFitError) else refusal(str(error))
    return f"{'too large' if isinstance(shown, DoesNotFitError) else 'FAILED'}: {shown}"


def parser(
    description: str, tasks: Iterable[str], chips: Iterable[str], dtypes: Iterable[str] = DTYPES
) -> argparse.ArgumentParser:
    """Returns a parser of the flags that both checks share; by default they check everything."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--tasks", nargs="+", default=list(tasks), choices=list(tasks))
    parser.add_argument(
        "--models",
        nargs="+",
        type=_model,
        default=["tiny"],
        help="models, by their name in configs/albert_*.json, such as base_v2",
    )
    parser.add_argument("--dtypes", nargs="+", default=list(dtypes), choices=DTYPES)
    parser.add_argument("--batch", type=int, default=8, help="examples per core")
    parser.add_argument("--length", type=int, default=128, help="tokens per example")
    parser.add_argument("--chips", nargs="+", default=list(chips), choices=list(chips))
    parser.add_argument("--recompute", default="no", choices=RECOMPUTE)
    parser.add_argument(
        "--largest_batch",
        action="store_true",
        help="search for the largest batch that fits, starting from --batch",
    )
    return parser


def checker(
    compile_step: Callable[[Step, Chip], Compiled],
    chips: Mapping[str, Chip],
    *errors: type[Exception],
) -> Callable[[Step, str], bool]:
    """Returns a function that compiles a step for a chip, prints its line, and returns success."""

    def check(step: Step, name: str) -> bool:
        chip = chips[name]
        try:
            end, passed = compile_step(step, chip).shown(step, chip), True
        except (ValueError, TypeError, NotImplementedError, *errors) as error:
            end, passed = failure(error), False
        print(f"{step} {name:<4} {end}", flush=True)
        return passed

    return check


def run(args: argparse.Namespace, check: Callable[[Step, str], bool]) -> bool:
    """Checks all steps and chips that the flags of `parser` name; returns whether all passed."""
    passed = True
    for fields in itertools.product(
        args.tasks, args.models, args.dtypes, RECOMPUTE[args.recompute], [args.batch], [args.length]
    ):
        step, guess = Step(*fields), args.batch
        for chip in args.chips:
            if args.largest_batch:
                largest = _largest_batch(step, chip, guess, check)
                found, guess = largest > 0, largest or 1
                end = "the largest" if found else "does not fit, nor any larger"
                print(f"{dataclasses.replace(step, batch=guess)} {chip:<4} {end}", flush=True)
                passed &= found
            else:
                passed &= check(step, chip)
    return passed


def _largest_batch(step: Step, chip: str, guess: int, check: Callable[[Step, str], bool]) -> int:
    """Returns the largest of BATCHES whose step fits a chip, 0 if none does; tries guess first.

    The step's own batch is not used.
    """

    def fits(batch: int) -> bool:
        return check(dataclasses.replace(step, batch=batch), chip)

    below, above = [b for b in BATCHES if b < guess], [b for b in BATCHES if b > guess]
    if fits(guess):
        return ([guess] + list(itertools.takewhile(fits, above)))[-1]
    return next(filter(fits, reversed(below)), 0)


def _model(name: str) -> str:
    if not (CONFIGS / f"albert_{name}.json").exists():
        raise argparse.ArgumentTypeError(f"there is no configs/albert_{name}.json")
    return name
