"""Measures an epoch of fine-tuning ALBERT-base on short texts, padded in several ways.

    make bench-finetune     or, with the peers installed,  python benchmarks/finetune.py

The set has the size and length distribution of CoLA (or RTE); its pieces are random. Each
contestant has its own process; all take turns of a few seconds, so that other load on the machine
affects all alike. None completes its epoch: an epoch's seconds are extrapolated from the steps that
were made, by the share of the epoch's positions that they cover. What a contestant compiles before
its first step is reported separately. Batch and length are those of run_glue.py's README.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence

from finetune_contestants import CONTESTANTS, SETS, row_lengths
from workers import Worker


class Epoch(Worker):
    """A contestant, and how far it is in its epoch."""

    def __init__(self, name: str, *size: str) -> None:
        super().__init__(name, "finetune_worker.py", name, *size)
        self.seconds, self.positions, self.steps = 0.0, 0, 0
        started = self.ask()
        self.batches, self.epoch_positions = started["batches"], started["positions"]
        self.first_seconds = started["seconds"]

    def take_turn(self, seconds: float) -> None:
        """Lets it make steps for so many seconds, at least one step."""
        turn = self.ask(seconds=seconds)
        self.seconds += turn["seconds"]
        self.positions += turn["positions"]
        self.steps += turn["steps"]

    @property
    def epoch_seconds(self) -> float:
        return self.seconds * self.epoch_positions / self.positions


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each contestant."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--set", default="cola", choices=SETS)
    parser.add_argument("--batch", type=int, default=32, help="examples per step")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=4, help="turns per contestant")
    parser.add_argument("--seconds", type=float, default=8.0, help="steps per turn")
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
    # Sequentially, so that none slows down another's first step.
    workers = [
        Epoch(name, args.set, str(args.batch), str(args.max_seq_length))
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
