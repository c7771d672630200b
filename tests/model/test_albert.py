import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import albert_tf
from albert_tf import conversion
from tests import goldens, tiny, tolerances
from tests.tolerances import assert_close

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


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_outputs_are_the_releases(variant, training):
    check_outputs(variant, encoder(variant)(encoder_inputs(variant), training=training))


@pytest.fixture(scope="module")
def edge_cases() -> dict[str, np.ndarray]:
    return goldens.arrays(goldens.FOLDER / "base" / "edge_cases.npz")


@pytest.mark.parametrize("read", ["sequence_output", "gathered_output", "pooled_output"])
def test_a_graph_computes_the_last_block_where_it_is_read(read):
    model = albert_tf.AlbertModel(SMALL)
    input_ids, positions = np.zeros((2, 7), np.int32), np.zeros((2, 3), np.int32)

    @tf.function
    def call():
        return model({"input_ids": input_ids}, positions=positions)[read]

    graph = call.get_concrete_function().graph
    needed = tf.compat.v1.graph_util.extract_sub_graph(
        graph.as_graph_def(), [graph.outputs[0].op.name]
    )
    shapes = [
        tuple(graph.get_tensor_by_name(f"{node.name}:0").shape)
        for node in needed.node
        if node.op == "MatMul"
    ]
    rows = [shape[0] for shape in shapes if shape[1] == SMALL.intermediate_size]
    # The last block's rows: all positions, or [CLS] and three more of each sequence.
    assert rows == [14, 14 if read == "sequence_output" else 8]


def test_mask_and_segments_may_be_left_out(base, edge_cases):
    outputs = base({"input_ids": goldens.inputs("base")["input_ids"]})
    for name in ("embedding_output", "sequence_output", "pooled_output"):
        assert_close(outputs[name], edge_cases[f"no_mask_no_types/{name}"], tolerances.OUTPUT)


def test_a_row_without_any_key_attends_to_all(base, edge_cases):
    inputs = encoder_inputs("base") | {"input_mask": edge_cases["all_masked_row/input_mask"]}
    assert not inputs["input_mask"][1].any()
    outputs = base(inputs)
    others = [0, 2, 3]
    for name in ("sequence_output", "pooled_output"):
        actual, expected = ops.convert_to_numpy(outputs[name]), edge_cases[f"all_masked_row/{name}"]
        assert_close(actual[1], expected[1], tolerances.ALL_MASKED_ROW)
        assert_close(actual[others], expected[others], tolerances.OUTPUT)


def test_a_sequence_may_be_as_long_as_the_position_table(base, edge_cases):
    outputs = base({name: edge_cases[f"full_length/{name}"] for name in ENCODER_INPUTS})
    for name in ("sequence_output", "pooled_output"):
        assert_close(outputs[name], edge_cases[f"full_length/{name}"], tolerances.OUTPUT)


def test_inputs_are_by_name(base):
    with pytest.raises(TypeError, match="expected a dictionary of inputs with `input_ids`"):
        base(np.full((2, 7), 5))


def run(model, seed=None, training=True):
    rng = np.random.default_rng(23)
    inputs = {"input_ids": rng.integers(53, size=(2, 7)).astype("int32")}
    seed = None if seed is None else tf.constant(seed, tf.uint32)
    return ops.convert_to_numpy(
        model(inputs, training=training, dropout_seed=seed)["pooled_output"]
    )


@pytest.mark.parametrize("rate", DROPOUT)
def test_each_dropout_rate_acts_in_training_only(rate):
    rates = {name: DROPOUT[name] if name == rate else 0.0 for name in DROPOUT}
    model = albert_tf.AlbertModel({**SMALL.to_dict(), **rates})
    assert np.abs(run(model, (3, 5)) - run(model, training=False)).max() > 0.01
    np.testing.assert_array_equal(run(model, training=False), run(model, (3, 5), training=False))


def test_the_models_own_seed_moves_on():
    model = albert_tf.AlbertModel(SMALL)
    assert np.abs(run(model) - run(model)).max() > 0.01


def test_without_dropout_there_is_no_seed():
    rates = dict.fromkeys(DROPOUT, 0.0)
    model = albert_tf.AlbertModel({**SMALL.to_dict(), **rates})
    assert model.seed_generator is None
    assert len(model.variables) == len(model.weights)
    np.testing.assert_array_equal(run(model, (3, 5)), run(model, training=False))


@pytest.mark.parametrize(("mode", "layers"), [("eager", 2), ("xla", 1)])
def test_recomputation_drops_out_the_same_again(mode, layers):
    """Loss and gradients are the plain model's: were a mask drawn anew, they would be far off."""
    inputs = {"input_ids": np.random.default_rng(29).integers(53, size=(2, 7)).astype("int32")}
    config = {**SMALL.to_dict(), "num_hidden_layers": layers}
    plain, recomputing = (albert_tf.AlbertModel(config, recompute=r) for r in (False, True))
    recomputing.set_weights(plain.get_weights())

    def loss_and_gradients(model, seed):
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True, dropout_seed=seed)
            loss = tf.reduce_sum(outputs["sequence_output"] ** 3) / 100
            loss += tf.reduce_sum(outputs["pooled_output"] ** 3)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        return [loss, *map(tf.convert_to_tensor, gradients)]

    if mode != "eager":
        loss_and_gradients = tf.function(loss_and_gradients, jit_compile=mode == "xla")
    seed = tf.constant([3, 5], tf.uint32)
    results = [loss_and_gradients(model, seed) for model in (plain, recomputing)]
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
