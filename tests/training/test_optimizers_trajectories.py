"""Ten steps of the whole model beside the release's: losses before and weights after."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import albert_tf
from albert_tf import conversion
from albert_tf.training.optimizers import create_optimizer
from tests import tolerances

# lamb_onehot is in test_train_step.py; other schedules are in test_optimizers.py.
CASES = ["adamw_onehot", "adamw_a", "lamb_a"]
SETTINGS = ("init_lr", "num_train_steps", "num_warmup_steps", "optimizer", "poly_power")

pytestmark = pytest.mark.usefixtures("every_chain_fused")


@pytest.fixture(scope="module")
def model(golden) -> keras.Model:
    config = albert_tf.AlbertConfig.from_json_file(str(golden / "encoder/base/albert_config.json"))
    return albert_tf.AlbertForPreTraining(config)


@pytest.fixture(scope="module")
def gradients(model):
    """Traced once for all cases, which have batches of one shape."""
    return tf.function(lambda batch: _gradients(model, batch), autograph=False)


@pytest.mark.parametrize("case", CASES)
def test_model_goes_the_releases_way(golden, model, gradients, case):
    """The cases without one-hot clip by a norm that is a quirk: theirs clips here by hand."""
    settings = json.loads((golden / f"optim/{case}.json").read_text())
    by_hand = not settings["use_one_hot_embeddings"]
    albert_tf.load_weights(model, str(golden / "encoder/base/model.ckpt-best"))
    optimizer = create_optimizer(
        **{name: settings[name] for name in SETTINGS}, clip_norm=None if by_hand else 1.0
    )
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def update(grads, norm):
        optimizer.apply([grad / ops.maximum(norm, 1.0) for grad in grads])

    with (
        np.load(golden / "optim/batches.npz") as batches,
        np.load(golden / f"optim/{case}_params.npz") as params,
    ):
        for i, stored in enumerate(settings["steps"]):
            batch = {
                key.partition("|")[2]: tf.constant(batches[key])
                for key in batches.files
                if key.startswith(f"step{i}|")
            }
            norm = stored["global_norm_used_for_clipping"] if by_hand else 1.0
            (masked_lm_loss, sentence_order_loss), grads = gradients(batch)
            update(grads, tf.constant(norm))
            for name, loss in (
                ("masked_lm_loss", masked_lm_loss),
                ("sentence_order_loss", sentence_order_loss),
                ("total_loss", masked_lm_loss + sentence_order_loss),
            ):
                assert abs(float(loss) - stored[name]) <= tolerances.TRAJECTORY_LOSS, (i, name)
            _check_weights(model, params, f"after{i + 1}|")


def _gradients(model, batch):
    with tf.GradientTape() as tape:
        outputs = model(batch)
        weights = batch["masked_lm_weights"]
        per_piece = keras.losses.sparse_categorical_crossentropy(
            batch["masked_lm_ids"], outputs["masked_lm_logits"], from_logits=True
        )
        masked_lm_loss = ops.sum(per_piece * weights) / (ops.sum(weights) + 1e-5)
        sentence_order_loss = ops.mean(
            keras.losses.sparse_categorical_crossentropy(
                batch["next_sentence_labels"][:, 0],
                outputs["sentence_order_logits"],
                from_logits=True,
            )
        )
        loss = masked_lm_loss + sentence_order_loss
    grads = tape.gradient(loss, model.trainable_variables)
    return (masked_lm_loss, sentence_order_loss), [*map(tf.convert_to_tensor, grads)]


def _check_weights(model, params, prefix):
    stored = {
        key.removeprefix(prefix).replace("|", "/"): key
        for key in params.files
        if key.startswith(prefix)
    }
    if not stored:
        return
    for name, variable in conversion.named_weights(model).items():
        limit = (
            tolerances.TRAJECTORY_KEY_BIAS
            if name.endswith("self/key/bias")
            else tolerances.TRAJECTORY_WEIGHT
        )
        difference = np.max(np.abs(np.asarray(variable) - params[stored.pop(name)]))
        assert difference <= limit, (prefix, name)
    assert not stored
