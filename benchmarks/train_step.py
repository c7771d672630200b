"""Measures pre-training steps of ALBERT-base side by side with other implementations.

    make bench          or, with the peers installed,  python benchmarks/train_step.py

Each contestant has its own process. All of one batch size and dtype are alive together and take
turns, a few steps at a time, so that other load on the machine affects all alike; a figure is the
median of the rounds. A dtype's limit is the best matrix product that any framework reaches here,
measured in the same turns. See contestants.py for what a step is and how its FLOPs are counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from contestants import CONTESTANTS, step_gflop
from limits import LIMITS
from workers import Worker

from albert_tf.costs import Shape

PEERS = ("torch", "transformers", "keras_hub")
SHAPES = ("8x128", "4x512")
DTYPES = ("float32", "bfloat16")
# A turn makes as many steps as fit, at least one.
TURN_SECONDS = 3.0


class Contestant(Worker):
    """A contestant or limit, and its figures."""

    def __init__(self, dtype: str, name: str, shape: Shape | None = None) -> None:
        size = [str(shape.batch), str(shape.seq)] if shape else []
        super().__init__(name, "train_step_worker.py", dtype, name, *size)
        self.seconds: list[float] = []
        self.gflops: list[float] = []

    def take_turn(self) -> None:
        """Makes some steps, or measures the limit, and records the figures."""
        expected = statistics.median(self.seconds) if self.seconds else TURN_SECONDS
        answer = self.ask(do="steps", count=max(1, round(TURN_SECONDS / expected)))
        if "gflops" in answer:
            self.gflops.append(answer["gflops"])
        else:
            self.seconds.append(answer["seconds"])


def measure(shape: Shape, dtype: str, rounds: int, only: str) -> dict[str, str]:
    """Runs all contestants of a shape and dtype in turns, prints their rows, returns versions."""
    limits = [Contestant(d, name) for d, name in LIMITS if d == dtype]
    workers = [Contestant(d, name, shape) for d, name in CONTESTANTS if d == dtype and only in name]
    versions: dict[str, str] = {}
    try:
        # Sequentially, so that none slows down another's first step.
        first_seconds = []
        for worker in (*limits, *workers):
            answer = worker.ask(do="start")
            versions |= answer["versions"]
            if worker in workers:
                first_seconds.append(answer["seconds"])
                worker.ask(do="steps", count=1)
        for _ in range(rounds):
            for worker in (*limits, *workers):
                worker.take_turn()
        best = max(limits, key=lambda worker: statistics.median(worker.gflops))
        limit = statistics.median(best.gflops)
        print(
            f"\n{shape.batch} x {shape.seq}, {dtype}: {step_gflop(shape):.0f} GFLOP a step; ",
            end="",
        )
        print(f"limit {limit:.0f} GFLOP/s ({best.name})")
        print(f"{'':28} {'first step':>10} {'tokens/s':>9} {'memory':>8} {'of limit':>9}")
        for worker, first in zip(workers, first_seconds, strict=True):
            seconds = statistics.median(worker.seconds)
            memory = worker.ask(do="memory")["bytes"]
            print(
                f"{worker.name:28} {first:8.1f} s {shape.tokens / seconds:9.0f}"
                f" {memory / 2**30:4.1f} GiB"
                f" {step_gflop(shape) / seconds / limit:9.0%}",
                flush=True,
            )
    finally:
        for worker in (*limits, *workers):
            worker.close()
    return versions


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table for each batch size and dtype."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="BxS")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--rounds", type=int, default=5, help="turns per contestant")
    parser.add_argument("--only", default="", help="only contestants whose name contains this")
    args = parser.parse_args(arguments)
    missing = [name for name in PEERS if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"{', '.join(missing)} not installed: run 'make bench', which installs the peers")
    print(f"{_cpu_model()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the start")
    versions: dict[str, str] = {}
    for shape in args.shapes:
        for dtype in args.dtypes:
            size = Shape(*map(int, shape.split("x")))
            versions |= measure(size, dtype, args.rounds, args.only)
    named = [f"{name} {version}" for name, version in versions.items()]
    print(f"\nPython {platform.python_version()}, {', '.join(named)}")


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    wanted = {"amx_bf16", "avx512_bf16", "avx512f", "avx2"}
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "CPU")
    flags = next((set(line.split()) & wanted for line in lines if line.startswith("flags")), set())
    return " ".join([model, *sorted(flags)])


if __name__ == "__main__":
    main()
