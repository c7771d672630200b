"""Costs, and `albert-inspect sizes`: against built models, the paper, and the products in a graph.

Not tested here: how well activations are estimated.
"""

import dataclasses
import pathlib

import pytest
import tensorflow as tf

from albert_tf.cli import inspect as commands
from albert_tf.config import AlbertConfig
from albert_tf.inspection import costs
from albert_tf.inspection.costs import Shape
from albert_tf.model.heads import AlbertForPreTraining
from albert_tf.training.muon import Muon, orthogonal
from tests.kit import tiny

SMALL = tiny.config(num_hidden_layers=6, embedding_size=7)
BASE = AlbertConfig.from_json_file("albert_base_v2")
# In millions, by E: all-shared, shared-attention, shared-FFN, not-shared. Source: tables 3 and 4.
PAPER = {
    64: {"all": 10, "none": 87},
    128: {"all": 12, "attention": 64, "ffn": 38, "none": 89},
    256: {"all": 16, "none": 93},
    768: {"all": 31, "attention": 83, "ffn": 57, "none": 108},
}


@pytest.mark.parametrize(("width", "sharing"), [(w, s) for w, row in PAPER.items() for s in row])
def test_parameters_of_the_papers_grid(width, sharing):
    config = dataclasses.replace(BASE, embedding_size=width, parameter_sharing=sharing)
    # BERT-base is 109.1M with the pooler.
    assert costs.count_encoder(config) / 1e6 == pytest.approx(PAPER[width][sharing], abs=1.2)


def test_parameters_and_their_bytes_are_the_models():
    """For each way of sharing: tests/test_weight_shapes.py."""
    groups = {"num_hidden_groups": 3, "inner_group_num": 2}
    config = dataclasses.replace(SMALL, parameter_sharing="attention", **groups)
    model = AlbertForPreTraining(config)
    parts = costs.count_parameters(config)
    assert sum(parts.values()) == model.count_params()
    assert costs.count_encoder(config) == model.albert.count_params()
    assert parts["piece embeddings"] == SMALL.vocab_size * SMALL.embedding_size
    assert parts["masked LM head"] == model.predictions.count_params()
    assert costs.weight_bytes(config) == sum(w.value.numpy().nbytes for w in model.weights)


def products(config: AlbertConfig, shape: Shape, is_training: bool) -> int:
    """Returns the FLOPs of the matrix products in the graph of a forward pass, or of a step."""
    model = AlbertForPreTraining(config)
    weights = [weight.value for weight in model.trainable_variables]

    def run(input_ids, masked_lm_positions):
        with tf.GradientTape() as tape:
            features = {"input_ids": input_ids, "masked_lm_positions": masked_lm_positions}
            outputs = model(features, training=is_training)
            logits = (outputs["masked_lm_logits"], outputs["sentence_order_logits"])
            loss = sum(map(tf.reduce_sum, logits))
        return tape.gradient(loss, weights) if is_training else outputs

    ids = tf.TensorSpec((shape.batch, shape.seq), tf.int32)
    at = tf.TensorSpec((shape.batch, shape.predictions), tf.int32)
    return products_in(tf.function(run).get_concrete_function(ids, at).graph)


def products_in(graph: tf.Graph) -> int:
    found = 0
    for operation in graph.get_operations():
        if operation.type in ("MatMul", "BatchMatMulV2"):
            transposed = "transpose_a" if operation.type == "MatMul" else "adj_x"
            left = operation.inputs[0].shape
            summed = left[-2] if operation.get_attr(transposed) else left[-1]
            found += 2 * operation.outputs[0].shape.num_elements() * summed
        assert operation.type != "Einsum"
    return found


@pytest.mark.parametrize(
    ("count", "is_training"), [(costs.forward_flops, False), (costs.step_flops, True)]
)
def test_flops_are_those_of_the_graph(count, is_training):
    """Compared for one more layer, because the last one is computed only where it is read."""
    shape = Shape(2, 11, 5)
    deep, deeper = (dataclasses.replace(SMALL, num_hidden_layers=n) for n in (3, 4))
    grown = products(deeper, shape, is_training) - products(deep, shape, is_training)
    assert count(deeper, shape) - count(deep, shape) == grown


def test_activations_of_a_block_are_what_the_documents_say():
    """30 MiB for ALBERT-base at 4 x 128 tokens."""
    twice = dataclasses.replace(BASE, num_hidden_layers=2 * BASE.num_hidden_layers)
    grown = [costs.activation_bytes(config, Shape(4, 128)) for config in (BASE, twice)]
    assert (grown[1] - grown[0]) / BASE.num_hidden_layers == 30 * 2**20


def test_flops_of_the_heads_and_of_the_map_to_the_blocks():
    """Compared for a model of one layer, with a closed form."""
    shape, hidden, width = Shape(2, 11, 5), SMALL.hidden_size, SMALL.embedding_size
    shallow = dataclasses.replace(SMALL, num_hidden_layers=1)
    assert width != hidden
    block = 11 * (4 * hidden**2 + 2 * hidden * SMALL.intermediate_size + 2 * 11 * hidden)
    heads = 5 * (hidden * width + width * SMALL.vocab_size) + hidden**2 + 2 * hidden
    found = costs.forward_flops(shallow, shape)
    assert found == 2 * 2 * (block + 11 * width * hidden + heads)
    assert costs.step_flops(shallow, shape) == 3 * found


def test_flops_of_muon_are_those_of_the_graph():
    """Compared for products with each matrix of the encoder; each group's count separately."""
    config = dataclasses.replace(SMALL, num_hidden_groups=2)
    model, found = AlbertForPreTraining(config), 0
    for variable in model.trainable_variables:
        if Muon(0.1).is_matrix(variable):
            spec = tf.TensorSpec(variable.shape, tf.float32)
            found += products_in(tf.function(orthogonal).get_concrete_function(spec).graph)
    assert costs.muon_flops(config) == found > 0


def printed(capsys, **given) -> list[str]:
    commands.sizes(tiny.parse(commands.SizesSettings, **given))
    return capsys.readouterr().out.splitlines()


def test_a_run_of_albert_base(capsys):
    run = {"train_batch_size": 100, "max_seq_length": 360, "num_train_steps": 1000}
    lines = printed(capsys, albert_config_file="albert_base_v2", **run)
    found = {line[:24].strip(): line[24:].strip().replace(",", "") for line in lines}
    assert int(found["total without heads"]) == 11_683_584
    assert int(found["parameters"]) == 11_683_584 + 128_688 + 1_538
    assert int(found["optimizer's moments"]) == 2 * int(found["weights"])
    assert int(found["tokens"]) == 36_000_000


def test_the_table_of_parameters(capsys):
    lines = printed(capsys, markdown=True)
    assert "| ALBERT xxlarge | 12 | 4096 | 128 | 235M | 222.6M |" in lines
    assert "| BERT base | 12 | 768 | 768 | 108M | 109.1M |" in lines
    assert len(lines) == 8
    assert "\n".join(lines) in (pathlib.Path(__file__).parents[2] / "README.md").read_text()
