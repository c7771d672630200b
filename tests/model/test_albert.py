import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import albert_tf
from albert_tf import conversion
from tests.kit import goldens, tiny, tolerances
from tests.kit.tolerances import assert_close

ENCODER_INPUTS = ("input_ids", "input_mask", "segment_ids")
DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
SMALL = tiny.config(initializer_range=0.5, **DROPOUT)

pytestmark = pytest.mark.usefixtures("every_chain_fused")


def encoder(variant: str, **kwargs) -> albert_tf.AlbertModel:
    model = albert_tf.AlbertModel(goldens.config(variant), **kwargs)
    conversion.load_weights(model, goldens.checkpoint(variant))
    return model


def encoder_inputs(variant: str) -> dict[str, np.ndarray]:
    inputs = goldens.inputs(variant)
    return {name: inputs[name] for name in ENCODER_INPUTS}


def check_outputs(variant: str, outputs: dict) -> None:
    expected = goldens.outputs(variant)
    for name in ("embedding_output", "pooled_output"):
        assert_close(outputs[name], expected[name], tolerances.OUTPUT)
    layers = expected["all_encoder_layers"]
    for actual, layer in zip(outputs["all_encoder_layers"], layers, strict=True):
        assert_close(actual, layer, tolerances.OUTPUT)
    assert_close(outputs["sequence_output"], layers[-1], tolerances.OUTPUT)


@pytest.fixture(scope="module")
def base() -> albert_tf.AlbertModel:
    return encoder("base")


@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_outputs_are_the_releases(variant):
    model = encoder(variant)
    for training in (False, True):
        check_outputs(variant, model(encoder_inputs(variant), training=training))


@pytest.mark.parametrize("read", ["sequence_output", "gathered_output", "pooled_output"])
def test_a_graph_computes_the_last_block_where_it_is_read(read):
    model = albert_tf.AlbertModel(SMALL)
    input_ids, positions = np.zeros((2, 7), np.int32), np.zeros((2, 3), np.int32)

    @tf.function
    def call():
        return model({"input_ids": input_ids}, positions=positions)[read]

    graph = call.get_concrete_function().graph
    extract = tf.compat.v1.graph_util.extract_sub_graph
    needed = extract(graph.as_graph_def(), [graph.outputs[0].op.name]).node
    products = [f"{node.name}:0" for node in needed if node.op == "MatMul"]
    shapes = [tuple(graph.get_tensor_by_name(name).shape) for name in products]
    rows = [shape[0] for shape in shapes if shape[1] == SMALL.intermediate_size]
    # The last block's rows: all positions, or [CLS] and three more of each sequence.
    assert rows == [14, 14 if read == "sequence_output" else 8]


@pytest.mark.parametrize("case", ["no_mask_no_types", "all_masked_row", "full_length"])
def test_edge_cases_are_the_releases(base, case):
    """Without mask and segments; a row without keys; and the whole length of the position table."""
    edge_cases = goldens.arrays(goldens.FOLDER / "base" / "edge_cases.npz")
    inputs = encoder_inputs("base")
    if case == "no_mask_no_types":
        inputs = {"input_ids": inputs["input_ids"]}
    inputs |= {n: edge_cases[f"{case}/{n}"] for n in inputs if f"{case}/{n}" in edge_cases}
    outputs = base(inputs)
    names = {name.partition("/")[2] for name in edge_cases if name.startswith(case)}
    names &= {"embedding_output", "sequence_output", "pooled_output"}
    assert len(names) >= 2
    for name in names:
        actual, expected = np.array(outputs[name]), edge_cases[f"{case}/{name}"]
        if case == "all_masked_row":  # Such a row attends to all keys.
            assert not inputs["input_mask"][1].any()
            assert_close(actual[1], expected[1], tolerances.ALL_MASKED_ROW)
            actual, expected = np.delete(actual, 1, 0), np.delete(expected, 1, 0)
        assert_close(actual, expected, tolerances.OUTPUT)


def run(model, seed=None, training=True):
    rng = np.random.default_rng(23)
    inputs = {"input_ids": rng.integers(53, size=(2, 7)).astype("int32")}
    seed = None if seed is None else tf.constant(seed, tf.uint32)
    outputs = model(inputs, training=training, dropout_seed=seed)
    return ops.convert_to_numpy(outputs["pooled_output"])


@pytest.mark.parametrize("rates", [(0.2, 0.0), (0.0, 0.3)])
def test_each_dropout_rate_acts_in_training_only(rates):
    model = albert_tf.AlbertModel({**SMALL.to_dict(), **dict(zip(DROPOUT, rates, strict=True))})
    assert np.abs(run(model, (3, 5)) - run(model, training=False)).max() > 0.01
    np.testing.assert_array_equal(run(model, training=False), run(model, (3, 5), training=False))
    # The model's own seed changes from call to call.
    assert np.abs(run(model) - run(model)).max() > 0.01


def test_without_dropout_there_is_no_seed():
    model = albert_tf.AlbertModel({**SMALL.to_dict(), **dict.fromkeys(DROPOUT, 0.0)})
    assert model.seed_generator is None
    assert len(model.variables) == len(model.weights)
    np.testing.assert_array_equal(run(model, (3, 5)), run(model, training=False))


def test_recomputation_drops_out_the_same_again():
    """Loss and gradients are the plain model's: were a mask drawn anew, they would be far off.

    By XLA without dropout: test_packed_rows.py; in a graph: test_repetition.py.
    """
    inputs = {"input_ids": np.random.default_rng(29).integers(53, size=(2, 7)).astype("int32")}
    plain, recomputing = (albert_tf.AlbertModel(SMALL, recompute=r) for r in (False, True))
    recomputing.set_weights(plain.get_weights())

    def loss_and_gradients(model):
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True, dropout_seed=tf.constant([3, 5], tf.uint32))
            loss = tf.reduce_sum(outputs["sequence_output"] ** 3) / 100
            loss += tf.reduce_sum(outputs["pooled_output"] ** 3)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        return [loss, *map(tf.convert_to_tensor, gradients)]

    results = map(loss_and_gradients, (plain, recomputing))
    for expected, actual in zip(*results, strict=True):
        scale = max(1.0, float(np.abs(expected).max()))
        assert_close(actual, expected, tolerances.RECOMPUTED_RELATIVE * scale)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "float16", "float64"])
def test_weights_are_float32_whatever_is_computed_in(base, dtype, tmp_path):
    model = encoder("base", dtype=dtype)
    assert {variable.dtype for variable in model.weights} == {"float32"}
    outputs = model(encoder_inputs("base"))
    for name in ("embedding_output", "sequence_output", "pooled_output"):
        computed_in = keras.backend.standardize_dtype(outputs[name].dtype)
        assert computed_in == dtype.removeprefix("mixed_")
        assert_close(outputs[name], goldens.outputs("base")[name], tolerances.BFLOAT16_OUTPUT)
    model.save(tmp_path / "model.keras")
    again = albert_tf.AlbertModel.from_weights(tmp_path / "model.keras")
    for mine, stored in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(mine, stored)


def test_serves_as_a_layer_of_a_functional_model(base):
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ENCODER_INPUTS}
    model = keras.Model(inputs, base(inputs)["pooled_output"])
    pooled = model(encoder_inputs("base"))
    assert_close(pooled, goldens.outputs("base")["pooled_output"], tolerances.OUTPUT)
