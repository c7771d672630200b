"""Parameters, FLOPs and bytes of a model, computed from its config alone."""

from __future__ import annotations

from typing import NamedTuple

from albert_tf import weight_shapes
from albert_tf.config import AlbertConfig

HEADS = ("masked LM head", "sentence order head")
_MATRICES = ("E to H", "attention", "feed-forward")
_FLOAT_BYTES = 4
# The backward pass computes two products for each one of the forward pass.
_STEP_PER_FORWARD = 3


class Shape(NamedTuple):
    """Size of a batch: sequences, tokens of each, and masked tokens of each."""

    batch: int
    seq: int
    predictions: int = 20

    @property
    def tokens(self) -> int:
        """Tokens of the batch, padding included."""
        return self.batch * self.seq


def count_parameters(config: AlbertConfig) -> dict[str, int]:
    """Returns the exact number of parameters of each part of the model for pre-training.

    The masked-LM head's product with the piece embeddings adds nothing: it shares them.
    """
    parts = weight_shapes.parts(config)
    return {name: parts[name].count() for name in (*weight_shapes.ENCODER, *HEADS)}


def count_encoder(config: AlbertConfig) -> int:
    """Returns the number of parameters without heads, as the paper's table 1 counts them."""
    return sum(n for part, n in count_parameters(config).items() if part not in HEADS)


def forward_flops(config: AlbertConfig, shape: Shape) -> int:
    """Returns the FLOPs of the matrix products of a forward pass; a multiply-add is two.

    Logits are counted at the P masked positions only.
    """
    hidden, width = config.hidden_size, config.embedding_size
    dense = 4 * hidden * hidden + 2 * hidden * config.intermediate_size  # Q, K, V, output, FFN
    attention = 2 * shape.seq * hidden  # Scores and context.
    token = config.num_blocks * (dense + attention) + width * hidden * (width != hidden)
    prediction = hidden * width + width * config.vocab_size
    pooled = hidden * hidden + 2 * hidden
    return 2 * shape.batch * (shape.seq * token + shape.predictions * prediction + pooled)


def step_flops(config: AlbertConfig, shape: Shape) -> int:
    """Returns the FLOPs of a training step's matrix products: forward and backward pass."""
    return _STEP_PER_FORWARD * forward_flops(config, shape)


def muon_flops(config: AlbertConfig) -> int:
    """Returns the FLOPs of the products by which Muon makes the encoder's matrices orthogonal.

    They are computed once per update, whatever the batch size and the model's depth.
    """
    parts = weight_shapes.parts(config)
    shapes = [s for name in _MATRICES for s in parts[name].shapes().values() if len(s) == 2]
    # Each of five iterations has two products with the longer side, and one without it.
    pairs = (sorted(shape) for shape in shapes)
    return sum(5 * 2 * (2 * small**2 * large + small**3) for small, large in pairs)


def weight_bytes(config: AlbertConfig) -> int:
    """Returns the bytes of all weights, heads included; they are float32 in either precision."""
    return _FLOAT_BYTES * sum(count_parameters(config).values())


def activation_bytes(config: AlbertConfig, shape: Shape) -> int:
    """Estimates the bytes in float32 that a forward pass keeps for the backward pass.

    Each block keeps queries, keys, values, context, two sums and what they are normalised to (H
    each), the inner layer before and after its activation (I), scores and probabilities (A x S);
    the masked-LM head keeps logits and their probabilities.
    """
    block = 8 * config.hidden_size + 2 * config.intermediate_size
    block += 2 * config.num_attention_heads * shape.seq
    token = config.num_blocks * block + 3 * config.embedding_size + config.hidden_size
    prediction = 2 * config.vocab_size + 4 * config.embedding_size
    return _FLOAT_BYTES * shape.batch * (shape.seq * token + shape.predictions * prediction)
