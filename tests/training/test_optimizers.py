"""Optimizers: one update by hand, the release's ten steps, two replicas.

Not tested here: NCCL and TPU collectives, more than two replicas.
"""

import concurrent.futures
import contextlib
import functools
import json
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import albert_tf
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training.adamw import AdamW, Lamb
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.schedules import WarmupPolynomialDecay
from albert_tf.training.tensorflow_devices import TrainStep
from tests.kit import goldens, tiny, tolerances
from tests.kit import pretraining_runs as runs
from tests.training import toys


def _variable(path, value):
    *scopes, name = path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, name=name)


@pytest.mark.parametrize("case", range(7))
def test_schedule_is_the_releases(golden, case):
    cases = json.loads((golden / "optim/lr_schedules.json").read_text())
    assert len(cases) == 7
    settings = cases[case]
    steps, expected = settings.pop("global_step"), settings.pop("learning_rate")
    schedule = WarmupPolynomialDecay(**settings)
    config = json.loads(json.dumps(keras.optimizers.schedules.serialize(schedule)))
    restored = keras.optimizers.schedules.deserialize(config)
    assert isinstance(restored, WarmupPolynomialDecay)
    assert restored.get_config() == schedule.get_config()
    traced, optimizer = tf.function(schedule), create_optimizer(**settings)
    for step, rate in zip(steps, expected, strict=True):
        limit = tolerances.SCHEDULE_RELATIVE * settings["init_lr"]
        for got in (schedule(step), traced(tf.constant(step, tf.int64))):
            assert got.dtype == tf.float32
            assert abs(float(got) - rate) <= limit, (settings, step)
        optimizer.iterations.assign(step)
        assert abs(float(optimizer.learning_rate) - rate) <= limit, (settings, step)


@pytest.mark.parametrize(
    ("schedule", "decay_steps", "power", "first"),
    [
        ("linear", 7, 1.0, 0),
        ("constant", 7, 1.0, 40),
        ("wsd", None, 1.0, 36),  # A tenth of all.
        ("wsd", 7, 1.0, 33),
        ("wsd", 7, 2.0, 33),
        ("wsd", 41, 1.0, 0),
    ],
)
def test_what_follows_the_warm_up(schedule, decay_steps, power, first):
    how = {"poly_power": power, "schedule": schedule, "decay_steps": decay_steps}
    assert float(create_optimizer(0.03, 40, None, **how).learning_rate) == np.float32(0.03)
    optimizer = create_optimizer(0.03, 40, 5, **how)
    for step in range(45):
        left = 1 if step < first or first == 40 else max(40 - step, 0) / (40 - first)
        expected = 0.03 * (step / 5 if step < 5 else left**power)
        optimizer.iterations.assign(step)
        found = float(optimizer.learning_rate)
        assert abs(found - expected) <= tolerances.SCHEDULE_RELATIVE * 0.03, step
    assert (found == 0) == (schedule != "constant")


@pytest.mark.parametrize(
    ("steps", "changes", "warns"),
    [
        (6, {}, False),
        (7, {}, True),
        (4, {"start_warmup_step": 3}, True),
        (0, {"start_warmup_step": 9}, False),
        (6, {"schedule": "constant"}, False),
        (7, {"schedule": "constant"}, True),
        (4, {"schedule": "wsd", "decay_steps": 3}, False),
        (5, {"schedule": "wsd", "decay_steps": 3}, True),
    ],
)
def test_a_warm_up_that_never_ends_is_warned_of(steps, changes, warns, caplog):
    create_optimizer(0.5, 7, steps, **changes)
    assert ("the learning rate never gets to 0.5" in caplog.text) == warns


@pytest.mark.parametrize("clipped", ["clipped", "unclipped"])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_toy_problem_goes_the_releases_way(golden, optimizer, clipped):
    """Variables and moments after each of ten steps.

    The release's norm counts unsummed sparse rows, so clip by the stored norm, not by ours.
    """
    toy = f"{optimizer}_{clipped}"
    settings = json.loads((golden / "optim/toys.json").read_text())[toy]
    stored = goldens.arrays(golden / f"optim/toy_{toy}.npz")
    names = [key.removeprefix("init/") for key in stored if key.startswith("init/")]
    variables = [_variable(name, stored[f"init/{name}"]) for name in names]
    assert [variable.path for variable in variables] == names
    opt = goldens.optimizer(settings, clip_norm=None)
    opt.build(variables)

    for step, norm in enumerate(settings["global_norm_used_for_clipping"]):
        rate = settings["learning_rate"][step]
        assert abs(float(opt.learning_rate) - rate) <= tolerances.SCHEDULE_RELATIVE * rate
        grads = [_toy_gradient(name, v, stored) for name, v in zip(names, variables, strict=True)]
        opt.apply([grad if grad is None else grad / max(1.0, norm) for grad in grads])
        for name, *found in zip(names, variables, opt.adam_m, opt.adam_v, strict=True):
            key = f"step{step + 1}/{name}"
            for end, value in zip(("", "/adam_m", "/adam_v"), found, strict=True):
                if end and name == "toy/unused/kernel":
                    assert not np.any(value)
                else:
                    tolerances.assert_close(value, stored[key + end], tolerances.TOY_UPDATE, key)
    assert int(opt.iterations) == 10


def _toy_gradient(name, variable, stored):
    if name == "toy/unused/kernel":
        return None
    if name == "toy/table":
        grad = np.zeros(variable.shape, np.float32)
        np.add.at(grad, stored["table_ids"], stored["table_coef"])
        return tf.constant(grad)
    return stored[f"lin/{name}"] + stored[f"quad/{name}"] * variable


OTHERS = {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3, "weight_decay_rate": 0.2}


@pytest.mark.parametrize("changes", [{}, {"bias_correction": True}, OTHERS])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_three_updates_worked_out_by_hand(optimizer, changes):
    """Warm-up, clip, moments, decay, exclusions and trust ratio in float64 numpy."""
    rng = np.random.default_rng(11)
    shapes = {"net/kernel": (2, 3), "net/bias": (5,), "net/LayerNorm/gamma": (7,)}
    expected = {path: rng.normal(size=shape) for path, shape in shapes.items()}
    variables = [_variable(path, value.astype("float32")) for path, value in expected.items()]
    m, v = dict.fromkeys(shapes, 0.0), dict.fromkeys(shapes, 0.0)
    opt = create_optimizer(0.02, 10, 2, optimizer, **changes)
    # The release's settings, unless changed.
    b1, b2 = changes.get("beta_1", 0.9), changes.get("beta_2", 0.999)
    epsilon, decay = changes.get("epsilon", 1e-6), changes.get("weight_decay_rate", 0.01)
    corrects = changes.get("bias_correction", False)

    # 2 steps of warm-up to 0.02; then 2 of the decay's 10 steps are over.
    for step, (rate, size) in enumerate([(0.0, 3.0), (0.01, 0.001), (0.016, 5.0)]):
        grads = {path: size * rng.normal(size=shape) for path, shape in shapes.items()}
        opt.apply([tf.constant(g, tf.float32) for g in grads.values()], variables)
        norm = np.sqrt(sum(np.sum(g**2) for g in grads.values()))
        assert (norm > 1.0) == (size > 1.0)
        for path, w in expected.items():
            g = grads[path] / norm if norm > 1.0 else grads[path]
            m[path] = b1 * m[path] + (1 - b1) * g
            v[path] = b2 * v[path] + (1 - b2) * g**2
            correct_m = 1 - b1 ** (step + 1) if corrects else 1.0
            correct_v = 1 - b2 ** (step + 1) if corrects else 1.0
            update = m[path] / correct_m / (np.sqrt(v[path] / correct_v) + epsilon)
            if path == "net/kernel":
                update += decay * w
                if optimizer == "lamb":
                    update *= np.linalg.norm(w) / np.linalg.norm(update)
            expected[path] = w - rate * update
        for path, variable in zip(shapes, variables, strict=True):
            tolerances.assert_close(variable, expected[path], tolerances.HAND_UPDATE, path)


@pytest.mark.parametrize(
    ("path", "excluded"),
    [
        ("albert/encoder/group_0/inner_group_0/attention_1/self/query/bias", True),
        ("cls/predictions/output_bias", True),
        ("albert/ffn/LayerNorm_1_gamma", True),
        ("toy/rebiased_matrix/kernel", True),
        ("albert/layer_norm_7/scale:0/replica_1:0", True),
        ("albert/pooler/bias/replica_1:0", True),
        ("albert/pooler/kernel/replica_1:0", False),
        ("albert/embeddings/word_embeddings", False),
        ("albert/layernorm/gamma", False),
        ("cls/seq_relationship/output_weights", False),
        ("media_bias/classifier/output_weights", False),
        ("media_bias/albert/encoder/LayerNorm_1_gamma", True),
        ("dense/bias", True),
    ],
)
def test_names_are_excluded_wherever_they_hold_a_pattern(path, excluded):
    for names in ({"path": path, "name": "kernel"}, {"name": path}):
        assert AdamW(0.1).is_excluded(types.SimpleNamespace(**names)) is excluded


def test_a_string_is_one_pattern_and_one_with_a_slash_is_of_paths():
    variables = [_variable(f"net/encoder/dense/{name}", np.ones(2)) for name in ("kernel", "bias")]
    of = {"bias": [False, True], "net/enc": [True, True], "enc": [False, False]}
    for names, expected in of.items():
        optimizer = AdamW(0.1, exclude_names=names)
        assert [optimizer.is_excluded(variable) for variable in variables] == expected
        assert AdamW.from_config(optimizer.get_config()).exclude_names == (names,)


def test_variable_without_gradient_is_left_alone():
    used, unused = (_variable(f"{n}/kernel", np.full((2, 3), 2.0, "float32")) for n in "ab")
    opt = Lamb(0.1)
    opt.apply([tf.ones((2, 3)), None], [used, unused])  # Warnings are errors here.
    assert np.all(np.asarray(unused) == 2.0) and not np.any(opt.adam_m[1])
    assert np.all(np.asarray(used) < 2.0)
    with pytest.raises(ValueError, match="No variable has a gradient"):
        opt.apply([None, None])


def test_sparse_gradient_is_clipped_by_its_summed_rows():
    """Row 4 gets 3 and -2, which sum to 1; its norm is 1, so that nothing is clipped."""
    table = _variable("table", np.zeros((5, 1), "float32"))
    opt = AdamW(1.0, global_clipnorm=1.0)
    opt.apply([tf.IndexedSlices(tf.constant([[3.0], [-2.0]]), tf.constant([4, 4]))], [table])
    np.testing.assert_array_equal(opt.adam_m[0][:, 0], np.float32([0, 0, 0, 0, 0.1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "sgd"}, r"`optimizer` must be one of \['adamw', 'lamb', 'muon'\]"),
        ({"schedule": "cosine"}, r"`schedule` must be one of \['constant', 'linear', 'wsd'\], got"),
        ({"num_train_steps": 0}, "`num_train_steps` must be at least 1, got 0"),
        ({"num_warmup_steps": -1}, "`num_warmup_steps` must be at least 0, got -1"),
        ({"start_warmup_step": -2}, "`start_warmup_step` must be at least 0, got -2"),
        ({"poly_power": 0.0}, r"`poly_power` must be above 0 \(1.0 is linear\), got 0.0"),
        ({"weight_decay": 0.01}, "use `weight_decay_rate` instead"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    good = {"init_lr": 0.1, "num_train_steps": 7, "num_warmup_steps": 2}
    with pytest.raises(ValueError, match=message):
        create_optimizer(**{**good, **arguments})


def test_keras_exclusions_from_its_own_decay_are_refused():
    for optimizer in (AdamW(0.1), Lamb(0.1)):
        with pytest.raises(ValueError, match="`exclude_names`"):
            optimizer.exclude_from_weight_decay(var_names=["bias"])


def dense(optimizer) -> keras.Model:
    """Returns two dense layers with one output, which run eagerly, for a few steps."""
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


@pytest.mark.parametrize(
    ("optimizer", "schedule"), [("adamw", "wsd"), ("lamb", "linear"), ("muon", "wsd")]
)
def test_fit_save_and_load_go_on_where_they_were(tmp_path, optimizer, schedule):
    x = np.random.default_rng(5).normal(size=(14, 3)).astype("float32")
    y = x @ np.float32([[1.0], [-2.0], [0.5]])
    how = {"schedule": schedule, "decay_steps": 12}
    how |= {"matrices": r"dense[^/]*/kernel"} if optimizer == "muon" else {}
    peak = 0.1 if optimizer == "muon" else 0.05
    model = dense(create_optimizer(peak, 30, 3, optimizer, **how))
    losses = model.fit(x, y, batch_size=7, epochs=11, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert int(loaded.optimizer.iterations) == 22
    # 4 of 12 steps of decay are over, and 22 of all 30.
    rate = peak * {"wsd": 8 / 12, "linear": 8 / 30}[schedule]
    assert float(loaded.optimizer.learning_rate) == pytest.approx(rate)
    for one in (model, loaded):
        one.train_on_batch(x, y)
    weights = [*model.weights, *model.optimizer.variables]
    for ours, theirs in zip(weights, [*loaded.weights, *loaded.optimizer.variables], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
def test_schedules_count_updates_of_several_batches(optimizer):
    """Accumulated halves of a batch change weights as the whole does, also in warm-up and decay."""
    x = np.random.default_rng(5).normal(size=(14, 3)).astype("float32")

    def fit(batch_size, **arguments):
        how = {"matrices": r"dense[^/]*/kernel"} if optimizer == "muon" else {}
        model = dense(create_optimizer(0.05, 8, 2, optimizer, **how, **arguments))
        model.fit(x, x[:, :1], batch_size=batch_size, epochs=7, shuffle=False, verbose=0)
        return float(model.optimizer.learning_rate), model.get_weights()

    (rate, whole), (same_rate, parts) = fit(14), fit(7, gradient_accumulation_steps=2)
    assert rate == same_rate == pytest.approx(0.05 / 8)
    for expected, found in zip(whole, parts, strict=True):
        tolerances.assert_close(found, expected, tolerances.HAND_UPDATE)


# The release's ten steps of the model; lamb_onehot is in test_train_step.py.


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return albert_tf.AlbertForPreTraining(goldens.config("base"))


@pytest.fixture(scope="module")
def gradients(model):
    """Traced once for all cases, which have batches of one shape."""
    task = PretrainingTask(model.config)

    def losses_and_gradients(batch):
        with tf.GradientTape() as tape:
            losses = task.losses(task.loss_sums(model(batch), batch), task.loss_weights(batch))
            total = tf.add_n(losses)
        grads = tape.gradient(total, model.trainable_variables)
        return [*losses, total], [*map(tf.convert_to_tensor, grads)]

    return tf.function(losses_and_gradients, autograph=False)


@pytest.mark.usefixtures("every_chain_fused")
@pytest.mark.parametrize("case", ["adamw_onehot", "adamw_a", "lamb_a"])
def test_model_goes_the_releases_way(model, gradients, case):
    """Without one-hot embeddings, the release's norm has a quirk: it clips here by hand."""
    settings, params = goldens.trajectory(case)
    by_hand = not settings["use_one_hot_embeddings"]
    albert_tf.load_weights(model, goldens.checkpoint("base"))
    optimizer = goldens.optimizer(settings, clip_norm=None if by_hand else 1.0)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def update(grads, norm):
        optimizer.apply([grad / ops.maximum(norm, 1.0) for grad in grads])

    assert any(name.startswith("after10/") for name in params)
    for i, (stored, batch) in enumerate(zip(settings["steps"], goldens.batches(), strict=True)):
        losses, grads = gradients({name: tf.constant(value) for name, value in batch.items()})
        update(grads, tf.constant(stored["global_norm_used_for_clipping"] if by_hand else 1.0))
        for name, loss in zip(("masked_lm", "sentence_order", "total"), losses, strict=True):
            tolerances.assert_close(loss, stored[f"{name}_loss"], tolerances.TRAJECTORY_LOSS)
        goldens.check_weights(params, i + 1, tiny.weights(model))


@pytest.fixture(scope="module")
def on_two_replicas():
    """A separate process: the number of devices must be set before TensorFlow starts."""
    settings = 1, runs.FORK_SERVER, runs.split_cpu, (2,)
    with concurrent.futures.ProcessPoolExecutor(*settings) as executor:
        yield lambda function, *args: executor.submit(function, *args).result()


@functools.cache
def _strategy(replicas):
    """One strategy per process: the collectives of two would share their keys."""
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def _train(replicas, optimizer):
    """Returns weights and moments of each replica after three steps from weights of ones.

    Each of two replicas hands in its share of the gradients, which a step of its own does not:
    `_slope_after_a_step`.
    """
    strategy, rng, steps = _strategy(replicas), np.random.default_rng(13), 3
    shapes = ((2, 3), (5,))
    # Indexed by step and replica; their global norm is far above 1.
    shares = [tf.constant(rng.normal(size=(steps, 2, *shape)), tf.float32) for shape in shapes]
    with strategy.scope():
        variables = [keras.Variable(np.ones(shape, "float32"), name="kernel") for shape in shapes]
        opt = create_optimizer(0.1, 7, 2, optimizer)
        opt.build(variables)

    def replica_step(step):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        whole = [share[step, 0] + share[step, 1] for share in shares]
        opt.apply([share[step, replica] for share in shares] if replicas == 2 else whole)

    run = tf.function(lambda step: strategy.run(replica_step, (step,)), autograph=False)
    for step in range(steps):
        run(tf.constant(step))
    assert int(keras.ops.convert_to_numpy(opt.iterations)) == steps
    local = strategy.experimental_local_results
    state = [*variables, *opt.adam_m, *opt.adam_v]
    return [[np.asarray(value) for value in local(variable.value)] for variable in state]


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_two_replicas_update_as_one(on_two_replicas, optimizer):
    """Equal to the last bit."""
    one, two = (on_two_replicas(_train, count, optimizer) for count in (1, 2))
    for (expected,), locals_ in zip(one, two, strict=True):
        assert np.any(expected != 1.0)
        np.testing.assert_array_equal(locals_, [expected, expected])


def _slope_after_a_step(replicas):
    """Returns the weight of y = a * x, from 1, after a step of Keras' own optimizer."""
    strategy, task = _strategy(replicas), toys.SlopeTask()
    with strategy.scope():
        model = task.build_model()
        opt = keras.optimizers.SGD(0.25, momentum=0.9, global_clipnorm=1.0)
        opt.build(model.trainable_variables)
    step = TrainStep(task, model, opt)
    features = {"x": np.float32([1, 2, 3, 5]), "weights": np.ones(4, "float32")}
    shares = toys.shared(strategy, features)
    tf.function(lambda: strategy.run(step, (shares,)), autograph=False)()
    return float(model.a.numpy())


def test_a_step_sums_over_replicas_once_whatever_the_optimizer(on_two_replicas):
    """The gradient is clipped to 1: if Keras summed it once more, it would be 2."""
    assert on_two_replicas(_slope_after_a_step, 1) == 0.75
    assert on_two_replicas(_slope_after_a_step, 2) == 0.75
