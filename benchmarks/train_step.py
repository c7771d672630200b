"""Measures pre-training steps of ALBERT-base side by side with other implementations.

    make bench          or, with the peers installed,  python benchmarks/train_step.py

Each contestant has its own process. All of one batch size and dtype are alive together and take
turns, a few steps at a time, so that other load on the machine affects all alike; a figure is the
median of the rounds. A dtype's limit is the best matrix product that any framework reaches here,
measured in the same turns. The products are the
model's own: batches of 1,024 and 2,048 tokens times the kernels of ALBERT-base, and the gradient of
a kernel. See contestants.py for what a step is and how its FLOPs are counted.
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
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from contestants import CONTESTANTS, step_gflop
from workers import Worker

from albert_tf.inspection.costs import Shape

PEERS = ("torch", "transformers", "keras_hub")
SHAPES = ("8x128", "4x512")
DTYPES = ("float32", "bfloat16")
# A turn makes as many steps as fit, at least one.
TURN_SECONDS = 3.0
PACKAGES = ("tensorflow", "keras", "jax", "keras-hub", "torch", "transformers", "numpy")
# (M, K, N) of [M, K] x [K, N].
PRODUCTS = (
    (1024, 768, 768),
    (1024, 768, 2304),
    (1024, 768, 3072),
    (1024, 3072, 768),
    (3072, 1024, 768),
    (2048, 768, 3072),
)
SECONDS_PER_PRODUCT = 0.3


def tensorflow(dtype: str) -> Callable[[], float]:
    """Returns a function that measures tf.matmul in GFLOP/s."""
    import tensorflow as tf

    product = tf.function(tf.matmul)
    return partial(_best, lambda x: tf.cast(tf.constant(x), dtype), product)


def torch(dtype: str) -> Callable[[], float]:
    """Returns a function that measures torch's product in GFLOP/s."""
    import torch

    return partial(_best, lambda x: torch.tensor(x).to(getattr(torch, dtype)), torch.matmul)


def numpy(dtype: str) -> Callable[[], float]:
    """Returns a function that measures NumPy's product in GFLOP/s; it has no bfloat16."""
    del dtype
    return partial(_best, np.asarray, np.matmul)


LIMITS: dict[tuple[str, str], Callable[[], Callable[[], float]]] = {
    (dtype, framework.__name__): partial(framework, dtype)
    for dtype, frameworks in (
        ("float32", (tensorflow, torch, numpy)),
        ("bfloat16", (tensorflow, torch)),
    )
    for framework in frameworks
}


def _best(convert: Callable[[np.ndarray], Any], product: Callable[[Any, Any], Any]) -> float:
    rng = np.random.default_rng(0)
    rates = []
    for m, k, n in PRODUCTS:
        a = convert(rng.standard_normal((m, k), np.float32))
        b = convert(rng.standard_normal((k, n), np.float32))
        rates.append(2e-9 * m * k * n / np.median(list(_times(product, a, b))))
    return float(max(rates))


def _times(product: Callable[[Any, Any], Any], a: Any, b: Any) -> Iterable[float]:
    product(a, b)
    end = time.perf_counter() + SECONDS_PER_PRODUCT
    while time.perf_counter() < end:
        start = time.perf_counter()
        product(a, b)
        yield time.perf_counter() - start


def answers(dtype: str, name: str, *shape: str) -> Callable[..., dict[str, Any]]:
    """Returns what a contestant answers; without a batch's sequences and tokens it is a limit.

    start              builds the contestant and makes the first step: seconds, versions
    steps, a count     makes steps (a limit: measures once): seconds of one step, or gflops
    memory             the process's peak memory in bytes
    """
    step: Any = None

    def respond(do: str, count: int = 1) -> dict[str, Any]:
        nonlocal step
        if do == "memory":
            status = Path("/proc/self/status").read_text()
            return {"bytes": 1024 * int(re.search(r"VmHWM:\s*(\d+)", status)[1])}
        if do == "start":
            step = (
                CONTESTANTS[dtype, name](Shape(*map(int, shape)))
                if shape
                else LIMITS[dtype, name]()
            )
            seconds = _seconds(step, 1) if shape else 0.0
            return {"seconds": seconds, "versions": _versions()}
        return {"seconds": _seconds(step, count)} if shape else {"gflops": step()}

    return respond


def _seconds(step: Any, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


def _versions() -> dict[str, str]:
    imported = {name.replace("_", "-") for name in sys.modules}
    return {name: metadata.version(name) for name in PACKAGES if name in imported}


class Contestant(Worker):
    """A contestant or limit, and its figures."""

    def __init__(self, dtype: str, name: str, shape: Shape | None = None) -> None:
        size = [str(shape.batch), str(shape.seq)] if shape else []
        backend = "jax" if name.endswith("JAX") else "tensorflow"
        super().__init__(name, "train_step.answers", dtype, name, *size, backend=backend)
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
