"""Weights with which attention begins nearby."""

import keras
import numpy as np
import pytest

from albert_tf.config import AlbertConfig
from albert_tf.model.heads import AlbertForPreTraining
from albert_tf.model.initial_attention import attend_nearby
from albert_tf.tasks.pretraining import PretrainingTask
from tests.kit import tiny

CONFIG = AlbertConfig(
    53,
    embedding_size=31,
    hidden_size=96,
    num_hidden_layers=2,
    num_hidden_groups=2,
    num_attention_heads=3,
    intermediate_size=24,
    max_position_embeddings=200,
)


@pytest.fixture(scope="module")
def models():
    """A random model, and the same one after attend_nearby, as arrays by name."""
    found = []
    for changes in (False, True):
        keras.utils.set_random_seed(3)
        model = AlbertForPreTraining(CONFIG)
        if changes:
            attend_nearby(model.albert)
        found.append({weight.path: weight.numpy() for weight in model.weights})
    return found


def test_only_positions_queries_and_keys_change(models):
    before, after = models
    changed = {path for path in before if not np.array_equal(before[path], after[path])}
    of_attention = [f"attention_{i}_0/{name}_kernel" for i in (0, 1) for name in ("query", "key")]
    ends = ("embeddings/position_embeddings", *of_attention)
    assert len(changed) == len(ends) and all(path.endswith(ends) for path in changed)


def test_positions_are_the_more_alike_the_nearer_they_are(models):
    (table,) = (array for path, array in models[1].items() if "position_embeddings" in path)
    rms = np.sqrt(np.square(table).mean())
    assert rms == pytest.approx(2 * CONFIG.initializer_range, rel=0.1)
    products = table @ table.T
    for start in (0, 90):
        nearer = products[start, start : start + 6]
        assert (np.diff(nearer) < 0).all()
        assert products[start, start + 6 :].max() < nearer[3]
    # No two positions are the same.
    assert np.linalg.norm(table[:, None] - table, axis=2)[~np.eye(200, dtype=bool)].min() > 0.01


def test_a_score_is_a_product_of_two_vectors(models):
    """A position's mean score for itself is 6, and for a vector unlike its own 0."""
    x = np.random.default_rng(5).normal(size=(500, 96))
    for group in (0, 1):
        query, key = (
            x @ next(a for p, a in models[1].items() if f"{group}_0/{name}_kernel" in p)
            for name in ("query", "key")
        )
        query, key = (y.reshape(500, 3, 32) for y in (query, key))
        scores = np.einsum("bnd,cnd->nbc", query, key) / np.sqrt(32)
        itself = scores[:, range(500), range(500)]
        assert itself.mean() == pytest.approx(6, rel=0.05)
        assert abs(scores.mean()) < 0.05 and itself.min() > 0


def test_pre_training_with_it_begins_so():
    model = PretrainingTask(tiny.config(), nearby_attention=True).build_model()
    (layer,) = model.albert.encoder.attention
    np.testing.assert_array_equal(layer.query_kernel, layer.key_kernel)
