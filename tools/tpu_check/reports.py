"""What both checks share: which step is compiled, what libtpu says of it, how that is printed."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from albert_tf.config import AlbertConfig

CONFIGS = Path(__file__).parents[2] / "configs"
DTYPES = ("float32", "bfloat16")
RECOMPUTE = {"no": (False,), "yes": (True,), "both": (False, True)}
# Batch sizes per core that --largest_batch tries.
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
TITLES = f"{'task':<15} {'model':<11} {'dtype':<9} {'recompute':<9} {'B x S':>9} {'chip':<4}"


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


def hbm_gib(memory: Any) -> float:
    """Returns the memory that a program uses on a device, from libtpu's statistics of it.

    It holds weights, moments, batch, activations and code.
    """
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    ) / 2**30


def count_all_reduces(hlo: str) -> int:
    """Returns how many all-reduces a compiled program has, from its text."""
    return len(re.findall(r" all-reduce(?:-start)?\(", hlo))


def costs(step: Step, gflop: float, gigabytes: float) -> str:
    """Returns two columns of a line, as XLA counts them.

    Empty with recomputation, for which layers are applied in a loop: its body is counted once.
    """
    return f"{'-':>8} {'-':>7}" if step.recompute else f"{gflop:8.0f} {gigabytes:7.1f}"


def refusal(message: str) -> ValueError:
    """Returns the error of one line that stands for libtpu's message."""
    used = re.search(r"Used (\S+) of (\S+) hbm", message)
    if used:
        return DoesNotFitError(f"needs {used[1]} of {used[2]}")
    first, *rest = filter(None, message.splitlines())
    reason = " ".join([first, *rest[:1]]) if first.endswith(":") else first
    # What does not fit into a core's own fast memory, vmem, is no smaller batch's concern.
    is_hbms = "RESOURCE_EXHAUSTED" in reason and "Vmem" not in reason
    return (DoesNotFitError if is_hbms else ValueError)(reason)


def failure(error: Exception) -> str:
    """Returns how a line ends whose step can't be compiled."""
    shown = error if isinstance(error, DoesNotFitError) else refusal(str(error))
    return f"{'too large' if isinstance(shown, DoesNotFitError) else 'FAILED'}: {shown}"


def parser(
    description: str, tasks: Iterable[str], chips: Iterable[str], dtypes: Iterable[str] = DTYPES
) -> argparse.ArgumentParser:
    """Returns a parser of the flags that both checks have; by default they check all of each."""
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


def run(args: argparse.Namespace, check: Callable[[Step, str], bool]) -> bool:
    """Checks every step and chip that the flags of `parser` name; returns whether all passed.

    Args:
      args: The flags' values.
      check: Prints a step's line for a chip, and returns whether it compiles and fits.
    """
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
