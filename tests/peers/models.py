"""Models of odd shapes with random weights, and inputs for them."""

import dataclasses

import numpy as np

import albert_tf
from tests.kit import tiny, tolerances

# All axes differ in size, so that none can be mistaken for another.
_BASE = albert_tf.AlbertConfig(
    vocab_size=53,
    embedding_size=11,
    hidden_size=21,
    num_hidden_layers=5,
    num_attention_heads=3,
    intermediate_size=17,
    max_position_embeddings=19,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
)
GROUPS3 = dataclasses.replace(_BASE, num_hidden_layers=6, num_hidden_groups=3)
CONFIGS = {
    "one_group": _BASE,
    "groups2": dataclasses.replace(_BASE, num_hidden_layers=6, num_hidden_groups=2),
    "inner2": dataclasses.replace(_BASE, inner_group_num=2, type_vocab_size=3),
    "groups3_inner2": dataclasses.replace(GROUPS3, inner_group_num=2),
    "same_width": dataclasses.replace(_BASE, embedding_size=21),
}
# KerasHub has neither this activation nor an uneven division of layers into groups.
RELU = dataclasses.replace(_BASE, hidden_act="relu")
UNEVEN = dataclasses.replace(_BASE, num_hidden_groups=2)


def inputs(config: albert_tf.AlbertConfig) -> dict[str, np.ndarray]:
    rng, shape = np.random.default_rng(5), (2, 13)
    mask = np.ones(shape, np.int32)
    mask[1, 7:] = 0
    return {
        "input_ids": rng.integers(0, config.vocab_size, shape).astype(np.int32),
        "input_mask": mask,
        "segment_ids": rng.integers(0, config.type_vocab_size, shape).astype(np.int32),
        "masked_lm_positions": np.tile(np.arange(13, dtype=np.int32), (2, 1)),
    }


def assert_close(actual, expected, name) -> None:
    values, limit = map(np.asarray, (actual, expected)), tolerances.PEER_OUTPUT
    np.testing.assert_allclose(*values, rtol=0, atol=limit, err_msg=name)


def assert_same_weights(actual, expected) -> None:
    actual, expected = tiny.weights(actual), tiny.weights(expected)
    assert set(actual) == set(expected)
    for name, value in expected.items():
        assert value.tobytes() == actual[name].tobytes(), name
