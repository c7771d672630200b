"""Vectors of texts: pooling, dense layer, dimensions and length, in NumPy beside the model's."""

import keras
import numpy as np
import pytest

import albert_tf
from albert_tf.model.embedding import AlbertForEmbedding
from albert_tf.model.heads import pool
from tests.kit import tiny, tolerances

IDS = np.array([[2, 7, 8, 9, 3, 0], [2, 11, 3, 0, 0, 0]])
MASK = np.int32(IDS > 0)


def by_numpy(sequence, pooling):
    """Returns the vectors `[B, H]` of `sequence` `[B, S, H]`, one text at a time."""
    found = []
    for row, mask in zip(sequence, MASK, strict=True):
        pieces = row[mask == 1]
        found.append(
            {
                "cls": pieces[0],
                "max": pieces.max(axis=0),
                "mean": pieces.mean(axis=0),
                "mean_sqrt": pieces.sum(axis=0) / np.sqrt(len(pieces)),
            }[pooling]
        )
    return np.stack(found)


@pytest.mark.parametrize("mask", [MASK, -9999 * (1 - MASK)], ids=["01", "added"])
@pytest.mark.parametrize("pooling", ["cls", "max", "mean", "mean_sqrt"])
def test_pooling_leaves_out_padding(pooling, mask):
    sequence = np.random.default_rng(1).normal(-3, 1, (2, 6, 5)).astype(np.float32)
    found = pool(keras.ops.convert_to_tensor(sequence), keras.ops.convert_to_tensor(mask), pooling)
    np.testing.assert_allclose(found, by_numpy(sequence, pooling), atol=tolerances.OUTPUT)


@pytest.mark.parametrize("activation", ["tanh", "linear", "relu"])
def test_vectors_are_made_in_order(activation):
    config = tiny.config()
    model = tiny.randomise(
        AlbertForEmbedding(
            config,
            dense_units=9,
            dense_activation=activation,
            dimensions=4,
            normalize=True,
        )
    )
    outputs = model.albert({"input_ids": IDS, "input_mask": MASK})
    vectors = by_numpy(np.asarray(outputs["sequence_output"]), "mean")
    kernel, bias = map(np.asarray, model.dense.weights)
    functions = {"tanh": np.tanh, "linear": np.copy, "relu": lambda x: np.maximum(x, 0)}
    expected = functions[activation](vectors @ kernel + bias)[:, :4]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = model({"input_ids": IDS, "input_mask": MASK})
    np.testing.assert_allclose(found, expected, atol=tolerances.OUTPUT)


def test_several_texts_a_row_are_read_at_a_depth():
    model = tiny.randomise(AlbertForEmbedding(tiny.config(num_hidden_layers=2)))
    shallow = tiny.randomise(AlbertForEmbedding(tiny.config(num_hidden_layers=1)))
    found = model({"input_ids": IDS[None], "input_mask": MASK[None], "depth": np.int32(1)})
    expected = shallow({"input_ids": IDS, "input_mask": MASK})
    np.testing.assert_allclose(found[0], expected, atol=tolerances.OUTPUT)


def test_a_vector_of_zeros_stays():
    model = AlbertForEmbedding(tiny.config(), dense_units=3, normalize=True)
    for weight in model.dense.weights:
        weight.assign(np.zeros(weight.shape))
    assert not np.asarray(model({"input_ids": IDS})).any()


def test_keras_and_from_weights_restore_all_arguments(tmp_path):
    arguments = {
        "pooling": "max",
        "dense_units": 9,
        "dense_activation": "relu",
        "dimensions": 4,
        "normalize": True,
    }
    model = tiny.randomise(AlbertForEmbedding(tiny.config(), **arguments))
    path = tmp_path / "model.keras"
    model.save(path)
    for restored in (
        keras.saving.load_model(path),
        AlbertForEmbedding.from_weights(path),
        albert_tf.AlbertForEmbedding.from_weights(path, normalize=False),
    ):
        given = {name: getattr(restored, name) for name in arguments}
        assert given == {**arguments, "normalize": restored.normalize}
        rows = np.asarray(restored({"input_ids": IDS, "input_mask": MASK}))
        if restored.normalize:
            np.testing.assert_allclose(rows, model({"input_ids": IDS, "input_mask": MASK}))
        else:
            assert np.linalg.norm(rows, axis=1).min() > 1.1


def test_packed_rows_are_refused():
    with pytest.raises(ValueError, match="got cls_positions"):
        AlbertForEmbedding(tiny.config())(
            {"input_ids": IDS, "input_mask": MASK, "segment_ids": 0 * IDS, "cls_positions": MASK}
        )


def test_integers_are_no_classes_of_vectors():
    """A custom loss may take any integers, such as the numbers of groups of texts."""
    model = AlbertForEmbedding(tiny.config())
    model.compile("sgd", lambda y, vectors: keras.ops.cast(y, "float32") + 0 * vectors[:, 0])
    assert model.evaluate({"input_ids": IDS}, np.array([-4, 1004]), verbose=0) == 500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "last"}, "`pooling` must be mean or cls or max or mean_sqrt, got 'last'"),
        ({"dense_units": 3, "dense_activation": "gelu"}, "`dense_activation` must be tanh or"),
        ({"dense_units": 0}, "`dense_units`"),
        ({"dimensions": 16}, "`dimensions` must be from 1 to 15, got 16"),
        ({"dense_units": 3, "dimensions": 4}, "`dimensions` must be from 1 to 3, got 4"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        AlbertForEmbedding(tiny.config(), **arguments)
