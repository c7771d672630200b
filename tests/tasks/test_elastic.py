"""Training for several depths: rows after fewer layers, losses and gradients, draws, scores.

Splits of a batch are in test_replica_combinations.py, resumes in test_any_optimizer.py, JAX in
test_run_pretraining_jax.py. Not tested here: GPUs, TPUs, how good a depth is.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.tasks.elastic import ElasticTask
from albert_tf.tasks.pretraining import PretrainingTask
from tests.kit import pretraining_runs as runs
from tests.kit import tiny, tolerances
from tests.kit.files import refused
from tests.kit.tolerances import assert_close

LAYERS, ROWS = 4, 3
# Each row is read after two numbers of layers of its own.
DEPTHS = np.array([[1, 3], [2, 1], [3, 2]], "int32")


def features(rows: int = ROWS, packed: int = 0) -> dict[str, np.ndarray]:
    examples = runs.examples(rows * (packed or 1), length=12)
    if packed:
        examples = [
            {n: np.pad(x, (0, x.size)) if x.ndim else x for n, x in e.items()} for e in examples
        ]
        examples = runs.packed(examples, packed)[:rows]
    del examples[0]["token_boundary"]
    return {name: np.stack([row[name] for row in examples]) for name in examples[0]}


def inputs_of(name: str) -> dict[str, np.ndarray]:
    found = features(packed=2 if name == "packed" else 0)
    ids = {n: found[n] for n in ("input_ids", "input_mask", "segment_ids")}
    if "pretraining" in name or name in ("packed", "looped"):
        more = ("masked_lm_positions", *(["cls_positions"] if name == "packed" else []))
        return {**ids, **{n: found[n] for n in more}}
    if name == "choice":
        return {n: np.stack([x, x[:, ::-1]], axis=1) for n, x in ids.items()}
    if name.startswith("v2"):
        ids["p_mask"] = found["segment_ids"].astype("int32")
    if name == "v2 trained":
        ids["start_positions"] = np.array([2, 0, 5], "int32")
    return ids


MODELS = {
    "pretraining": (albert_tf.AlbertForPreTraining, {}, {}),
    "pretraining, two blocks": (albert_tf.AlbertForPreTraining, {"inner_group_num": 2}, {}),
    "packed": (albert_tf.AlbertForPreTraining, {}, {}),
    "looped": (albert_tf.AlbertForPreTraining, {}, {"recompute": True}),
    "text": (albert_tf.AlbertForSequenceClassification, {}, {"num_labels": 3}),
    "tokens": (albert_tf.AlbertForTokenClassification, {}, {"num_labels": 3}),
    "choice": (albert_tf.AlbertForMultipleChoice, {}, {}),
    "spans": (albert_tf.AlbertForQuestionAnswering, {}, {}),
    "v2": (albert_tf.AlbertForQuestionAnsweringV2, {}, {}),
    "v2 trained": (albert_tf.AlbertForQuestionAnsweringV2, {}, {}),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_after_fewer_layers_are_those_of_a_model_with_so_many(name):
    cls, sizes, arguments = MODELS[name]
    inputs = inputs_of(name)

    def outputs_of(layers: int, **more: np.ndarray) -> dict[str, np.ndarray]:
        model = cls(tiny.config(num_hidden_layers=layers, **sizes), **arguments)
        if more:
            model.albert.readable_depths = (3, 1, 2)
        outputs = tiny.randomise(model)({**inputs, **more})
        outputs = outputs if isinstance(outputs, dict) else {"logits": outputs}
        others = ("all_encoder_layers", "embedding_output")
        return {n: np.array(x) for n, x in outputs.items() if n not in others}

    found = outputs_of(LAYERS, depths=DEPTHS)
    by_layers = {layers: outputs_of(layers) for layers in range(1, LAYERS + 1)}
    for output, values in found.items():
        expected = [by_layers[LAYERS][output]]
        for column in DEPTHS.T:
            expected.append(np.stack([by_layers[n][output][i] for i, n in enumerate(column)]))
        assert_close(values, np.concatenate(expected), tolerances.LOSS, output)


@pytest.mark.parametrize("depth", [0, LAYERS])
def test_a_depth_that_the_model_lacks_is_refused(depth):
    model = albert_tf.AlbertModel(tiny.config(num_hidden_layers=LAYERS))
    inputs = {"input_ids": np.ones((1, 12), "int32"), "depths": np.array([[depth]])}
    with refused("depths", exception=ValueError):
        model(inputs)


def losses_and_gradients(task, layers: int, step: int | None = None):
    """Returns the sums of a batch's losses, and the gradient of their total by each weight."""
    model = tiny.randomise(PretrainingTask(tiny.config(num_hidden_layers=layers)).build_model())
    batch = {name: tf.constant(value) for name, value in features().items()}
    batch = task.with_drawn(batch, 5, step)
    with tf.GradientTape() as tape:
        outputs = model(batch, training=True)
        sums = task.loss_sums(outputs, batch)
        total = tf.add_n(list(sums.values()))
    grads = tape.gradient(total, [variable.value for variable in model.trainable_variables])
    return sums, [tf.convert_to_tensor(grad).numpy() for grad in grads], outputs


def test_the_loss_and_its_gradient_are_those_of_both_depths():
    task = ElasticTask(PretrainingTask(tiny.config()), ("1", "3"), weight=0.5)
    drawn = int(task.with_drawn(features(), 5, tf.constant(7))["depths"][0, 0])
    sums, grads, _ = losses_and_gradients(task, LAYERS, tf.constant(7))
    parts = {depth: losses_and_gradients(task.task, depth) for depth in (LAYERS, drawn)}
    for name in task.task.loss_names:
        assert_close(sums[name], parts[LAYERS][0][name], tolerances.LOSS)
        assert_close(sums[f"shallow_{name}"], 0.5 * parts[drawn][0][name], tolerances.LOSS)
    for grad, full, shallow in zip(grads, parts[LAYERS][1], parts[drawn][1], strict=True):
        assert_close(grad, full + 0.5 * shallow, tolerances.GRADIENT)


def test_without_any_masked_piece_the_losses_are_zero():
    task = ElasticTask(PretrainingTask(tiny.config()), (1,))
    weights = {name: 0.0 if "masked" in name else 1.0 for name in task.loss_names}
    assert task.losses(dict.fromkeys(task.loss_names, 0.0), weights) == [0, 0, 0, 0]


def test_depths_are_drawn_by_seed_and_step():
    task = ElasticTask(PretrainingTask(tiny.config()), (1, 2, 5))

    def draws(seed: int, steps: range) -> list[int]:
        found = [task.with_drawn(features(), seed, tf.constant(step)) for step in steps]
        assert all(len({*each["depths"].numpy().flat}) == 1 for each in found)
        return [int(each["depths"][0, 0]) for each in found]

    first = draws(5, range(300))
    assert draws(5, range(200, 300)) == first[200:]
    assert draws(6, range(300)) != first
    counts = collections.Counter(first)
    assert counts.keys() == {1, 2, 5} and min(counts.values()) > 70
