"""Measures pre-training steps of ALBERT-base against other implementations, side by side.

    make bench          or, with the peers installed,  python benchmarks/train_step.py

Each contestant lives in a process of its own. All of one batch size and dtype are alive together
and take turns, a few steps at a time, so that whatever else the machine does hits all alike; a
number is the median of the rounds. The limit of a dtype is the best matrix product that any
framework reaches here, measured in the same turns. See contestants.py for what a step is and how
its FLOPs are counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contestants import CONTESTANTS, Shape, step_gflop
from limits import LIMITS

WORKER = Path(__file__).with_name("train_step_worker.py")
PEERS = ("torch", "transformers", "keras_hub")
SHAPES = ("8x128", "4x512")
DTYPES = ("float32", "bfloat16")
# A turn makes as many steps as fit in here, at least one.
TURN_SECONDS = 3.0


class Worker:
    """A process with one contestant or limit."""

    def __init__(self, dtype: str, name: str, shape: Shape | None = None) -> None:
        self.name = name
        self.seconds: list[float] = []
        self.gflops: list[float] = []
        size = [str(shape.batch), str(shape.seq)] if shape else []
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), dtype, name, *size],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )

    def ask(self, command: str) -> dict[str, Any]:
        """Sends a command and returns the answer.

        Raises:
          RuntimeError: The contestant failed.
        """
        self._process.stdin.write(command + "\n")
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process died"}
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def take_turn(self) -> None:
        """Makes some steps, or measures the limit, and keeps the figures."""
        expected = statistics.median(self.seconds) if self.seconds else TURN_SECONDS
        answer = self.ask(f"go {max(1, round(TURN_SECONDS / expected))}")
        if "gflops" in answer:
            self.gflops.append(answer["gflops"])
        else:
            self.seconds.append(answer["seconds"])

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def measure(shape: Shape, dtype: str, rounds: int, only: str) -> dict[str, str]:
    """Runs all contestants of a shape and dtype in turns, prints their rows, returns versions."""
    limits = [Worker(d, name) for d, name in LIMITS if d == dtype]
    workers = [Worker(d, name, shape) for d, name in CONTESTANTS if d == dtype and only in name]
    versions: dict[str, str] = {}
    try:
        # One after the other, so that none slows down another's first step.
        first_seconds = []
        for worker in (*limits, *workers):
            answer = worker.ask("start")
            versions |= answer["versions"]
            if worker in workers:
                first_seconds.append(answer["seconds"])
                worker.ask("go 1")
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
            print(
                f"{worker.name:28} {first:8.1f} s {shape.tokens / seconds:9.0f}"
                f" {worker.ask('memory')['bytes'] / 2**30:4.1f} GiB"
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
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant")
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
