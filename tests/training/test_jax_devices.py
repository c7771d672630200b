"""JAX's devices and processes: steps, losses, dropout's seeds, and a worker that is lost.

Not tested here: several machines, TPUs.
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
from tests.kit import goldens, jax_process, tiny, tolerances, two_workers
from tests.training.toys import PARTS, SEED, PairsTask, SeedTask, pairs_of_vectors, step_on_pairs

pytest.importorskip("jax")

CASE = "lamb_onehot"
# Labels and scores of five examples, and probabilities drawn for three classes.
LABELS, SCORES = np.array([2, 0, 1, 1, 2], "int32"), np.linspace(-3, 4, 5, dtype="float32")
DRAWN = np.random.default_rng(7).dirichlet(np.ones(3), size=5).astype("float32")
# Losses that no run in test_run_finetune_jax.py uses; apart from them, such runs equal CoLA's.
LOSSES: dict[str, Callable[[Any], Any]] = {
    "multilabel": lambda logits: losses.multilabel_loss(np.round(DRAWN), logits),
    "regression": lambda logits: losses.regression_loss(SCORES, logits[:, :1]),
    "cosine": lambda logits: losses.CosineSimilarityLoss((2,)).call(
        SCORES, ops.stack([logits, ops.convert_to_tensor(DRAWN)], axis=1)
    ),
    "distillation": lambda logits: losses.Distillation(0.3, 2.5).mix(
        losses.classification_loss(LABELS, logits), DRAWN, logits
    ),
}
LOGITS = 3 * np.random.default_rng(8).normal(size=DRAWN.shape).astype("float32")


def take_golden_steps() -> dict[str, Any]:
    """Returns the statistics of each step, and the last weights."""
    import jax

    from albert_tf.training.jax_devices import JaxDevices

    task = PretrainingTask(goldens.config("base"))
    model = task.build_model()
    conversion.load_weights(model, goldens.checkpoint("base"))
    optimizer = goldens.optimizer(goldens.trajectory(CASE)[0])
    optimizer.build(model.trainable_variables)
    run = JaxDevices(jax.devices()[:1]).train_steps(task, model, optimizer, StepSettings())
    stats = run([(iter(goldens.batches()), 10)])
    return {"stats": stats, **{n.replace("/", "|"): v for n, v in tiny.weights(model).items()}}


def take_seed_steps() -> dict[str, Any]:
    """On two devices, each of which takes two rows one after the other."""
    from albert_tf.training.jax_devices import JaxDevices

    task = SeedTask()
    model = task.build_model()
    optimizer = create_optimizer(0.25, 10, 0)
    optimizer.build(model.trainable_variables)
    devices = JaxDevices(shard_optimizer=True)
    settings = StepSettings(SEED, accumulation_steps=PARTS // 2)
    run = devices.train_steps(task, model, optimizer, settings)
    batch = {"number": np.arange(PARTS, dtype="int32"), "ones": np.ones(PARTS, "float32")}
    stats = run([(iter([batch]), 1)])
    found = {"stats": stats, "a": model.a.numpy().copy(), "unused": model.unused.numpy()}
    kept = devices.host_values({"a": model.a})["a"]
    run([(iter([batch]), 1)])
    moments = optimizer.adam_m[1].value
    part = moments.sharding.shard_shape(moments.shape)
    return {**found, "kept": kept, "later": model.a.numpy(), "moments": moments, "part": part}


def take_steps_on_pairs() -> dict[str, Any]:
    """On one device and on two, each of which takes its rows at once or one after the other."""
    import jax

    from albert_tf.training.jax_devices import JaxDevices

    found = {}
    for replicas, parts in ((1, 1), (1, 2), (2, 1), (2, 2)):
        task = PairsTask()
        model = task.build_model()
        optimizer = create_optimizer(0.25, 10, 0, clip_norm=100.0)
        optimizer.build(model.trainable_variables)
        devices = JaxDevices(jax.devices()[:replicas])
        run = devices.train_steps(task, model, optimizer, StepSettings(accumulation_steps=parts))
        stats = run([(iter([pairs_of_vectors()]), 1)])
        moment, unused = optimizer.adam_m[0].value, model.unused.value[:1]
        found[f"{replicas}_{parts}"] = np.concatenate([stats[0], np.ravel(moment), unused])
    return found


def compute_losses() -> dict[str, Any]:
    """Returns the loss of each example, and the gradient of their sum."""
    import jax

    found = {}
    for name, loss in LOSSES.items():
        total = jax.jit(jax.value_and_grad(lambda x, of=loss: (sum(of(x)), of(x)), has_aux=True))
        (_, found[f"{name}_values"]), found[f"{name}_gradient"] = total(LOGITS)
    return found


def drop_out() -> dict[str, Any]:
    x, seed = np.linspace(1, 2, 1000, dtype="float32"), ops.array([3, 5], "uint32")
    found = {"x": x}
    for dtype in ("float32", "bfloat16"):
        dropped = dropout.apply_dropout(ops.cast(x, dtype), 0.1, seed)
        found[dtype] = np.asarray(ops.cast(dropped, "float32"))
    return found


def keep_programs() -> None:
    """Compiles with no cache directory set, neither in JAX nor in the environment."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    from albert_tf.training import jax_devices

    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", None)
    jax_devices.connect()
    jax.jit(lambda x: x + 1)(1.0)


def in_one_process(folder: str) -> None:
    for function in (
        drop_out,
        take_golden_steps,
        take_seed_steps,
        compute_losses,
        take_steps_on_pairs,
    ):
        np.savez(pathlib.Path(folder) / f"{function.__name__}.npz", **function())
    keep_programs()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("jax")
    environment = {"XDG_CACHE_HOME": str(folder)}
    jax_process.finish(jax_process.start(in_one_process, folder, devices=2, **environment))
    return folder


def test_ten_steps_are_the_releases(folder):
    found = goldens.arrays(folder / "take_golden_steps.npz")
    settings, params = goldens.trajectory(CASE)
    theirs = ("total_loss", "masked_lm_loss", "sentence_order_loss")
    expected = [[step[name] for name in theirs] for step in settings["steps"]]
    stats = found.pop("stats")
    np.testing.assert_allclose(stats[:, :3], expected, rtol=0, atol=tolerances.TRAJECTORY_LOSS)
    assert len(params) == len(found)
    goldens.check_weights(params, 10, found)


def test_dropout_seeds_are_those_on_tensorflow(folder):
    """At step 0 on two replicas in two parts each. A weight without gradient stays.

    Nor do values copied to the host change. Each device holds its share of the optimizer's state.
    """
    found = goldens.arrays(folder / "take_seed_steps.npz")
    seeds = [dropout.pass_seed(SEED, tf.constant(0), tf.constant(i)) for i in range(PARTS)]
    expected = [seed.numpy()[0] % 2**20 for seed in seeds]
    assert found["stats"][0, 1 : 1 + PARTS].tolist() == expected
    assert found["stats"][0, 1 + PARTS : 1 + 2 * PARTS].tolist() == [0] * PARTS
    assert found["a"] != 1 and np.all(found["unused"] == 1)
    assert found["kept"] == found["a"] != found["later"]
    assert found["moments"].shape == (4,) and found["part"].tolist() == [2]


def test_examples_are_compared_with_those_of_the_whole_batch(folder):
    """As on TensorFlow: test_train_step.py."""
    (loss, norm), gradient = step_on_pairs()
    expected = [loss, loss, 0.25, norm, *np.ravel(0.1 * gradient), 1]
    steps = goldens.arrays(folder / "take_steps_on_pairs.npz")
    assert len(steps) == 4
    for found in steps.values():
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_dropout_is_computed_in_float32_and_programs_are_kept(folder):
    """In bfloat16 1 / 0.9 would be 1.113. Programs are kept in the user's cache directory."""
    assert any((folder / "albert_tf" / "jax").iterdir())
    found = goldens.arrays(folder / "drop_out.npz")
    kept = found["float32"] != 0
    np.testing.assert_allclose(found["float32"][kept], found["x"][kept] / 0.9, rtol=1e-6)
    expected = ops.cast(ops.cast(found["x"], "bfloat16"), "float32") / 0.9
    expected = ops.convert_to_numpy(ops.cast(ops.cast(expected, "bfloat16"), "float32"))
    np.testing.assert_array_equal(found["bfloat16"], np.where(kept, expected, 0))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_are_those_on_tensorflow(folder, name):
    found = goldens.arrays(folder / "compute_losses.npz")
    found_values, found_gradient = found[f"{name}_values"], found[f"{name}_gradient"]
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        values = LOSSES[name](logits)
    assert found_values.shape == LABELS.shape and np.ptp(found_values) > 0.1
    tolerances.assert_close(found_values, values, tolerances.LOSS)
    tolerances.assert_close(found_gradient, tape.gradient(values, logits), tolerances.GRADIENT)


def meet_twice(lost: str) -> None:
    """The lost worker reaches only the first barrier."""
    from albert_tf.training import jax_devices

    with errors.in_one_line(), jax_devices.connect() as devices:
        devices.wait_for_all()
        if tf_config.index() == int(lost):
            os.kill(os.getpid(), signal.SIGKILL)
        devices.wait_for_all()


def wait_for_nobody(seconds: str) -> None:
    tf_config.WAIT_SECONDS = float(seconds)
    meet_twice("-1")


def error_line(process: jax_process.Process) -> str:
    written = jax_process.finish(process, 1)
    assert "Traceback" not in written
    (line,) = [line for line in written.splitlines() if line.startswith("error: ")]
    return line


def test_a_worker_lost_where_all_meet():
    # Lose the last worker: without the first, JAX itself may end the others.
    first, last = (jax_process.start(meet_twice, 1, **e) for e in two_workers.environments())
    jax_process.finish(last, -signal.SIGKILL)
    line = error_line(first)
    assert line.startswith("error: another worker was lost (")
    assert line.endswith("): see its log, and start the same command again on all workers")


def test_those_that_never_start_are_named():
    environment = two_workers.environments()[0]
    other = json.loads(environment["TF_CONFIG"])["cluster"]["worker"][1]
    assert error_line(jax_process.start(wait_for_nobody, 2, **environment)) == (
        f"error: TF_CONFIG: not all other workers ({other}) have started within 2 s: start the "
        "same command on each, or correct its address"
    )
