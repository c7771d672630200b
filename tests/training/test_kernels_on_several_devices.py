"""Training with kernels on several devices and in several processes. Not tested: GPUs; dropout.

Kernels are interpreted on CPU devices, and each device holds its share of the optimizer's state.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf import AlbertConfig
from albert_tf.tasks.supervised import ModelOptions
from albert_tf.training.interfaces import StepSettings
from albert_tf.training.optimizers import create_optimizer
from tests.kit import jax_process, two_workers

pytest.importorskip("jax")
pytestmark = pytest.mark.peers  # It takes 40 s.

STEPS, ROWS, LENGTH = 10, 16, 8


def train(file: str, is_sharded: str) -> None:
    from albert_tf.model import jax_ops
    from albert_tf.training import jax_devices
    from tools.tpu_check.steps import TASKS

    jax_ops.interpreted, jax_ops._WORTH_A_KERNEL = True, 1
    jax_ops._found = lambda: "cuda"
    made, pallas_call = [], jax_ops.pl.pallas_call
    jax_ops.pl.pallas_call = lambda *args, **named: made.append(1) or pallas_call(*args, **named)

    sizes = {"embedding_size": 16, "hidden_size": 128, "intermediate_size": 128}
    config = AlbertConfig(31, num_attention_heads=2, num_hidden_layers=2, **sizes)
    rng, rows = np.random.default_rng(3), (STEPS, ROWS)
    features = {
        "input_ids": rng.integers(1, 31, (*rows, LENGTH)),
        "input_mask": np.arange(LENGTH) < rng.integers(2, LENGTH + 1, (*rows, 1)),
        "segment_ids": rng.integers(0, 2, (*rows, LENGTH)),
        "label_ids": rng.integers(0, 2, rows),
    }
    with jax_devices.connect(shard_optimizer=bool(int(is_sharded))) as devices:

        def shares(context: tf.distribute.InputContext) -> tf.data.Dataset:
            """Yields for each step the rows of each of this process's replicas."""
            total, processes = context.num_replicas_in_sync, context.num_input_pipelines
            here = np.array_split(np.arange(total), processes)[context.input_pipeline_id]
            return tf.data.Dataset.from_tensor_slices(
                {
                    name: x.reshape(STEPS, total, ROWS // total, *x.shape[2:])[:, here]
                    .reshape(-1, ROWS // total, *x.shape[2:])
                    .astype("int32")
                    for name, x in features.items()
                }
            )

        keras.utils.set_random_seed(5)  # The same weights in all processes.
        task = TASKS["classification"].make(ModelOptions(config, classifier_dropout_prob=0.0))
        model = task.build_model()
        optimizer = create_optimizer(1e-3, 1000, 0)
        optimizer.build(model.trainable_variables)
        run = devices.train_steps(task, model, optimizer, StepSettings())
        stats = run([(devices.iterator(shares), STEPS)])
        assert made
        if devices.is_chief:
            np.save(file, stats[:, 0])


@pytest.mark.slow
def test_losses_are_those_of_one_device(tmp_path):
    def start(name: str, *environments: dict[str, str], **options) -> list[Any]:
        file, is_sharded = tmp_path / f"{name}.npy", int(name != "one")
        return [
            jax_process.start(train, file, is_sharded, **options, **each) for each in environments
        ]

    one, eight = start("one", {}), start("eight", {}, devices=8)
    two = start("two", *two_workers.environments(), devices=2)
    for process in (*one, *eight, *two):
        jax_process.finish(process)
    one, eight, two = (np.load(tmp_path / f"{name}.npy") for name in ("one", "eight", "two"))
    assert np.ptp(one) > 0.1
    for losses in (eight, two):
        np.testing.assert_allclose(losses, one, rtol=0, atol=5e-6)
