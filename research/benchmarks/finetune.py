"""Measures an epoch of fine-tuning ALBERT-base on short texts, padded in several ways.

    make bench-finetune     or, with the peers installed,  python research/benchmarks/finetune.py

The set has the size and length distribution of CoLA (or RTE); its pieces are random. Each
contestant has its own process; all take turns of a few seconds, so that other load on the machine
affects all alike. None completes its epoch: an epoch's seconds are extrapolated from the steps that
were made, by the share of the epoch's positions that they cover. What a contestant compiles before
its first step is reported separately. Batch and length are those of run_glue.py's README.

A step is one update of ALBERT-base v2 (dropout 0) with a classifier of two classes, in float32:
forward and backward pass, clip to a global norm of 1, AdamW. Each contestant reads the same rows
from memory, as part of its step.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from base_model import CONFIG_FILE, hugging_face_config
from workers import Worker

from albert_tf.console import tensorflow_logs

# Quantiles of the training sets' lengths in the release's pieces, with [CLS] and [SEP].
SHARES = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)
SETS = {
    "cola": (8551, (4, 7, 8, 9, 10, 11, 11, 12, 14, 17, 20, 25, 46)),
    "rte": (2490, (13, 33, 40, 46, 50, 56, 63, 74, 106, 137, 161, 202, 292)),
}
LEARNING_RATE = 1e-5


def row_lengths(name: str, max_seq_length: int) -> np.ndarray:
    """Returns lengths distributed like a training set's, cut at `max_seq_length`."""
    count, percentiles = SETS[name]
    shares = np.random.default_rng(0).uniform(0, 100, count)
    return np.minimum(np.interp(shares, SHARES, percentiles).astype(int), max_seq_length)


@dataclasses.dataclass(frozen=True)
class Contestant:
    """An epoch, step by step.

    Attributes:
      sizes: Positions of each step's batch, padding included.
      warm_up: Makes a step of each shape that must be compiled.
      step: Makes the next step, and returns when the update is done.
    """

    sizes: list[int]
    warm_up: Callable[[], None]
    step: Callable[[], None]


def albert_tf(
    row_lengths: np.ndarray, batch_size: int, max_seq_length: int, static_lengths: int
) -> Contestant:
    """This project: the Trainer's step and input, with the given number of static lengths."""
    tensorflow_logs.import_tensorflow()  # As the scripts do.
    import tensorflow as tf

    from albert_tf.tasks.feature_table import FeatureTable
    from albert_tf.training import length_buckets
    from albert_tf.training.tensorflow_devices import TensorFlowDevices
    from albert_tf.training.trainer import StepIterators

    table = FeatureTable.from_rows(_rows(row_lengths))
    allowed = (max_seq_length,)
    if static_lengths > 1:
        allowed = length_buckets.choose_static_lengths(row_lengths, max_seq_length, static_lengths)
    num_steps = len(row_lengths) // batch_size
    plan = length_buckets.training_batches(row_lengths, batch_size, allowed, 0, num_steps)
    devices = TensorFlowDevices(tf.distribute.OneDeviceStrategy("CPU:0"))
    source = table.training_input(plan, 0, devices.static_shapes)
    train = _albert_tf_steps(devices)

    def warm_up() -> None:
        for input_fn in source.input_fns.values():
            train([(devices.iterator(input_fn), 1)])

    iterators, steps = StepIterators(devices, source, 0, num_steps), itertools.count()
    sizes = (batch_size * plan.lengths).tolist()
    return Contestant(sizes, warm_up, lambda: train(iterators.runs(next(steps), 1)))


def _albert_tf_steps(devices):
    from albert_tf.config import AlbertConfig
    from albert_tf.tasks.classification import SequenceClassificationTask
    from albert_tf.tasks.supervised import ModelOptions
    from albert_tf.training.interfaces import StepSettings
    from albert_tf.training.optimizers import create_optimizer

    config = AlbertConfig.from_json_file(CONFIG_FILE)
    task = SequenceClassificationTask(
        ModelOptions(config, classifier_dropout_prob=0.0),
        tokenizer=None,
        max_seq_length=config.max_position_embeddings,
        classes=("0", "1"),
    )
    model = task.build_model()
    optimizer = create_optimizer(LEARNING_RATE, 1_000_000, 0)
    optimizer.build(model.trainable_variables)
    return devices.train_steps(task, model, optimizer, StepSettings())


def hugging_face(
    row_lengths: np.ndarray, batch_size: int, max_seq_length: int, grouped: bool
) -> Contestant:
    """Hugging Face on torch, eager as run_glue.py is: a batch is as long as its longest row."""
    import torch
    import transformers
    from transformers.trainer_pt_utils import LengthGroupedSampler

    del max_seq_length
    names = {"input_ids": "input_ids", "input_mask": "attention_mask"}
    names |= {"segment_ids": "token_type_ids", "label_ids": "labels"}
    rows = [
        {names[name]: torch.tensor(value, dtype=torch.long) for name, value in row.items()}
        for row in _rows(row_lengths)
    ]
    torch.manual_seed(0)
    sampler = torch.utils.data.RandomSampler(rows)
    if grouped:
        sampler = LengthGroupedSampler(batch_size, lengths=row_lengths.tolist())
    batches = list(torch.utils.data.BatchSampler(sampler, batch_size, drop_last=True))

    def collate(examples):
        batch = {"labels": torch.stack([example["labels"] for example in examples])}
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            values = [example[name] for example in examples]
            batch[name] = torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
        return batch

    loader = iter(torch.utils.data.DataLoader(rows, batch_sampler=batches, collate_fn=collate))
    update = _hugging_face_update(transformers, torch)
    sizes = [batch_size * int(row_lengths[batch].max()) for batch in batches]
    first = collate([rows[i] for i in batches[0]])
    return Contestant(sizes, lambda: update(first), lambda: update(next(loader)))


def _hugging_face_update(transformers, torch):
    config = hugging_face_config(classifier_dropout_prob=0.0)
    model = transformers.AlbertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def update(batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return update


def _rows(row_lengths: np.ndarray) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    vocab_size = json.loads(CONFIG_FILE.read_text())["vocab_size"]
    return [
        {
            "input_ids": rng.integers(5, vocab_size, length).astype(np.int32),
            "input_mask": np.ones(length, np.int32),
            "segment_ids": np.zeros(length, np.int32),
            "label_ids": np.int32(rng.integers(2)),
        }
        for length in row_lengths
    ]


# By name, in table order.
CONTESTANTS: dict[str, Callable[..., Contestant]] = {
    "albert_tf, 6 lengths": partial(albert_tf, static_lengths=6),
    "albert_tf, 24 lengths": partial(albert_tf, static_lengths=24),
    "albert_tf, padded": partial(albert_tf, static_lengths=1),
    "Hugging Face, dynamic padding": partial(hugging_face, grouped=False),
    "Hugging Face, grouped by length": partial(hugging_face, grouped=True),
}


def answers(name: str, rows: str, batch_size: str, max_length: str) -> Callable[..., dict]:
    """Returns a function that compiles a contestant if called without seconds, else makes steps."""
    contestant, step = None, 0

    def respond(seconds: float | None = None) -> dict[str, float]:
        nonlocal contestant, step
        start, first = time.perf_counter(), step
        if seconds is None:
            lengths = row_lengths(rows, int(max_length))
            contestant = CONTESTANTS[name](lengths, int(batch_size), int(max_length))
            contestant.warm_up()
            took = time.perf_counter() - start
            sizes = contestant.sizes
            return {"batches": len(sizes), "positions": sum(sizes), "seconds": took}
        while step == first or time.perf_counter() - start < seconds:
            contestant.step()
            step += 1
        took, positions = time.perf_counter() - start, sum(contestant.sizes[first:step])
        return {"seconds": took, "positions": positions, "steps": step - first}

    return respond


class Epoch(Worker):
    """A contestant, and how far it is in its epoch."""

    def __init__(self, name: str, *size: str) -> None:
        super().__init__(name, "finetune.answers", name, *size)
        self.seconds, self.positions, self.steps = 0.0, 0, 0
        started = self.ask()
        self.batches, self.epoch_positions = started["batches"], started["positions"]
        self.first_seconds = started["seconds"]

    def take_turn(self, seconds: float) -> None:
        """Lets it make steps for the given seconds, at least one step."""
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
