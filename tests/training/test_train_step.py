"""One update: against a closed form, the release's ten steps, and other ways to split a batch.

Runs on several replicas are in test_run_pretraining_processes.py.
"""

import concurrent.futures
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.model import dropout
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training.interfaces import StepSettings, Task, stat_names
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.tensorflow_devices import TrainStep
from tests.kit import goldens, tiny, tolerances
from tests.kit import pretraining_runs as runs
from tests.training.toys import (
    PARTS,
    SEED,
    PairsTask,
    SeedTask,
    Slope,
    SlopeTask,
    eagerly,
    pairs_of_vectors,
    shared,
    step_on_pairs,
)

X = np.array([1.0, 2.0, -3.0, 5.0, 7.0, -11.0], "float32")
WEIGHTS = np.array([1.0, 0.0, 2.0, 0.5, 0.0, 3.0], "float32")
FEATURES = {"x": X, "weights": WEIGHTS}


def slope_step(accumulation_steps: int, seed: int = 5) -> tuple[TrainStep, Slope, Any]:
    task = SlopeTask()
    model = task.build_model()
    optimizer = create_optimizer(0.25, 10, 0, clip_norm=1.0)
    optimizer.build(model.trainable_variables)
    step = TrainStep(task, model, optimizer, StepSettings(seed, False, accumulation_steps))
    return step, model, optimizer


@pytest.mark.parametrize("accumulation_steps", [1, 2, 3])
def test_an_update_in_closed_form(accumulation_steps):
    step, model, optimizer = slope_step(accumulation_steps)
    stats = stats_of(SlopeTask(), tf.function(step, autograph=False)(FEATURES))
    linear = float(np.sum(X * WEIGHTS) / (np.sum(WEIGHTS) + 0.5))
    square = float(np.mean(X**2))
    gradient = linear + 2 * square  # The gradient of both losses' sum at a = 1.
    expected = {"loss": linear + square, "linear_loss": linear, "square_loss": square}
    expected |= {"learning_rate": 0.25, "grad_norm": gradient}
    assert stats == pytest.approx(expected, rel=1e-6)
    # With a gradient clipped to 1, moments are 0.1 and 0.001; the decay is 0.01 of a weight of 1.
    update = 0.1 / (np.sqrt(0.001) + 1e-6) + 0.01
    assert float(model.a.numpy()) == pytest.approx(1 - 0.25 * update, rel=1e-6)
    assert np.all(model.unused.numpy() == 1.0)
    assert int(optimizer.iterations.numpy()) == 1


def test_one_micro_batch_is_in_memory_at_a_time():
    step, _, _ = slope_step(3)
    graph = tf.function(lambda: step(FEATURES), autograph=False).get_concrete_function().graph
    nodes = [*graph.as_graph_def().node]
    nodes += [node for body in graph.as_graph_def().library.function for node in body.node_def]
    loops = [node for node in nodes if node.op in ("While", "StatelessWhile")]
    assert [loop.attr["parallel_iterations"].i for loop in loops] == [1]


def stats_of(task: Task, values: tf.Tensor) -> dict[str, float]:
    return dict(zip(stat_names(task), values.numpy().tolist(), strict=True))


def seeds_of(seed: int, accumulation_steps: int, steps: int) -> list[list[int]]:
    step, model, _ = slope_step(accumulation_steps, seed)
    with eagerly():
        for _ in range(steps):
            step(FEATURES)
    return model.seeds


def test_dropout_seeds_are_a_function_of_seed_step_and_part():
    seeds = seeds_of(5, 3, 4)
    assert len({tuple(seed) for seed in seeds}) == len(seeds) == 12
    assert [step for _, step in seeds] == [i for i in range(4) for _ in range(3)]
    # A pass numbers its few dozen dropout sites on from its seed: no two passes may overlap.
    firsts = sorted(first for first, step in seeds if step == 0)
    assert np.all(np.diff(firsts) >= 1000)
    assert seeds_of(5, 3, 4) == seeds
    neighbours = seeds_of(6, 3, 4)
    assert min(abs(a - b) for a, _ in seeds for b, _ in neighbours) > 10000


def _seeds_of_two_replicas() -> list[float]:
    runs.split_cpu(2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        task = SeedTask()
        model = task.build_model()
        optimizer = create_optimizer(0.25, 10, 0)
        optimizer.build(model.trainable_variables)
    step = TrainStep(task, model, optimizer, StepSettings(SEED, accumulation_steps=PARTS // 2))
    rows = {"number": np.arange(PARTS, dtype="int32"), "ones": np.ones(PARTS, "float32")}
    batch = shared(strategy, rows)
    stats = tf.function(lambda: strategy.run(step, (batch,)), autograph=False)()
    return strategy.experimental_local_results(stats)[1].numpy().tolist()


def test_each_micro_batch_of_each_replica_has_a_dropout_seed_of_its_own():
    """JAX uses the same seeds: test_jax_devices.py."""
    with concurrent.futures.ProcessPoolExecutor(1, runs.FORK_SERVER) as executor:
        stats = executor.submit(_seeds_of_two_replicas).result(runs.TIMEOUT_SECONDS)
    seeds = [dropout.pass_seed(SEED, tf.constant(0), tf.constant(i)).numpy() for i in range(PARTS)]
    assert stats[1 : 1 + PARTS] == [seed[0] % 2**20 for seed in seeds]
    assert np.diff(sorted(seed[0] for seed in seeds)).min() >= 4096


def _on_pairs(replicas: int, accumulation_steps: int) -> tuple[list[float], np.ndarray, float]:
    """Returns the loss and the norm, the first moment of the matrix, and the unused weight."""
    if replicas > 1:
        runs.split_cpu(replicas)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    with strategy.scope():
        task = PairsTask()
        model = task.build_model()
        optimizer = create_optimizer(0.25, 10, 0, clip_norm=100.0)
        optimizer.build(model.trainable_variables)
    step = TrainStep(task, model, optimizer, StepSettings(accumulation_steps=accumulation_steps))
    batch = shared(strategy, pairs_of_vectors())
    stats = tf.function(lambda: strategy.run(step, (batch,)), autograph=False)()
    loss, _, _, norm = strategy.experimental_local_results(stats)[-1].numpy().tolist()
    return [loss, norm], optimizer.adam_m[0].numpy(), float(model.unused.numpy()[0])


@pytest.mark.parametrize("accumulation_steps", [1, 2])
@pytest.mark.parametrize("replicas", [1, 2])
def test_examples_are_compared_with_those_of_the_whole_batch(replicas, accumulation_steps):
    """The batch spans all replicas and micro-batches. For JAX, see test_jax_devices.py."""
    how = replicas, accumulation_steps
    if replicas == 1:
        stats, moment, unused = _on_pairs(*how)
    else:
        with concurrent.futures.ProcessPoolExecutor(1, runs.FORK_SERVER) as executor:
            stats, moment, unused = executor.submit(_on_pairs, *how).result(runs.TIMEOUT_SECONDS)
    expected, gradient = step_on_pairs()
    np.testing.assert_allclose(stats, expected, rtol=1e-5)
    np.testing.assert_allclose(moment, 0.1 * gradient, rtol=1e-4)
    assert unused == 1


def test_ten_steps_are_the_releases():
    """test_optimizers.py follows more of the release's settings, without TrainStep."""
    settings, params = goldens.trajectory("lamb_onehot")
    task = PretrainingTask(goldens.config("base"))
    model = goldens.pretrained("base")
    optimizer = goldens.optimizer(settings)
    optimizer.build(model.trainable_variables)
    step = TrainStep(task, model, optimizer)
    update = tf.function(step, autograph=False)
    for i, (stored, batch) in enumerate(zip(settings["steps"], goldens.batches(), strict=True)):
        features = {name: tf.constant(value) for name, value in batch.items()}
        stats = stats_of(task, update(features))
        stats["total_loss"] = stats.pop("loss")
        for name in ("masked_lm_loss", "sentence_order_loss", "total_loss"):
            assert abs(stats[name] - stored[name]) <= tolerances.TRAJECTORY_LOSS, (i, name)
    assert len(params) == len(model.weights)
    goldens.check_weights(params, 10, tiny.weights(model))


@pytest.mark.parametrize(
    ("given", "gpus", "expected"),
    [(None, [], None), (None, ["GPU:0"], True), (False, ["GPU:0"], None), (True, [], True)],
)
def test_xla_compiles_by_default_on_gpus(given, gpus, expected, monkeypatch):
    compiled, optimizer = [], create_optimizer(1e-3, 1, 0)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: gpus)
    monkeypatch.setattr(tf, "function", lambda function, **how: compiled.append(how["jit_compile"]))
    TrainStep(None, None, optimizer, StepSettings(jit_compile=given))
    assert compiled == [expected, expected]
