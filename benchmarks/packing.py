"""Measures what packing saves: padding, rows, and training time per real token.

    python benchmarks/packing.py --input_file=text.txt --spm_model_file=spm.model

The text (one sentence per line, a blank line between documents) is used as it is, and cut into
documents of few sentences. Each gives records of the same examples, packed and not. A model of
configs/albert_tiny.json trains on both, one step each in turns, on batches of equally many rows, so
that other load on the machine affects both alike; times are medians. Both steps make the same
matrix products: a packed row's extra cost is its attention mask and its [CLS] vectors.
"""

from __future__ import annotations

import argparse
import dataclasses
import glob
import itertools
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from workers import ROOT, generate

from albert_tf import AlbertConfig, Tokenizer
from albert_tf.records import input_files, input_pipeline
from albert_tf.records.spec import pretraining_spec
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training import optimizers
from albert_tf.training.tensorflow_devices import TrainStep

# Sentences per document when the text is cut, drawn uniformly.
SHORT_DOCUMENT = (2, 9)


@dataclasses.dataclass(frozen=True)
class Records:
    """Records of one shape."""

    pattern: str
    length: int
    predictions: int
    max_examples_per_row: int

    def batches(self, rows: int) -> tuple[int, float, list[dict[str, tf.Tensor]]]:
        """Returns the number of rows, the share of padding, and some shuffled batches."""
        files = sorted(glob.glob(f"{self.pattern}*"))
        spec = pretraining_spec(self.length, self.predictions, self.max_examples_per_row)
        indexes = input_files.index_records(files)
        count = sum(index.records for index in indexes)
        context = tf.distribute.InputContext()
        whole = input_pipeline.evaluation_dataset(files, [count], spec, rows, count, context)
        tokens = sum(
            float(
                tf.reduce_sum(tf.cast(b["input_mask"], tf.float32) * b["example_weights"][:, None])
            )
            for b in whole
        )
        shuffled = input_pipeline.training_dataset(files, indexes, spec, rows, 1, 0, context)
        return count, 1 - tokens / count / self.length, list(shuffled.take(8))


class Training:
    """A model and the batches it trains on."""

    def __init__(self, config: AlbertConfig, records: Records, rows: int, precision: str) -> None:
        self.rows, self.padding, batches = records.batches(rows)
        self.seconds: list[float] = []
        task = PretrainingTask(config, precision)
        model = task.build_model()
        optimizer = optimizers.create_optimizer(1e-4, 10**6, 0)
        optimizer.build(model.trainable_variables)
        self._step = tf.function(TrainStep(task, model, optimizer))
        self._batches = itertools.cycle(batches)
        self.tokens_per_step = statistics.mean(int(np.sum(b["input_mask"])) for b in batches)
        self._step(next(self._batches))

    def take_turn(self) -> None:
        """Makes a step and records its time."""
        batch = next(self._batches)
        started = time.perf_counter()
        float(self._step(batch)[0])
        self.seconds.append(time.perf_counter() - started)


def cut_documents(text: str, short: str) -> None:
    """Writes the sentences of a text as documents of few sentences."""
    rng = random.Random(0)
    with open(text, encoding="utf-8") as source, open(short, "w", encoding="utf-8") as target:
        left = rng.randint(*SHORT_DOCUMENT)
        for line in filter(str.strip, source):
            target.write(line)
            left -= 1
            if not left:
                target.write("\n")
                left = rng.randint(*SHORT_DOCUMENT)


def compare(text: str, title: str, length: int, args: argparse.Namespace, **flags: float) -> None:
    """Prints two rows of the table: the same examples alone and packed."""
    config = AlbertConfig.from_json_file(ROOT / "configs" / "albert_tiny.json")
    vocab_size = Tokenizer(spm_model_file=args.spm_model_file).vocab_size
    config = dataclasses.replace(config, vocab_size=vocab_size)
    predictions = math.ceil(0.15 * length)
    with tempfile.TemporaryDirectory() as folder:
        trainings = []
        for max_examples in (1, args.max_examples_per_row):
            path = os.path.join(folder, f"{max_examples}.tfrecord")
            records = Records(path, length, predictions, max_examples)
            sizes = {"max_seq_length": length, "max_predictions_per_seq": predictions}
            flags |= {**sizes, "max_examples_per_row": max_examples, "dupe_factor": 1}
            generate(text, path, spm_model_file=args.spm_model_file, **flags)
            trainings.append(Training(config, records, args.tokens // length, args.precision))
    for _ in range(args.rounds):
        for training in trainings:
            training.take_turn()
    rates = []
    for training, kind in zip(trainings, ("alone", "packed"), strict=True):
        seconds = statistics.median(training.seconds)
        rates.append(training.tokens_per_step / seconds)
        print(
            f"{title:22} {length:6} {kind:7} {training.rows:8,} {training.padding:8.1%}"
            f" {1000 * seconds:8.1f} ms {rates[-1]:13,.0f} {rates[-1] / rates[0]:6.2f}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input_file", required=True)
    parser.add_argument("--spm_model_file", required=True)
    parser.add_argument("--max_seq_length", nargs="+", type=int, default=(128, 512))
    parser.add_argument("--max_examples_per_row", type=int, default=16)
    parser.add_argument(
        "--tokens", type=int, default=4096, help="tokens per batch, padding included"
    )
    parser.add_argument("--precision", default="float32", choices=("float32", "mixed_bfloat16"))
    parser.add_argument("--rounds", type=int, default=30, help="steps per measurement")
    args = parser.parse_args(arguments)
    print(
        f"{'documents':22} {'length':>6} {'':7} {'rows':>8} {'padding':>8} {'step':>11}"
        f" {'real tokens/s':>13} {'ratio':>6}"
    )
    with tempfile.TemporaryDirectory() as folder:
        short = os.path.join(folder, "short.txt")
        cut_documents(args.input_file, short)
        for length in args.max_seq_length:
            for prob in (0.1, 0.5):
                title = f"whole documents, short_seq {prob}"
                compare(args.input_file, title, length, args, short_seq_prob=prob)
            title = "of {} to {} sentences".format(*SHORT_DOCUMENT)
            compare(short, title, length, args, short_seq_prob=0.1)


if __name__ == "__main__":
    main()
