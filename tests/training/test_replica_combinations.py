"""Losses do not depend on how a batch is split, whatever else a run does.

Two devices and two processes train three steps for combinations of micro-batches, recomputation
and kinds of records. One device does so in test_train_step.py. Can't see: GPUs, several machines.
"""

import functools
import itertools
import json
import os
import pathlib
from collections.abc import Sequence

import numpy as np
import pytest

from albert_tf.records import input_files, input_pipeline
from albert_tf.records.input_pipeline import DynamicMasking
from albert_tf.records.masking import MaskingSettings
from albert_tf.records.spec import RowFormat, compact_spec, pretraining_spec
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training import tensorflow_devices
from albert_tf.training.interfaces import Devices, StepSettings
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.tensorflow_devices import TensorFlowDevices
from albert_tf.training.trainer import Trainer
from tests import pretraining_runs as runs
from tests import tiny, tolerances, two_workers

COUNT, BATCH, STEPS, SLOTS = 24, 12, 3, 2
# On one device: the losses that every split must have.
PLAIN = [("dynamic", 1, "kept"), ("packed", 1, "kept")]
# Split over replicas, any two settings of two of the three meet here; workers take the first two.
# Records with stored masks, also in one part, are split in test_run_pretraining_processes.py.
COMBINATIONS = [
    ("dynamic", 3, "recomputed"),
    ("packed", 3, "kept"),
    ("dynamic", 1, "kept"),
    ("packed", 1, "recomputed"),
]
OF_WORKERS = 2
# All twelve everywhere, at some five CPU seconds for each and each of the three processes.
if os.environ.get("ALBERT_ALL_COMBINATIONS"):
    PLAIN.append(("static", 1, "kept"))
    KINDS = [kind for kind, *_ in PLAIN]
    COMBINATIONS = list(itertools.product(KINDS, (1, 3), ("kept", "recomputed")))
    OF_WORKERS = len(COMBINATIONS)


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
    runs.write_records(folder / "dynamic", runs.compact_examples(COUNT))


def train(devices: Devices, folder: pathlib.Path, kind: str, parts: int, blocks: str) -> list:
    finish, spec = None, pretraining_spec(runs.LENGTH, runs.PREDICTIONS)
    if kind == "packed":
        spec = pretraining_spec(24, 2 * runs.PREDICTIONS, SLOTS)
    if kind == "dynamic":
        spec, vocab_size = compact_spec(), tiny.CONFIG["vocab_size"]
        settings = MaskingSettings(vocab_size, 4, max_predictions_per_seq=runs.PREDICTIONS)
        row_format = RowFormat(runs.LENGTH, vocab_size, 0, 2, 3, 4)
        finish = DynamicMasking(row_format, settings, 5)
    path = str(folder / kind)
    indexes = input_files.index_records([path])
    trainer = Trainer(
        PretrainingTask(tiny.config(num_hidden_layers=1), "float32", blocks == "recomputed"),
        devices,
        str(folder),
        lambda: create_optimizer(0.01, STEPS, 0),
        StepSettings(accumulation_steps=parts),
    )
    progress = runs.Progress()
    source = functools.partial(
        input_pipeline.training_dataset, [path], indexes, spec, BATCH, 7, 0, finish=finish
    )
    # A save would cost time, and workers would need a directory each.
    trainer.save = lambda keep_max: None
    trainer.train(source, progress, STEPS, steps_per_loop=1, save_steps=STEPS, keep_max=0)
    return [
        [stats[name] for name in stats if name.endswith("loss")]
        for stats in progress.stats.values()
    ]


def train_all(folder: pathlib.Path, combinations: Sequence[tuple]) -> tuple[str, list[list]]:
    """Returns the name of the strategy here, and the losses of each combination."""
    devices = TensorFlowDevices(tensorflow_devices.create_strategy())
    return devices.name, [train(devices, folder, *combination) for combination in combinations]


def _process(
    folder: pathlib.Path, output: pathlib.Path, cpus: int, env: dict[str, str], count: int
) -> None:
    os.environ.update(env)
    runs.split_cpu(cpus)
    output.write_text(json.dumps(train_all(folder, COMBINATIONS[:count])))


@pytest.fixture(scope="module")
def plain(folder) -> dict[str, np.ndarray]:
    """The losses of each kind of records on one device `<float>[STEPS, 3]`."""
    strategy, found = train_all(folder, PLAIN)
    assert strategy == "OneDeviceStrategy"
    return {kind: np.array(losses) for (kind, *_), losses in zip(PLAIN, found, strict=True)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("combinations")
    write_records(folder)
    return folder


@pytest.fixture(scope="module")
def split(folder) -> dict[str, tuple[str, list[list]]]:
    first, second = two_workers.environments()
    worlds = {"two": (2, {}), "worker0": (1, first), "worker1": (1, second)}
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


def test_the_splits_are_what_they_are_called(split):
    assert [strategy for strategy, _ in split.values()] == [
        "MirroredStrategy",
        "CollectiveAllReduceStrategy",
        "CollectiveAllReduceStrategy",
    ]


@pytest.mark.parametrize("number", range(len(COMBINATIONS)), ids=map(str, COMBINATIONS))
def test_splits_change_nothing(plain, split, number):
    expected = plain[COMBINATIONS[number][0]]
    assert expected.shape == (STEPS, 3) and np.all(expected > 0.01)
    assert np.ptp(expected[:, 0]) > 1e-3
    names = split if number < OF_WORKERS else ("two",)
    for name in names:
        actual = np.array(split[name][1][number])
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerances.TRAJECTORY_LOSS)
