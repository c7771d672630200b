"""Measures an epoch of fine-tuning ALBERT-base on short texts, padded in four ways, side by side.

    make bench-finetune     or, with the peers installed,  python benchmarks/finetune.py

The set is as large as CoLA (or RTE) and its lengths are spread alike; its pieces are random. Each
contestant lives in a process of its own; all take turns of a few seconds, so that whatever else
the machine does hits all alike. None gets through its epoch: the seconds of an epoch are those of
the steps that it made, times all positions of its epoch over the positions of these steps. What a
contestant compiles before its first step is told apart. Batch and length are those of run_glue.py's
README.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import numpy as np
from finetune_contestants import CONTESTANTS, Contestant

# Lengths, with [CLS] and [SEP], of the training sets as the release's vocabulary cuts them.
SHARES = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)
SETS = {
    "cola": (8551, (4, 7, 8, 9, 10, 11, 11, 12, 14, 17, 20, 25, 46)),
    "rte": (2490, (13, 33, 40, 46, 50, 56, 63, 74, 106, 137, 161, 202, 292)),
}


def row_lengths(name: str, max_seq_length: int) -> np.ndarray:
    """Returns lengths spread like those of a training set, cut at `max_seq_length`."""
    count, percentiles = SETS[name]
    shares = np.random.default_rng(0).uniform(0, 100, count)
    return np.minimum(np.interp(shares, SHARES, percentiles).astype(int), max_seq_length)


class Worker:
    """A process with one contestant."""

    def __init__(self, name: str, lengths: np.ndarray, batch_size: int, max_length: int) -> None:
        self.name = name
        self.seconds, self.positions, self.steps = 0.0, 0, 0
        self._pipe, other = multiprocessing.Pipe()
        arguments = (other, CONTESTANTS[name], lengths, batch_size, max_length)
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        other.close()
        self.batches, self.epoch_positions, self.first_seconds = self._pipe.recv()

    def take_turn(self, seconds: float) -> None:
        """Lets it make steps for some seconds, at least one."""
        self._pipe.send(seconds)
        took, positions, steps = self._pipe.recv()
        self.seconds += took
        self.positions += positions
        self.steps += steps

    @property
    def epoch_seconds(self) -> float:
        return self.seconds * self.epoch_positions / self.positions

    def close(self) -> None:
        """Ends the process."""
        self._pipe.send(None)
        self._process.join()


def _serve(
    pipe: Connection,
    build: Callable[..., Contestant],
    lengths: np.ndarray,
    batch_size: int,
    max_length: int,
) -> None:
    start = time.perf_counter()
    contestant = build(lengths, batch_size, max_length)
    contestant.warm_up()
    sizes = contestant.sizes
    pipe.send((len(sizes), sum(sizes), time.perf_counter() - start))
    step = 0
    while (seconds := pipe.recv()) is not None:
        start, first = time.perf_counter(), step
        while step == first or time.perf_counter() - start < seconds:
            contestant.step()
            step += 1
        pipe.send((time.perf_counter() - start, sum(sizes[first:step]), step - first))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each contestant."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--set", default="cola", choices=SETS)
    parser.add_argument("--batch", type=int, default=32, help="examples of a step")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=4, help="turns of each contestant")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a turn")
    parser.add_argument("--only", default="", help="only contestants whose name contains this")
    args = parser.parse_args(arguments)
    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    if missing:
        sys.exit(f"{', '.join(missing)} not installed: run 'make bench-finetune', which does it")
    lengths = row_lengths(args.set, args.max_seq_length)
    print(
        f"{args.set}: {len(lengths)} examples, {lengths.mean():.1f} positions each; batches of "
        f"{args.batch}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the start"
    )
    # One after the other, so that none slows down another's first step.
    workers = [
        Worker(name, lengths, args.batch, args.max_seq_length)
        for name in CONTESTANTS
        if args.only in name
    ]
    for _ in range(args.rounds):
        for worker in workers:
            worker.take_turn(args.seconds)
    print(f"{'':36} {'first step':>10} {'epoch':>9} {'examples/s':>10} {'length':>7} {'steps':>6}")
    for worker in workers:
        examples = worker.batches * args.batch
        print(
            f"{worker.name:36} {worker.first_seconds:8.1f} s {worker.epoch_seconds:7.0f} s"
            f" {examples / worker.epoch_seconds:10.1f} {worker.epoch_positions / examples:7.1f}"
            f" {worker.steps:6d}",
            flush=True,
        )
        worker.close()


if __name__ == "__main__":
    main()
