"""The table of weights' shapes: against the models that Keras builds."""

import dataclasses
import math

import pytest

from albert_tf import conversion, weight_shapes
from albert_tf.config import PARAMETER_SHARING
from albert_tf.model import heads
from albert_tf.model.embedding import AlbertForEmbedding
from tests.kit import tiny

SMALL = tiny.config(num_hidden_layers=5, type_vocab_size=11)
CHANGES = [{"embedding_size": 15}, {"num_hidden_groups": 2, "inner_group_num": 3}]


@pytest.mark.parametrize("sharing", PARAMETER_SHARING)
@pytest.mark.parametrize("changes", CHANGES)
def test_shapes_are_those_of_built_models(sharing, changes):
    config = dataclasses.replace(SMALL, parameter_sharing=sharing, **changes)
    built = {}
    for layer in (
        heads.AlbertForPreTraining(config),
        heads.ClassifierHead(config, 13, 0.0, name="classifier"),
        heads.ClassifierHead(config, 2, 0.0, name="span"),
        heads.ConditionalSpanHead(config, name="conditional_span"),
        heads.AnswerabilityHead(config, 0.0, name="answerability"),
    ):
        layer.build()
        named = conversion.named_weights(layer)
        built |= {name: tuple(variable.shape) for name, variable in named.items()}
    embedder = AlbertForEmbedding(config, dense_units=11)
    of_dense = conversion.named_weights(embedder.dense)
    built |= {name: tuple(variable.shape) for name, variable in of_dense.items()}
    parts = weight_shapes.parts(config, num_labels=13, dense_units=11).values()
    assert {name: shape for part in parts for name, shape in part.shapes().items()} == built
    for part in parts:
        assert part.count() == sum(map(math.prod, part.shapes().values()))


def test_no_config_is_too_large_to_be_counted():
    deep = dataclasses.replace(SMALL, num_hidden_layers=4096, inner_group_num=4096)
    most = dataclasses.replace(deep, parameter_sharing="none", hidden_size=3 << 29)
    attention = weight_shapes.parts(most)["attention"]
    assert attention.count() == 4096**2 * (4 * (9 << 58) + 6 * (3 << 29))
