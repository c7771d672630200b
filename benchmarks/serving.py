"""Measures the latency of an ALBERT-base classifier on a CPU, in several runtimes.

    make bench-serving  or, with the peers installed,  python benchmarks/serving.py

Each contestant has its own process. All are alive together and answer each request one after the
other, in a random order, so that other load on the machine affects all alike. A request is a batch
of id sequences of mixed lengths, padded to the longest; contestants for raw text split it first.
See serving_contestants.py for what they are.
"""

from __future__ import annotations

import argparse
import math
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from serving_contestants import CONTESTANTS
from workers import Worker

WORKER = "serving_worker.py"
BATCHES = (1, 8, 32)
# Before each request: threads of the one that answered before may wait for more work, and keep
# the cores busy.
PAUSE_SECONDS = 0.3


class Contestant(Worker):
    """A contestant, and its answer times in seconds."""

    def __init__(self, name: str, folder: str) -> None:
        super().__init__(name, WORKER, name, folder)
        self.seconds: list[float] = []


def percentile(seconds: Sequence[float], share: float) -> float:
    """Returns the smallest time that a `share` of all don't exceed."""
    ordered = sorted(seconds)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def measure(workers: Sequence[Contestant], batch: int, requests: int) -> None:
    """Has all answer the same requests in turns, and prints a row for each."""
    for worker in workers:
        worker.seconds.clear()
        # One-time costs of a length or batch, such as compiling, are not measured.
        for number in range(requests):
            worker.ask(batch=batch, number=number)
    for number in range(requests):
        for worker in random.Random(number).sample(workers, len(workers)):
            time.sleep(PAUSE_SECONDS)
            worker.seconds.append(worker.ask(batch=batch, number=number)["seconds"])
    print(f"\nbatch {batch}, {requests} requests")
    print(f"{'':28} {'p50':>9} {'p99':>9} {'sequences/s':>12}")
    for worker in workers:
        p50, p99 = (percentile(worker.seconds, share) for share in (0.5, 0.99))
        rate = batch * requests / sum(worker.seconds)
        print(f"{worker.name:28} {1e3 * p50:6.1f} ms {1e3 * p99:6.1f} ms {rate:12.1f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument(
        "--sequences",
        type=int,
        default=128,
        help="Number of requests per batch size; 0 only exports.",
    )
    parser.add_argument("--only", default="", help="Only contestants whose name contains this.")
    parser.add_argument(
        "--folder", help="Folder in which the exported models are kept for later runs."
    )
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or temporary
        Path(folder).mkdir(parents=True, exist_ok=True)
        if not Path(folder, "saved_model").exists():
            subprocess.run(
                [sys.executable, str(Path(__file__).with_name(WORKER)), "prepare", folder],
                check=True,
            )
        if args.sequences == 0:
            return
        workers = []
        for name in CONTESTANTS:
            if args.only in name:
                worker = Contestant(name, folder)
                try:
                    worker.ask(batch=1, number=0)
                except RuntimeError as error:
                    print(f"left out: {error}")
                    worker.close()
                else:
                    workers.append(worker)
        try:
            for batch in args.batches:
                measure(workers, batch, max(3, args.sequences // batch))
        finally:
            for worker in workers:
                worker.close()
    print(f"\n{platform.processor() or platform.machine()}, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
