"""JAX's devices and processes: steps, losses, dropout's seeds, and a worker that is lost.

Can't see: several machines, TPUs.
"""

import json
import os
import pathlib
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from albert_tf import conversion
from albert_tf.console import errors, tf_config
from albert_tf.model import dropout
from albert_tf.tasks import losses
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training.interfaces import StepSettings
from albert_tf.training.optimizers import create_optimizer
from tests import goldens, jax_process, tiny, tolerances, two_workers
from tests.training.test_train_step import PARTS, SEED, SeedTask

pytest.importorskip("jax")

CASES = ("lamb_onehot", "adamw_onehot")
# Of five examples: labels, scores, and of three classes what is drawn.
LABELS, SCORES = np.array([2, 0, 1, 1, 2], "int32"), np.linspace(-3, 4, 5, dtype="float32")
DRAWN = np.random.default_rng(7).dirichlet(np.ones(3), size=5).astype("float32")
# Those that test_run_finetune_jax.py has no run of; all else in such a run is CoLA's.
LOSSES: dict[str, Callable[[Any], Any]] = {
    "multilabel": lambda logits: losses.multilabel_loss(np.round(DRAWN), logits),
    "regression": lambda logits: losses.regression_loss(SCORES, logits[:, :1]),
    "distillation": lambda logits: losses.Distillation(0.3, 2.5).mix(
        losses.classification_loss(LABELS, logits), DRAWN, logits
    ),
}
LOGITS = 3 * np.random.default_rng(8).normal(size=DRAWN.shape).astype("float32")


# --- in the process -------------------------------------------------------------------------


def take_golden_steps(folder: str) -> None:
    """Stores the statistics of each step and the last weights."""
    import jax

    from albert_tf.training.jax_devices import JaxDevices

    task = PretrainingTask(goldens.config("base"))
    model = task.build_model()
    for case in CASES:
        conversion.load_weights(model, goldens.checkpoint("base"))
        optimizer = goldens.optimizer(goldens.trajectory(case)[0])
        optimizer.build(model.trainable_variables)
        run = JaxDevices(jax.devices()[:1]).train_steps(task, model, optimizer, StepSettings())
        stats = run([(iter(goldens.batches()), 10)])
        weights = {name.replace("/", "|"): v for name, v in tiny.weights(model).items()}
        np.savez(pathlib.Path(folder) / f"{case}.npz", stats=stats, **weights)


def take_seed_steps(folder: str) -> None:
    """On two devices, each of which takes two rows one after the other."""
    from albert_tf.training.jax_devices import JaxDevices

    task = SeedTask()
    model = task.build_model()
    optimizer = create_optimizer(0.25, 10, 0)
    optimizer.build(model.trainable_variables)
    devices = JaxDevices(shard_optimizer=True)
    run = devices.train_steps(
        task, model, optimizer, StepSettings(SEED, accumulation_steps=PARTS // 2)
    )
    batch = {"number": np.arange(PARTS, dtype="int32"), "ones": np.ones(PARTS, "float32")}
    stats = run([(iter([batch]), 1)])
    weights = {"a": model.a.numpy().copy(), "unused": model.unused.numpy()}
    kept = devices.host_values({"a": model.a})["a"]
    run([(iter([batch]), 1)])
    weights |= {"kept": kept, "later": model.a.numpy()}
    moments = optimizer.adam_m[1].value
    part = moments.sharding.shard_shape(moments.shape)
    np.savez(pathlib.Path(folder) / "seeds.npz", stats=stats, moments=moments, part=part, **weights)


def store_losses(folder: str) -> None:
    """Stores the loss of each example, and the gradient of their sum."""
    import jax

    for name, loss in LOSSES.items():
        total = jax.jit(jax.value_and_grad(lambda x, of=loss: (sum(of(x)), of(x)), has_aux=True))
        (_, values), gradient = total(LOGITS)
        np.savez(pathlib.Path(folder) / f"{name}.npz", values=values, gradient=gradient)


def drop_out(folder: str) -> None:
    x = ops.convert_to_tensor(np.linspace(1, 2, 1000, dtype="float32"))
    found = {
        dtype: dropout.apply_dropout(ops.cast(x, dtype), 0.1, ops.array([3, 5], "uint32"))
        for dtype in ("float32", "bfloat16")
    }
    rounded = {name: np.asarray(ops.cast(y, "float32")) for name, y in found.items()}
    np.savez(pathlib.Path(folder) / "dropout.npz", x=x, **rounded)


def keep_programs() -> None:
    """Compiles where neither JAX nor its environment says where to keep what is compiled."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    from albert_tf.training import jax_devices

    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", None)
    jax_devices.connect()
    jax.jit(lambda x: x + 1)(1.0)


def in_one_process(folder: str) -> None:
    drop_out(folder)
    take_golden_steps(folder)
    take_seed_steps(folder)
    store_losses(folder)
    keep_programs()


# --- tests ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("jax")
    environment = {"XDG_CACHE_HOME": str(folder)}
    jax_process.finish(jax_process.start(in_one_process, folder, devices=2, **environment))
    return folder


def test_programs_are_kept_in_the_users_cache_directory(folder):
    assert any((folder / "albert_tf" / "jax").iterdir())


@pytest.mark.parametrize("case", CASES)
def test_ten_steps_are_the_releases(folder, case):
    found = goldens.arrays(folder / f"{case}.npz")
    settings, params = goldens.trajectory(case)
    theirs = ("total_loss", "masked_lm_loss", "sentence_order_loss")
    expected = [[step[name] for name in theirs] for step in settings["steps"]]
    stats = found.pop("stats")
    np.testing.assert_allclose(stats[:, :3], expected, rtol=0, atol=tolerances.TRAJECTORY_LOSS)
    assert len(params) == len(found)
    goldens.check_weights(params, 10, found)


def test_dropout_seeds_are_those_on_tensorflow(folder):
    """Of step 0 on two replicas in two parts each; and a weight without gradient stays."""
    found = goldens.arrays(folder / "seeds.npz")
    expected = [
        dropout.pass_seed(SEED, tf.constant(0), tf.constant(i)).numpy() for i in range(PARTS)
    ]
    assert found["stats"][0, 1 : 1 + PARTS].tolist() == [seed[0] % 2**20 for seed in expected]
    assert found["stats"][0, 1 + PARTS : 1 + 2 * PARTS].tolist() == [0] * PARTS
    assert found["a"] != 1 and np.all(found["unused"] == 1)


def test_dropout_is_computed_in_float32(folder):
    """In bfloat16 1 / 0.9 would be 1.113."""
    found = goldens.arrays(folder / "dropout.npz")
    kept = found["float32"] != 0
    np.testing.assert_allclose(found["float32"][kept], found["x"][kept] / 0.9, rtol=1e-6)
    expected = ops.cast(ops.cast(found["x"], "bfloat16"), "float32") / 0.9
    expected = ops.convert_to_numpy(ops.cast(ops.cast(expected, "bfloat16"), "float32"))
    np.testing.assert_array_equal(found["bfloat16"], np.where(kept, expected, 0))


def test_values_on_the_host_stay_when_a_step_follows(folder):
    found = goldens.arrays(folder / "seeds.npz")
    assert found["kept"] == found["a"] != found["later"]


def test_a_device_holds_its_share_of_the_optimizers_state(folder):
    found = goldens.arrays(folder / "seeds.npz")
    assert found["moments"].shape == (4,) and found["part"].tolist() == [2]


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_are_those_on_tensorflow(folder, name):
    found = goldens.arrays(folder / f"{name}.npz")
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        values = LOSSES[name](logits)
    assert found["values"].shape == LABELS.shape and np.ptp(found["values"]) > 0.1
    np.testing.assert_allclose(found["values"], values, rtol=0, atol=tolerances.LOSS)
    expected = tape.gradient(values, logits)
    np.testing.assert_allclose(found["gradient"], expected, rtol=0, atol=tolerances.GRADIENT)


# --- processes that meet --------------------------------------------------------------------


def meet_twice(lost: str) -> None:
    """The one that is lost comes to the first meeting only."""
    from albert_tf.training import jax_devices

    with errors.in_one_line(), jax_devices.connect() as devices:
        devices.wait_for_all()
        if tf_config.index() == int(lost):
            os.kill(os.getpid(), signal.SIGKILL)
        devices.wait_for_all()


def wait_for_nobody(seconds: str) -> None:
    tf_config.WAIT_SECONDS = float(seconds)
    meet_twice("-1")


def error_line(written: str) -> str:
    assert "Traceback" not in written
    (line,) = [line for line in written.splitlines() if line.startswith("error: ")]
    return line


def test_a_worker_lost_where_all_meet():
    # The last: without the first JAX itself may end the others.
    first, last = (
        jax_process.start(meet_twice, 1, **environment)
        for environment in two_workers.environments()
    )
    jax_process.finish(last, -signal.SIGKILL)
    line = error_line(jax_process.finish(first, 1))
    assert line.startswith("error: another worker was lost (")
    assert line.endswith("): see its log, and start the same command again on all workers")


def test_those_that_never_start_are_named():
    environment = two_workers.environments()[0]
    other = json.loads(environment["TF_CONFIG"])["cluster"]["worker"][1]
    written = jax_process.finish(jax_process.start(wait_for_nobody, 2, **environment), 1)
    assert error_line(written) == (
        f"error: TF_CONFIG: not all other workers ({other}) have started within 2 s: start the "
        "same command on each, or correct its address"
    )
