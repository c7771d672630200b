"""Muon: updates by hand, which weights are whose, replicas and parts, another optimizer's run.

Stopped runs, branches and timed runs are in test_any_optimizer.py. Not tested here: GPUs, TPUs.
"""

import concurrent.futures
import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from albert_tf.cli.pretraining_settings import PretrainingSettings
from albert_tf.storage import checkpoint
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training import muon
from albert_tf.training.interfaces import StepSettings, Task
from albert_tf.training.muon import Muon
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.tensorflow_devices import TrainStep
from tests.kit import jax_process, tiny, tolerances
from tests.kit import pretraining_runs as runs
from tests.training import toys
from tests.training.test_trainer_weights import save, trainer_of

ROWS, STEPS = 8, 3
# Replicas, parts into which each splits its rows, and whether the state is sharded (JAX only).
SPLITS = [(1, 1, False), (2, 1, False), (8, 1, False), (1, 4, False), (2, 2, True)]


class Encoder(keras.Model):
    """Two matrices and a bias of an encoder, which are applied to a batch of vectors."""

    def __init__(self) -> None:
        super().__init__(name="encoder")
        rng = np.random.default_rng(5)
        for name, shape in {"first_kernel": (2, 6), "bias": (6,), "second_kernel": (6, 4)}.items():
            start = keras.initializers.Constant(rng.normal(size=shape))
            setattr(self, name, self.add_weight(shape=shape, initializer=start, name=name))
        self.built = True

    def call(self, features, training, dropout_seed):
        inner = ops.matmul(features["x"], ops.convert_to_tensor(self.first_kernel))
        inner = ops.tanh(inner + ops.convert_to_tensor(self.bias))
        return ops.matmul(inner, ops.convert_to_tensor(self.second_kernel))


class SquareTask(Task):
    """The target of all outputs is 1."""

    loss_names = ("square_loss",)

    def build_model(self) -> keras.Model:
        return Encoder()

    def loss_weights(self, features) -> dict[str, Any]:
        return {"square_loss": ops.sum(ops.ones_like(features["x"][:, 0]))}

    def loss_sums(self, outputs, features) -> dict[str, Any]:
        return {"square_loss": ops.sum(ops.square(outputs - 1.0))}


def made() -> tuple[Task, keras.Model, Muon, dict[str, np.ndarray]]:
    task = SquareTask()
    model = task.build_model()
    optimizer = create_optimizer(0.1, 10, 1, "muon", adam_share=0.5)
    optimizer.build(model.trainable_variables)
    x = np.random.default_rng(6).normal(size=(ROWS, 2)).astype("float32")
    return task, model, optimizer, {"x": x}


def state(model: keras.Model, optimizer: Muon) -> dict[str, np.ndarray]:
    """Returns the weights and moments of the first replica."""
    moments = optimizer.variables[2:]
    return {v.name: v.numpy().copy() for v in (*model.weights, *moments)}


@functools.cache
def strategy_of(replicas: int) -> tf.distribute.MirroredStrategy:
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def on_tensorflow(replicas: int, parts: int) -> dict[str, np.ndarray]:
    strategy = strategy_of(replicas)
    with strategy.scope():
        task, model, optimizer, features = made()
    step = TrainStep(task, model, optimizer, StepSettings(accumulation_steps=parts))
    shares = toys.shared(strategy, features)
    run = tf.function(lambda: strategy.run(step, (shares,)), autograph=False)
    for _ in range(STEPS):
        run()
    return state(model, optimizer)


def on_jax(folder: str) -> None:
    import jax

    from albert_tf.training.jax_devices import JaxDevices

    for replicas, parts, shards in SPLITS:
        task, model, optimizer, features = made()
        devices = JaxDevices(jax.devices()[:replicas], shard_optimizer=shards)
        run = devices.train_steps(task, model, optimizer, StepSettings(accumulation_steps=parts))
        run([(iter([features] * STEPS), STEPS)])
        np.savez(f"{folder}/{replicas}_{parts}_{shards}.npz", **state(model, optimizer))

    def compiled(function):
        found = jax.jit(function)()
        jax.effects_barrier()
        return lambda: found

    np.savez(f"{folder}/once.npz", found=doubled(compiled, devices._each_once, jax.debug.callback))


def doubled(compiled, each_once, call) -> list[Any]:
    """Doubles the numbers 0 to 4 on two replicas, and checks that each was doubled once."""
    calls: list[int] = []

    def double(x):
        call(lambda x: calls.append(int(x[0, 0])), x)
        return 2 * x

    found = compiled(lambda: each_once(double, [ops.full((1, 1), float(i)) for i in range(5)]))()
    assert sorted(calls) == [0, 1, 2, 3, 4]
    return found


def doubled_on_tensorflow() -> list[float]:
    strategy = strategy_of(2)

    def compiled(function):
        return tf.function(lambda: strategy.run(function), autograph=False)

    def call(function, x):
        tf.py_function(function, [x], [])

    found = doubled(compiled, muon._on_tensorflow, call)
    return [float(strategy.experimental_local_results(x)[1][0, 0]) for x in found]


def orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Runs the Newton-Schulz iteration on the singular values, in float64."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right


@pytest.mark.parametrize(
    ("shape", "exclude_names", "decay"), [((3, 5), "bias", 0.2), ((5, 3), "encoder/", 0.0)]
)
def test_three_updates_worked_out_by_hand(shape, exclude_names, decay):
    """In float64: clipping, momentum, decay, and AdamW's share of the rate for the bias."""
    rng = np.random.default_rng(11)
    shapes = {"encoder_kernel": shape, "encoder_bias": shape[1:]}
    expected = {name: rng.normal(size=size) for name, size in shapes.items()}
    with keras.name_scope("encoder"):
        variables = [keras.Variable(w.astype("float32"), name=n) for n, w in expected.items()]
    optimizer = create_optimizer(
        *(0.1, 10, 0, "muon"),
        exclude_names=exclude_names,
        momentum=0.8,
        adam_share=0.25,
        weight_decay_rate=0.2,
        beta_2=0.95,
    )
    moment, m, v = 0.0, 0.0, 0.0
    for step, size in enumerate((3.0, 0.001, 5.0)):
        grads = [size * rng.normal(size=size_of) for size_of in shapes.values()]
        optimizer.apply([tf.constant(g, tf.float32) for g in grads], variables)
        norm = np.sqrt(sum(np.sum(g**2) for g in grads))
        assert (norm > 1.0) == (size > 1.0)
        kernel, bias = (g / max(norm, 1.0) for g in grads)
        rate = 0.1 * (1 - step / 10)
        moment = 0.8 * moment + 0.2 * kernel
        update = 0.2 * np.sqrt(5) * orthogonal(0.8 * moment + 0.2 * kernel)
        w = expected["encoder_kernel"]
        expected["encoder_kernel"] = w - rate * (update + decay * w)
        m, v = 0.9 * m + 0.1 * bias, 0.95 * v + 0.05 * bias**2
        corrected = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.95 ** (step + 1))
        expected["encoder_bias"] -= 0.25 * rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-6)
        for variable, value in zip(variables, expected.values(), strict=True):
            tolerances.assert_close(variable, value, tolerances.HAND_UPDATE, variable.name)
    tolerances.assert_close(optimizer.muon_m[0], moment, tolerances.HAND_UPDATE)


def test_gradients_of_nothing_and_in_bfloat16():
    """A matrix with a gradient of zeros stays; moments are float32; a bias is no matrix."""
    variables = [keras.Variable(np.ones((2, 3), "float32"), name=f"kernel_{i}") for i in range(3)]
    variables.append(keras.Variable(np.ones(3, "float32"), name="kernel_bias"))
    optimizer = Muon(0.1, matrices="kernel", weight_decay_rate=0.0)
    rows = tf.constant(np.random.default_rng(2).normal(size=(2, 3)), tf.bfloat16)
    grads = tf.zeros((2, 3)), rows, tf.cast(rows, tf.float32), tf.ones(3)
    optimizer.apply(grads, variables)
    assert np.all(variables[0].numpy() == 1)
    np.testing.assert_array_equal(variables[1].numpy(), variables[2].numpy())
    assert np.all(variables[1].numpy() != 1)
    assert [getattr(m, "dtype", None) for m in optimizer.muon_m] == [*["float32"] * 3, None]


@pytest.mark.parametrize(
    ("changes", "groups"),
    [
        ({}, ["0_0"]),
        ({"num_hidden_groups": 2, "inner_group_num": 2}, ["0_0", "0_1", "1_0", "1_1"]),
        ({"embedding_size": 15}, ["0_0"]),
    ],
)
def test_matrices_of_the_encoder_are_muons(changes, groups, caplog):
    caplog.set_level("INFO", logger="absl")
    model = PretrainingTask(tiny.config(**changes)).build_model()
    optimizer = Muon(0.1)
    optimizer.build(model.trainable_variables)
    in_block = [f"attention_{{0}}/{name}" for name in ("query", "key", "value", "output")]
    in_block += [f"ffn_{{0}}/{name}" for name in ("intermediate", "output")]
    expected = {f"{name.format(group)}_kernel" for group in groups for name in in_block}
    expected |= (
        {"embedding_hidden_mapping_in_kernel"} if changes.get("embedding_size") != 15 else set()
    )
    pairs = list(zip(model.trainable_variables, optimizer.muon_m, optimizer.adam_v, strict=True))
    found = {v.path.removeprefix("albert/encoder/") for v, moment, _ in pairs if moment is not None}
    assert found == expected
    assert all((moment is None) == (second is not None) for _, moment, second in pairs)
    assert caplog.text.count(f"Muon: {len(expected)} matrices (albert/encoder/") == 1
    with pytest.raises(ValueError, match="Muon has no matrix here"):
        Muon(0.1).build(model.trainable_variables[:5])


def test_the_share_of_the_rate_is_a_setting(tmp_path):
    given = {"input_file": "x", "optimizer": "muon", "adam_share": 0.25, "precision": "bfloat16"}
    settings = tiny.parse(PretrainingSettings, **given, output_dir=tmp_path)
    trainer = settings.make_trainer(PretrainingTask(tiny.config()), toys.one_device())
    assert isinstance(trainer.optimizer, Muon) and trainer.optimizer.adam_share == 0.25


@pytest.mark.parametrize(("before", "after"), [("adamw", "muon"), ("muon", "adamw")])
def test_a_run_goes_on_from_another_optimizers_checkpoint(before, after, tmp_path, caplog):
    def optimizer(name):
        return lambda: create_optimizer(0.1, 10, 0, name)

    first = trainer_of(tiny.config(), tmp_path, 0, optimizer(before))
    for variable in first.optimizer.variables[2:]:
        variable.assign(np.full(variable.shape, 0.5))
    first.optimizer.iterations.assign(7)
    save(first)
    second = trainer_of(tiny.config(), tmp_path, 1, optimizer(after))
    assert second.initialise() and second.step == 7
    count = {"muon": 7, "adamw": 14}[after]
    slot = {"muon": "muon_m", "adamw": "adam_m"}[after]
    found = f"is another optimizer's: {count} variables begin at 0, as bert/encoder/"
    assert found in caplog.text and f"kernel/{slot}" in caplog.text
    values = [np.unique(variable.numpy()).tolist() for variable in second.optimizer.variables[2:]]
    assert values.count([0]) == count and values.count([0.5]) == len(values) - count
    # A checkpoint that lacks part of its own optimizer's state is damaged.
    stored = checkpoint.read(str(tmp_path))
    lost = next(name for name in stored if name.endswith("word_embeddings/adam_v"))
    checkpoint.save(str(tmp_path), 8, {n: x for n, x in stored.items() if n != lost}, 1)
    with pytest.raises(ValueError, match=f"lacks 1 variables, as {lost}"):
        second.initialise()


@pytest.fixture(scope="module")
def plain() -> dict[str, np.ndarray]:
    return on_tensorflow(1, 1)


def assert_alike(found, expected) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerances.REPLICA_WEIGHT)


@pytest.mark.slow
def test_replicas_and_parts_on_tensorflow(plain):
    for replicas in {replicas for replicas, *_ in SPLITS}:
        # Each strategy gets a process: two in one would share the keys of their collectives.
        how = 1, runs.FORK_SERVER, runs.split_cpu, (replicas,)
        with concurrent.futures.ProcessPoolExecutor(*how) as pool:
            for parts in {split[1] for split in SPLITS if split[0] == replicas}:
                assert_alike(pool.submit(on_tensorflow, replicas, parts).result(), plain)
            if replicas == 2:
                assert pool.submit(doubled_on_tensorflow).result() == [0, 2, 4, 6, 8]


@pytest.mark.slow
def test_replicas_and_parts_on_jax(plain, tmp_path):
    pytest.importorskip("jax")
    jax_process.finish(jax_process.start(on_jax, tmp_path, devices=8))
    for split in SPLITS:
        found = dict(np.load(tmp_path / f"{'_'.join(map(str, split))}.npz"))
        assert_alike(found, plain)
    assert np.load(tmp_path / "once.npz")["found"].ravel().tolist() == [0, 2, 4, 6, 8]
