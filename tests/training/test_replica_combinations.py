"""Losses do not depend on how a batch is split, whatever else a run does.

Each of one device, two devices and two processes trains three steps for combinations of
micro-batches, recomputation and kinds of records. Can't see: GPUs, several machines.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import pathlib

import numpy as np
import pytest

from albert_tf.records import input_files, input_pipeline
from albert_tf.records.dynamic_masking import DynamicMasking
from albert_tf.records.masking import MaskingSettings
from albert_tf.records.specs import RowFormat, compact_spec, pretraining_spec
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training import distribution
from albert_tf.training.devices import Devices
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.tensorflow_devices import TensorFlowDevices
from albert_tf.training.trainer import Trainer
from tests import pretraining_runs as runs
from tests import tolerances, two_workers

COUNT, BATCH, STEPS, SLOTS = 24, 12, 3, 2
# Any two settings of two of the three meet here, and each setting meets each split: workers take
# the first three. ALBERT_ALL_COMBINATIONS=1 takes all twelve everywhere, at some five CPU seconds
# for each and each of the four processes.
COMBINATIONS = [
    ("static", 3, "recomputed"),
    ("dynamic", 1, "recomputed"),
    ("packed", 1, "kept"),
    ("static", 1, "kept"),
    ("dynamic", 3, "kept"),
    ("packed", 3, "recomputed"),
]
OF_WORKERS = 3
if os.environ.get("ALBERT_ALL_COMBINATIONS"):
    KINDS, PARTS, BLOCKS = (dict.fromkeys(column) for column in zip(*COMBINATIONS, strict=True))
    COMBINATIONS = list(itertools.product(KINDS, PARTS, BLOCKS))
    OF_WORKERS = len(COMBINATIONS)


class Losses:
    """Stands for ProgressLog: keeps the losses of all steps."""

    def __init__(self) -> None:
        self.values: list[list[float]] = []

    def report(self, step, stats, step_seconds, compiled):
        self.values.append([stats[name] for name in stats if name.endswith("loss")])


def write_records(folder: pathlib.Path) -> None:
    static = runs.examples(COUNT)
    padded = [
        {
            name: np.pad(value, (0, value.size)) if value.ndim else value
            for name, value in example.items()
        }
        for example in runs.examples(COUNT, length=12)
    ]
    packed = runs.packed(padded, SLOTS)
    assert len(packed) >= BATCH and packed[0]["sentence_order_labels"].shape == (SLOTS,)
    runs.write_records(folder / "static", static)
    runs.write_records(folder / "packed", packed[:BATCH])
    runs.write_compact_records(folder / "dynamic", runs.compact_examples(COUNT))


def train(devices: Devices, folder: pathlib.Path, kind: str, parts: int, blocks: str) -> list:
    finish, spec = None, pretraining_spec(runs.LENGTH, runs.PREDICTIONS)
    if kind == "packed":
        spec = pretraining_spec(24, 2 * runs.PREDICTIONS, SLOTS)
    if kind == "dynamic":
        spec, vocab_size = compact_spec(), runs.CONFIG["vocab_size"]
        settings = MaskingSettings(vocab_size, 4, max_predictions_per_seq=runs.PREDICTIONS)
        row_format = RowFormat(runs.LENGTH, vocab_size, 0, 2, 3, 4)
        finish = DynamicMasking(row_format, settings, 5)
    path = str(folder / kind)
    indexes = input_files.index_records([path])
    trainer = Trainer(
        PretrainingTask(runs.config(num_hidden_layers=1), "float32", blocks == "recomputed"),
        devices,
        str(folder),
        lambda: create_optimizer(0.01, STEPS, 0, sum_over_replicas=False),
        accumulation_steps=parts,
    )
    losses = Losses()
    source = functools.partial(
        input_pipeline.training_dataset, [path], indexes, spec, BATCH, 7, 0, finish=finish
    )
    # A save would cost time, and workers would need a directory each.
    trainer.save = lambda keep_max: None
    trainer.train(source, losses, STEPS, steps_per_loop=1, save_steps=STEPS, keep_max=0)
    return losses.values


def _process(
    folder: pathlib.Path, output: pathlib.Path, cpus: int, env: dict[str, str], count: int
) -> None:
    os.environ.update(env)
    runs.split_cpu(cpus)
    devices = TensorFlowDevices(distribution.create_strategy())
    found = [train(devices, folder, *combination) for combination in COMBINATIONS[:count]]
    output.write_text(json.dumps({"strategy": devices.name, "losses": found}))


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("combinations")
    write_records(folder)
    first, second = two_workers.environments()
    worlds = {"one": (1, {}), "two": (2, {}), "worker0": (1, first), "worker1": (1, second)}
    processes = []
    for name, (cpus, env) in worlds.items():
        count = OF_WORKERS if env else len(COMBINATIONS)
        arguments = (folder, folder / f"{name}.json", cpus, env, count)
        processes.append(runs.FORK_SERVER.Process(target=_process, args=arguments, daemon=True))
        processes[-1].start()
    for process in processes:
        process.join(runs.TIMEOUT_SECONDS)
        assert process.exitcode == 0
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in worlds}


def test_the_splits_are_what_they_are_called(losses):
    assert [found["strategy"] for found in losses.values()] == [
        "OneDeviceStrategy",
        "MirroredStrategy",
        "CollectiveAllReduceStrategy",
        "CollectiveAllReduceStrategy",
    ]


@pytest.mark.parametrize("number", range(len(COMBINATIONS)), ids=map(str, COMBINATIONS))
def test_splits_change_nothing(losses, number):
    expected = np.array(losses["one"]["losses"][number])
    assert expected.shape == (STEPS, 3) and np.all(expected > 0.01)
    assert np.ptp(expected[:, 0]) > 1e-3
    workers = ("worker0", "worker1") if number < OF_WORKERS else ()
    for name in ("two", *workers):
        actual = np.array(losses[name]["losses"][number])
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerances.TRAJECTORY_LOSS)
