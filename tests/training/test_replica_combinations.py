"""Losses of packed rows do not depend on how a batch is split: over devices, processes and parts.

One device trains in parts in test_train_step.py; unpacked examples are split in
tests/cli/test_run_pretraining_processes.py. Not tested here: GPUs, several machines.
"""

import functools
import json
import os
import pathlib

import numpy as np
import pytest

from albert_tf.records import input_files, input_pipeline
from albert_tf.records.spec import pretraining_spec
from albert_tf.tasks.elastic import ElasticTask
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training import tensorflow_devices
from albert_tf.training.interfaces import StepSettings
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.tensorflow_devices import TensorFlowDevices
from albert_tf.training.trainer import Trainer
from tests.kit import pretraining_runs as runs
from tests.kit import tiny, tolerances, two_workers
from tests.kit.pretraining_runs import Progress
from tests.training.toys import eagerly

BATCH, STEPS, SLOTS, LENGTH = 12, 3, 2, 24
# The number of parts into which each setup splits a batch, and whether it recomputes blocks.
PLAIN, PARTS, RECOMPUTED = (1, False), (3, False), (1, True)


def train(folder: pathlib.Path, parts: int, recompute: bool) -> tuple[str, list[list[float]]]:
    """Returns the name of the strategy here, and the losses of each step."""
    devices = TensorFlowDevices(tensorflow_devices.create_strategy())
    path, spec = str(folder / "packed"), pretraining_spec(LENGTH, 2 * runs.PREDICTIONS, SLOTS)
    data = [path], input_files.index_records([path]), spec, BATCH, 7, 0
    task = ElasticTask(PretrainingTask(tiny.config(), "float32", recompute), (1,))
    make_optimizer = functools.partial(create_optimizer, 0.01, STEPS, 0, "muon")
    settings = StepSettings(accumulation_steps=parts)
    trainer, progress = Trainer(task, devices, str(folder), make_optimizer, settings), Progress()
    # A save would cost time, and workers would need a directory each.
    trainer.save = lambda *_: None
    source = functools.partial(input_pipeline.training_dataset, *data)
    trainer.train(source, progress, STEPS, steps_per_loop=1, save_steps=STEPS, keep_max=0)
    names = ("loss", "masked_lm_loss", "sentence_order_loss", "shallow_masked_lm_loss")
    losses = [[stats[name] for name in names] for stats in progress.stats.values()]
    return devices.name, losses


def _process(folder: pathlib.Path, output: pathlib.Path, cpus: int, how, env) -> None:
    os.environ.update(env)
    runs.split_cpu(cpus)
    output.write_text(json.dumps(train(folder, *how)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("combinations")
    examples = runs.examples(24, length=LENGTH // 2)
    for example in examples:
        example |= {name: np.pad(x, (0, x.size)) for name, x in example.items() if x.ndim}
    packed = runs.packed(examples, SLOTS)
    assert len(packed) >= BATCH and packed[0]["sentence_order_labels"].shape == (SLOTS,)
    runs.write_records(folder / "packed", packed[:BATCH])
    return folder


@pytest.mark.slow
def test_splits_change_nothing(folder):
    first, second = two_workers.environments()
    worlds = {"two": (2, PARTS, {})}
    worlds |= {"worker0": (1, RECOMPUTED, first), "worker1": (1, RECOMPUTED, second)}
    processes = []
    for name, world in worlds.items():
        arguments = (folder, folder / f"{name}.json", *world)
        processes.append(runs.FORK_SERVER.Process(target=_process, args=arguments, daemon=True))
        processes[-1].start()
    with eagerly():
        strategy, expected = train(folder, *PLAIN)
    assert strategy == "OneDeviceStrategy"
    assert np.shape(expected) == (STEPS, 4) and np.min(expected) > 0.01
    assert np.ptp(np.array(expected)[:, 0]) > 1e-3
    for process in processes:
        process.join(runs.TIMEOUT_SECONDS)
        assert process.exitcode == 0
    for name in worlds:
        strategy, found = json.loads((folder / f"{name}.json").read_text())
        assert strategy == ("MirroredStrategy" if name == "two" else "CollectiveAllReduceStrategy")
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerances.TRAJECTORY_LOSS)
