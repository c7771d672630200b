import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import albert_tf
from albert_tf import conversion
from albert_tf.tasks.pretraining import PretrainingTask
from albert_tf.training.optimizers import create_optimizer
from albert_tf.training.tensorflow_devices import TrainStep
from tests.kit import goldens, tiny, tolerances
from tests.kit.tolerances import assert_close


def losses(task: PretrainingTask, outputs: dict, features: dict) -> dict:
    """Divides the sums by the weights, as the Trainer does."""
    sums, weights = task.loss_sums(outputs, features), task.loss_weights(features)
    each = {name: sums[name] / (weights[name] + task.loss_epsilon.get(name, 0.0)) for name in sums}
    return {**each, "total_loss": sum(each.values())}


PLAIN = [(variant, "") for variant in goldens.VARIANTS]


@pytest.mark.parametrize(
    "variant, how", [*PLAIN, ("base", "compiled"), ("groups2_inner2", "recomputed")]
)
def test_losses_and_gradients_are_the_releases(variant, how):
    task, features = PretrainingTask(goldens.config(variant)), goldens.inputs(variant)
    model = goldens.pretrained(variant, recompute=how == "recomputed")
    named = conversion.named_weights(model)

    def forward_and_backward():
        with tf.GradientTape() as tape:
            each = losses(task, model(features, training=True), features)
        values = {name: variable.value for name, variable in named.items()}
        gradients = tape.gradient(each["total_loss"], values)
        return each, {name: tf.convert_to_tensor(value) for name, value in gradients.items()}

    if how == "compiled":
        forward_and_backward = tf.function(forward_and_backward, jit_compile=True)
    each, gradients = forward_and_backward()
    expected = goldens.outputs(variant)
    for name, loss in each.items():
        assert_close(loss, expected[name], tolerances.LOSS)
    expected = goldens.arrays(goldens.FOLDER / variant / "grads.npz")
    assert set(gradients) == set(expected)
    for name, gradient in gradients.items():
        assert_close(gradient, expected[name], tolerances.GRADIENT, name)


@pytest.fixture(scope="module")
def task() -> PretrainingTask:
    return PretrainingTask(goldens.config("base"))


@pytest.fixture(scope="module")
def model() -> albert_tf.AlbertForPreTraining:
    return goldens.pretrained("base")


def test_without_any_masked_piece_the_loss_is_zero(task, model):
    features = goldens.inputs("base")
    features["masked_lm_weights"] = np.zeros_like(features["masked_lm_weights"])
    each = losses(task, model(features), features)
    expected = goldens.arrays(goldens.FOLDER / "base" / "edge_cases.npz")
    assert float(each["masked_lm_loss"]) == expected["zero_weights/masked_lm_loss"] == 0
    assert_close(each["total_loss"], expected["zero_weights/total_loss"], tolerances.LOSS)


def test_metrics_over_ten_batches_are_the_releases(task, model):
    stored = json.loads((goldens.FOLDER / "base" / "eval_metrics.json").read_text())
    labels = goldens.arrays(goldens.FOLDER / "base" / "eval_metrics_labels.npz")
    totals: dict[str, np.ndarray] = {}
    for i, features in enumerate(goldens.batches()):
        features["masked_lm_ids"] = labels[f"batch{i}/masked_lm_ids"]
        outputs = model(features)
        total = losses(task, outputs, features)["total_loss"]
        assert_close(total, stored["per_batch"][i]["total_loss"], tolerances.LOSS)
        for name, pair in task.metrics(outputs, features).items():
            totals[name] = totals.get(name, 0) + np.array([float(part) for part in pair])
    assert set(totals) == set(stored["metrics_after_ten_batches"])
    for name, expected in stored["metrics_after_ten_batches"].items():
        assert_close(totals[name][0] / totals[name][1], expected, tolerances.LOSS)


def test_rows_that_fill_up_a_batch_count_nothing(task, model):
    features = goldens.inputs("base")
    shorter = {name: value[:3] for name, value in features.items()}
    filled = {**features, "example_weights": np.array([1, 1, 1, 0], "float32")}
    expected = task.metrics(model(shorter), shorter)
    for name, pair in task.metrics(model(filled), filled).items():
        assert_close(pair, [float(part) for part in expected[name]], tolerances.LOSS)
    for name, weight in task.loss_weights(filled).items():
        assert float(weight) == float(task.loss_weights(shorter)[name])


def test_sums_add_up_over_the_parts_of_a_batch(task, model):
    features = goldens.inputs("base")
    parts = [{name: value[rows] for name, value in features.items()} for rows in ([0], [1, 2, 3])]
    sums = [task.loss_sums(model(part), part) for part in parts]
    for name, whole in task.loss_sums(model(features), features).items():
        # The sums have 20 terms of about 7, hence the wider tolerance.
        assert_close(sum(float(part[name]) for part in sums), float(whole), 10 * tolerances.LOSS)


@pytest.mark.parametrize(("dtype", "recompute"), [("float32", True), ("mixed_bfloat16", False)])
def test_build_model(dtype, recompute):
    config = goldens.config("inner2")
    built = PretrainingTask(config, dtype=dtype, recompute=recompute).build_model()
    assert isinstance(built, albert_tf.AlbertForPreTraining)
    assert built.config == config
    assert built.dtype_policy.name == built.albert.encoder.dtype_policy.name == dtype
    assert built.recompute == built.albert.encoder.recompute == recompute


@pytest.mark.parametrize("weight", [0.5, 1.0, 3.0])
def test_the_weight_of_sentence_order_is_a_factor(task, model, weight):
    features = goldens.inputs("base")
    outputs = model(features)
    expected = dict(goldens.outputs("base"))
    each = losses(PretrainingTask(task.config, sentence_order_weight=weight), outputs, features)
    assert_close(each["masked_lm_loss"], expected["masked_lm_loss"], tolerances.LOSS)
    scaled = weight * expected["sentence_order_loss"]
    assert_close(each["sentence_order_loss"], scaled, 3 * tolerances.LOSS)


def test_a_weight_of_one_changes_no_bit(task, model):
    """Losses and gradients equal those of the sums without a factor."""
    features = {name: tf.constant(value) for name, value in goldens.inputs("base").items()}

    def unweighted(outputs):
        loss = functools.partial(ops.sparse_categorical_crossentropy, from_logits=True)
        pieces = loss(features["masked_lm_ids"], outputs["masked_lm_logits"])
        orders = loss(features["sentence_order_labels"], outputs["sentence_order_logits"])
        return [ops.sum(pieces * features["masked_lm_weights"]), ops.sum(orders)]

    def differentiate(loss_sums):
        with tf.GradientTape() as tape:
            sums = loss_sums(model(features, training=False))
            total = sums[0] + sums[1]
        gradients = tape.gradient(total, [w.value for w in model.trainable_variables])
        return [*sums, *map(tf.convert_to_tensor, gradients)]

    assert task.sentence_order_weight == 1
    found = differentiate(lambda outputs: list(task.loss_sums(outputs, features).values()))
    for actual, expected in zip(found, differentiate(unweighted), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_masked_lm_alone_leaves_pooler_and_order_head_as_they_are():
    """Neither gradients nor decay nor moments change them; all other weights change."""
    task = PretrainingTask(goldens.config("base"), sentence_order_weight=0)
    assert task.loss_names == ("masked_lm_loss",)
    model = goldens.pretrained("base")
    before = tiny.weights(model)
    optimizer = create_optimizer(0.01, 10, 0)
    optimizer.build(model.trainable_variables)
    step = TrainStep(task, model, optimizer)
    features = {name: tf.constant(value) for name, value in goldens.inputs("base").items()}
    loss, masked_lm, *_ = step(features).numpy()
    step(features)
    assert loss == masked_lm
    assert_close(loss, goldens.outputs("base")["masked_lm_loss"], tolerances.LOSS)
    after = tiny.weights(model)
    same = {name for name in before if np.array_equal(before[name], after[name])}
    heads = {name for name in before if "pooler" in name or "seq_relationship" in name}
    assert same == heads and len(heads) == 4
    idle = [not moment.numpy().any() for moment in optimizer.adam_m]
    assert sum(idle) == 4
    assert set(task.metrics(model(features), features)) == {"masked_lm_loss", "masked_lm_accuracy"}
