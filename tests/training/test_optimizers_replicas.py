"""The update on two replicas is the update on one device, clip included.

Can't see: NCCL and TPU collectives, more than two replicas.
"""

from __future__ import annotations

import concurrent.futures
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.training.optimizers import create_optimizer
from tests import pretraining_runs as runs
from tests import tolerances

SHAPES = {"kernel": (2, 3), "bias": (5,)}
STEPS = 3


@pytest.fixture(scope="module")
def on_two_replicas():
    """A process of its own: the number of devices is settled before TensorFlow starts."""
    with concurrent.futures.ProcessPoolExecutor(
        1, runs.FORK_SERVER, runs.split_cpu, (2,)
    ) as executor:
        yield lambda function, *args: executor.submit(function, *args).result()


@functools.cache
def _strategy(replicas):
    """One for the process: the collectives of two strategies would share their keys."""
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def _shares():
    """Gradients `<float32>[step, replica, ...]` whose global norm is far beyond 1."""
    rng = np.random.default_rng(13)
    return {
        name: rng.normal(size=(STEPS, 2, *shape)).astype("float32")
        for name, shape in SHAPES.items()
    }


def _train(replicas, optimizer, handed):
    """Returns weights and moments of each replica after three steps from weights of ones."""
    strategy = _strategy(replicas)
    shares = {name: tf.constant(share) for name, share in _shares().items()}
    with strategy.scope():
        variables = [
            keras.Variable(np.ones(shape, "float32"), name=name) for name, shape in SHAPES.items()
        ]
        opt = create_optimizer(0.1, 7, 2, optimizer, sum_over_replicas=handed == "share")
        opt.build(variables)

    def replica_step(step):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        if handed == "share" and replicas == 2:
            grads = [share[step, replica] for share in shares.values()]
        else:
            grads = [share[step, 0] + share[step, 1] for share in shares.values()]
        opt.apply(grads)

    run = tf.function(lambda step: strategy.run(replica_step, (step,)), autograph=False)
    for step in range(STEPS):
        run(tf.constant(step))
    assert int(keras.ops.convert_to_numpy(opt.iterations)) == STEPS
    return [
        [np.asarray(local) for local in strategy.experimental_local_results(variable.value)]
        for variable in [*variables, *opt.adam_m, *opt.adam_v]
    ]


@pytest.mark.parametrize("handed", ["share", "sum"])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_two_replicas_update_as_one(on_two_replicas, optimizer, handed):
    """Whether a replica hands in its share or the sum: equal to the last bit."""
    one = on_two_replicas(_train, 1, optimizer, handed)
    two = on_two_replicas(_train, 2, optimizer, handed)
    for (expected,), locals_ in zip(one, two, strict=True):
        assert np.any(expected != 1.0)
        assert len(locals_) == 2
        for got in locals_:
            np.testing.assert_array_equal(got, expected)


def _fit(replicas):
    keras.utils.set_random_seed(3)
    x = np.random.default_rng(3).normal(size=(14, 3)).astype("float32")
    with _strategy(replicas).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5), keras.layers.Dense(1)])
        model.compile(create_optimizer(0.05, 20, 2), keras.losses.MeanSquaredError())
        model.fit(x, 50.0 * x[:, :1], batch_size=14, epochs=5, shuffle=False, verbose=0)
    return [np.asarray(variable) for variable in model.weights]


def test_fit_on_two_replicas_clips_the_whole_gradient(on_two_replicas):
    one, two = on_two_replicas(_fit, 1), on_two_replicas(_fit, 2)
    for expected, got in zip(one, two, strict=True):
        assert np.max(np.abs(got - expected)) <= tolerances.REPLICA_WEIGHT
