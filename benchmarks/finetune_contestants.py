"""The contestants of benchmarks/finetune.py: how each makes and pads the batches of an epoch.

A step is one update of ALBERT-base v2 (dropout 0) with a classifier of two classes, in float32:
forward and backward pass, clip to a global norm of 1, AdamW. Each contestant reads the same rows
from memory, as part of its step.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable
from functools import partial

import numpy as np
from base_model import CONFIG_FILE, hugging_face_config

from albert_tf.console import quiet

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

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
    """This project: the Trainer's step, on its input; with so many static lengths."""
    quiet.import_tensorflow()  # As the scripts do.
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
    from albert_tf.training.devices import StepSettings
    from albert_tf.training.optimizers import create_optimizer

    config = AlbertConfig.from_json_file(CONFIG_FILE)
    task = SequenceClassificationTask(
        ModelOptions(config, dropout_prob=0.0),
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
