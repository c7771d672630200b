import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from albert_tf.config import HIDDEN_ACTS, AlbertConfig
from albert_tf.model import dropout, layers
from albert_tf.model.albert import AlbertModel
from tests.kit import tiny, tolerances
from tests.kit.tolerances import assert_close

BATCH, LENGTH = 2, 11
CONFIG = tiny.config()
# Standard normal truncated at two standard deviations: its standard deviation and kurtosis.
CUT_DEVIATION, CUT_KURTOSIS = 0.8796, 2.37


def filled(layer: layers.AlbertLayer) -> dict[str, np.ndarray]:
    """Builds a layer, gives all its weights values, and returns them in float64 by name."""
    rng = np.random.default_rng(3)
    layer.build()
    for variable in layer.weights:
        start = 1 if variable.name.endswith("gamma") else 0
        variable.assign(start + 0.2 * rng.normal(size=variable.shape))
    return {variable.name: variable.numpy().astype("float64") for variable in layer.weights}


def normalised(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    return x * weights[f"{name}_gamma"] + weights[f"{name}_beta"]


@pytest.mark.parametrize("masked", [[], [(0, 6), (1, 0), (1, 3)]], ids=["unmasked", "masked"])
def test_self_attention_is_the_formula(masked):
    layer = layers.SelfAttention(CONFIG)
    weights = filled(layer)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(BATCH, LENGTH, 15))
    mask = np.ones((BATCH, LENGTH))
    for position in masked:
        mask[position] = 0
    scores = (1 - mask)[:, None, None, :] * -10000.0

    def project(name):
        y = x @ weights[f"{name}_kernel"] + weights[f"{name}_bias"]
        return y.reshape(BATCH, LENGTH, 3, 5)

    logits = np.einsum("bfnd,btnd->bnft", project("query"), project("key")) / math.sqrt(5)
    probs = np.exp(logits) * mask[:, None, None, :]
    probs /= probs.sum(-1, keepdims=True)
    context = np.einsum("bnft,btnd->bfnd", probs, project("value")).reshape(BATCH, LENGTH, 15)
    output = context @ weights["output_kernel"] + weights["output_bias"]
    expected = normalised(x + output, weights, "LayerNorm")

    actual = layer(ops.cast(x, "float32"), layer.read(), ops.cast(scores, "float32"), seed=None)
    assert_close(actual, expected, tolerances.SUBLAYER)


@pytest.mark.parametrize("hidden_act", HIDDEN_ACTS)
def test_feed_forward_is_the_formula(hidden_act):
    activations = {
        "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "linear": lambda x: x,
    }
    config = AlbertConfig.from_dict({**CONFIG.to_dict(), "hidden_act": hidden_act})
    layer = layers.FeedForward(config)
    weights = filled(layer)
    x = np.random.default_rng(7).normal(size=(BATCH, LENGTH, 15))
    inner = x @ weights["intermediate_kernel"] + weights["intermediate_bias"]
    output = activations[hidden_act](inner) @ weights["output_kernel"] + weights["output_bias"]

    actual = layer(ops.cast(x, "float32"), layer.read())
    assert_close(actual, normalised(x + output, weights, "LayerNorm_1"), tolerances.SUBLAYER)


def test_embeddings_are_summed_and_normalised():
    layer = layers.Embeddings(CONFIG)
    weights = filled(layer)
    rng = np.random.default_rng(11)
    ids = rng.integers(53, size=(BATCH, LENGTH)).astype("int32")
    segments = rng.integers(2, size=(BATCH, LENGTH)).astype("int32")
    total = weights["word_embeddings"][ids] + weights["token_type_embeddings"][segments]
    total = total + weights["position_embeddings"][:LENGTH]
    expected = normalised(total, weights, "LayerNorm")
    assert_close(layer(ids, segments), expected, tolerances.SUBLAYER)


def test_layer_norm_has_the_releases_epsilon():
    """1e-12 under the root: values of 1e-6 around a mean lose a factor of sqrt(2), no more."""
    x = np.array([[1e-6, -1e-6, 1e-6, -1e-6]], "float32")
    ones, zeros = np.ones(4, "float32"), np.zeros(4, "float32")
    y = layers.layer_norm(ops.convert_to_tensor(x), ones, zeros)
    assert_close(y, np.sign(x) / math.sqrt(2), tolerances.SUBLAYER)
    constant = layers.layer_norm(ops.ones((1, 4)) * 3, ones, zeros + 5)
    assert_close(constant, np.full((1, 4), 5), 0)


def test_layer_norm_of_bfloat16_is_computed_in_float32():
    x = ops.cast(np.array([[256.0, 257, 258, 259]]), "bfloat16")  # The odd ones are rounded.
    y = layers.layer_norm(x, ops.ones(4), ops.zeros(4))
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    kept = ops.convert_to_numpy(ops.cast(x, "float64"))
    expected = (kept - kept.mean()) / kept.std()
    assert_close(ops.cast(y, "float32"), expected, 2**-8)  # One rounding of a value below 2.


def test_positions_are_gathered_as_whole_vectors():
    """A TPU is slow at gathering numbers one by one, and at scattering them in the gradient."""
    sequence = np.arange(2 * 5 * 3, dtype="float32").reshape(2, 5, 3)
    positions = np.array([[4, 0, 4, 1], [0, 2, 2, 3]], "int32")
    expected = [[sequence[b, p] for p in positions[b]] for b in range(2)]
    assert_close(layers.gather_positions(sequence, positions), expected, 0)
    specs = tf.TensorSpec([None, 5, 3]), tf.TensorSpec([None, 4], tf.int32)
    traced = tf.function(layers.gather_positions).get_concrete_function(*specs)
    gathers = [op for op in traced.graph.get_operations() if op.type.startswith("Gather")]
    assert [op.outputs[0].shape.as_list() for op in gathers] == [[None, 4, 3]]


def test_initial_weights_are_the_releases():
    """Each statistic is allowed five standard errors (p = 6e-7 for each of 20); seeded."""
    keras.utils.set_random_seed(13)
    sizes = {"vocab_size": 997, "embedding_size": 61, "hidden_size": 62, "intermediate_size": 67}
    layout = {"num_attention_heads": 2, "num_hidden_layers": 1}
    config = AlbertConfig(**sizes, **layout, initializer_range=0.3)
    weights = AlbertModel(config).weights
    for vector in (variable for variable in weights if len(variable.shape) == 1):
        assert np.all(vector.numpy() == vector.name.endswith("gamma")), vector.path
    matrices = [variable for variable in weights if len(variable.shape) == 2]
    assert len(matrices) == 11
    for variable in matrices:
        values = variable.numpy() / 0.3
        assert np.abs(values).max() <= 2
        if values.size < 1000:  # The token types: too few for statistics.
            continue
        assert abs(values.mean()) < 5 * CUT_DEVIATION / math.sqrt(values.size), variable.path
        error = math.sqrt((CUT_KURTOSIS - 1) / 4 / values.size)
        assert abs(values.std() / CUT_DEVIATION - 1) < 5 * error, variable.path
    firsts = {float(variable.numpy()[0, 0]) for variable in matrices}
    assert len(firsts) == len(matrices)


def seed_of(*values: int):
    return tf.constant(values, tf.uint32)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_zeroes_its_share_and_scales_the_rest(rate):
    """The number of zeros is binomial: five standard deviations, p = 6e-7; seeded."""
    n = 100_003
    y = ops.convert_to_numpy(dropout.apply_dropout(ops.ones(n), rate, seed_of(3, 5)))
    zeros = int((y == 0).sum())
    assert abs(zeros - n * rate) < 5 * math.sqrt(n * rate * (1 - rate))
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-6)


def test_dropout_follows_from_its_seed():
    """Also under XLA, if it knows the seed: its own generator draws others, and is much slower."""
    x = ops.ones((7, 11, 13))

    def mask(site=3, step=5):
        return dropout.apply_dropout(x, 0.5, seed_of(site, step)) == 0

    first = mask().numpy()
    for same in (mask, tf.function(mask, jit_compile=True)):
        np.testing.assert_array_equal(first, same())
    for other in (mask(step=6), mask(site=4)):
        # Independent masks differ in half of the 1001 places: five deviations, p = 6e-7.
        assert abs((first != other.numpy()).mean() - 0.5) < 5 * 0.5 / math.sqrt(first.size)
    assert dropout.fold_in(seed_of(3, 5), 1).numpy().tolist() == [4, 5]
    # A rate of 0, or no seed, is no dropout.
    assert dropout.apply_dropout(x, 0.0, seed_of(1, 2)) is x
    assert dropout.apply_dropout(x, 0.5, None) is x
    assert dropout.fold_in(None, 3) is None


def test_every_dropout_site_has_its_rate_and_its_own_seed(monkeypatch):
    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
    config, sites = AlbertConfig.from_dict(CONFIG.to_dict() | rates), []

    def record(x, rate, seed):
        sites.append((tuple(x.shape), rate, tuple(ops.convert_to_numpy(seed))))
        return x

    model = AlbertModel(config)
    monkeypatch.setattr(layers, "apply_dropout", record)
    ids = np.ones((BATCH, LENGTH), "int32")
    model({"input_ids": ids}, training=True, dropout_seed=seed_of(17, 19))
    output = ((BATCH, LENGTH, 15), 0.2)
    block = [((BATCH, 3, LENGTH, LENGTH), 0.3), output, output]
    # The last block is there twice, once at [CLS] alone: a graph keeps the one that is read.
    at_cls = [((BATCH, 3, 1, LENGTH), 0.3), *[((BATCH, 1, 15), 0.2)] * 2]
    expected = [((BATCH, LENGTH, 7), 0.2), *block, *block, *at_cls]
    assert [site[:2] for site in sites] == expected
    seeds = [seed for *_, seed in sites]
    assert seeds[-3:] == seeds[-6:-3]
    assert len(set(seeds)) == len(expected) - 3
