"""Measures pre-training steps of ALBERT-base side by side with other implementations.

    make bench          or, with the peers installed,  python research/benchmarks/train_step.py

Each contestant has its own process. All of one batch size and dtype are alive together and take
turns, a few steps at a time, so that other load on the machine affects all alike; a figure is the
median of the rounds. See contestants.py for what a step is and how its FLOPs are counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from contestants import CONTESTANTS, step_gflop
from workers import Worker

from albert_tf.inspection.costs import Shape

PEERS = ("torch", "transformers", "keras_hub")
SHAPES = ("8x128", "4x512")
DTYPES = ("float32", "bfloat16")
# A turn makes as many steps as fit, at least one.
TURN_SECONDS = 3.0
PACKAGES = ("tensorflow", "keras", "jax", "keras-hub", "torch", "transformers", "numpy")


def answers(dtype: str, name: str, batch: str, seq: str) -> Callable[..., dict[str, Any]]:
    """Returns what a contestant answers.

    start              builds the contestant and makes the first step: seconds, versions
    steps, a count     makes steps: seconds of one step
    memory             the process's peak memory in bytes
    """
    step: Any = None

    def respond(do: str, count: int = 1) -> dict[str, Any]:
        nonlocal step
        if do == "memory":
            status = Path("/proc/self/status").read_text()
            return {"bytes": 1024 * int(re.search(r"VmHWM:\s*(\d+)", status)[1])}
        if do == "start":
            step = CONTESTANTS[dtype, name](Shape(int(batch), int(seq)))
        start = time.perf_counter()
        for _ in range(count):
            step()
        seconds = (time.perf_counter() - start) / count
        return {"seconds": seconds, "versions": _versions()}

    return respond


def _versions() -> dict[str, str]:
    imported = {name.replace("_", "-") for name in sys.modules}
    return {name: metadata.version(name) for name in PACKAGES if name in imported}


class Contestant(Worker):
    """A contestant, and its seconds a step."""

    def __init__(self, dtype: str, name: str, shape: Shape) -> None:
        size, backend = (str(shape.batch), str(shape.seq)), "tensorflow"
        if name.endswith("JAX"):
            backend = "jax"
        super().__init__(name, "train_step.answers", dtype, name, *size, backend=backend)
        self.seconds: list[float] = []

    def take_turn(self) -> None:
        """Makes some steps."""
        expected = statistics.median(self.seconds) if self.seconds else TURN_SECONDS
        count = max(1, round(TURN_SECONDS / expected))
        self.seconds.append(self.ask(do="steps", count=count)["seconds"])


def measure(shape: Shape, dtype: str, rounds: int, only: str) -> dict[str, str]:
    """Runs all contestants of a shape and dtype in turns, prints their rows, returns versions."""
    workers = [Contestant(d, name, shape) for d, name in CONTESTANTS if d == dtype and only in name]
    versions: dict[str, str] = {}
    try:
        # Sequentially, so that none slows down another's first step.
        first_seconds = []
        for worker in workers:
            answer = worker.ask(do="start")
            versions |= answer["versions"]
            first_seconds.append(answer["seconds"])
            worker.ask(do="steps", count=1)
        for _ in range(rounds):
            for worker in workers:
                worker.take_turn()
        print(f"\n{shape.batch} x {shape.seq}, {dtype}: {step_gflop(shape):.0f} GFLOP a step")
        print(f"{'':28} {'first step':>10} {'tokens/s':>9} {'memory':>8} {'GFLOP/s':>9}")
        for worker, first in zip(workers, first_seconds, strict=True):
            seconds = statistics.median(worker.seconds)
            memory = worker.ask(do="memory")["bytes"]
            print(
                f"{worker.name:28} {first:8.1f} s {shape.tokens / seconds:9.0f}"
                f" {memory / 2**30:4.1f} GiB {step_gflop(shape) / seconds:9.0f}",
                flush=True,
            )
    finally:
        for worker in workers:
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
