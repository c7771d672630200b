"""Losses of packed rows do not depend on how a batch is split: over devices, processes and parts.

One device trains in parts in test_train_step.py; examples one a row are split in
tests/cli/test_run_pretraining_processes.py. Can't see: GPUs, several machines.
"""

import functools
import json
import os
import pathlib

import numpy as np
import pytest

from albert_tf.records import input_files, input_pipeline
from albert_tf.records.spec import pretraining_spec
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training import tensorflow_devices
from albert_tf.training.interfaces import Devices, StepSettings
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.tensorflow_devices import TensorFlowDevices
from albert_tf.training.trainer import Trainer
from tests import pretraining_runs as runs
from tests import tiny, tolerances, two_workers

COUNT, BATCH, STEPS, SLOTS, LENGTH = 24, 12, 3, 2, 24
# Parts, and whether blocks are recomputed: on one device, and split.
PLAIN, SPLIT = (1, False), [(3, False), (1, True)]


def train_all(folder: pathlib.Path, settings: list[tuple[int, bool]]) -> tuple[str, list[list]]:
    """Returns the name of the strategy here, and the losses with each settings."""
    devices = TensorFlowDevices(tensorflow_devices.create_strategy())
    return devices.name, [train(devices, folder, *each) for each in settings]


def train(devices: Devices, folder: pathlib.Path, parts: int, recompute: bool) -> list:
    path, spec = str(folder / "packed"), pretraining_spec(LENGTH, 2 * runs.PREDICTIONS, SLOTS)
    indexes = input_files.index_records([path])
    trainer = Trainer(
        PretrainingTask(tiny.config(num_hidden_layers=1), "float32", recompute),
        devices,
        str(folder),
        lambda: create_optimizer(0.01, STEPS, 0),
        StepSettings(accumulation_steps=parts),
    )
    progress = runs.Progress()
    source = functools.partial(input_pipeline.training_dataset, [path], indexes, spec, BATCH, 7, 0)
    # A save would cost time, and workers would need a directory each.
    trainer.save = lambda *_: None
    trainer.train(source, progress, STEPS, steps_per_loop=1, save_steps=STEPS, keep_max=0)
    return [
        [stats[name] for name in stats if name.endswith("loss")]
        for stats in progress.stats.values()
    ]


def _process(folder: pathlib.Path, output: pathlib.Path, cpus: int, env: dict[str, str]) -> None:
    os.environ.update(env)
    runs.split_cpu(cpus)
    output.write_text(json.dumps(train_all(folder, SPLIT)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("combinations")
    padded = [
        {
            name: np.pad(value, (0, value.size)) if value.ndim else value
            for name, value in example.items()
        }
        for example in runs.examples(COUNT, length=LENGTH // 2)
    ]
    packed = runs.packed(padded, SLOTS)
    assert len(packed) >= BATCH and packed[0]["sentence_order_labels"].shape == (SLOTS,)
    runs.write_records(folder / "packed", packed[:BATCH])
    return folder


def test_splits_change_nothing(folder):
    first, second = two_workers.environments()
    worlds = {"two": (2, {}), "worker0": (1, first), "worker1": (1, second)}
    processes = []
    for name, world in worlds.items():
        arguments = (folder, folder / f"{name}.json", *world)
        processes.append(runs.FORK_SERVER.Process(target=_process, args=arguments, daemon=True))
        processes[-1].start()
    strategy, (expected,) = train_all(folder, [PLAIN])
    assert strategy == "OneDeviceStrategy"
    assert np.shape(expected) == (STEPS, 3) and np.min(expected) > 0.01
    assert np.ptp(np.array(expected)[:, 0]) > 1e-3
    for process in processes:
        process.join(runs.TIMEOUT_SECONDS)
        assert process.exitcode == 0
    for name in worlds:
        strategy, found = json.loads((folder / f"{name}.json").read_text())
        is_mirrored = name == "two"
        assert strategy == ("MirroredStrategy" if is_mirrored else "CollectiveAllReduceStrategy")
        for losses in found:
            np.testing.assert_allclose(losses, expected, rtol=0, atol=tolerances.TRAJECTORY_LOSS)
