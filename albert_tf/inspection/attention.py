"""How much each piece of a text attends to each other, by layer and head."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np

from albert_tf.answers.rows import pair_features
from albert_tf.console import figures
from albert_tf.inspection import models
from albert_tf.model import layers
from albert_tf.model.albert import AlbertModel
from albert_tf.text.tokenization import Tokenizer

# Largest number of pieces that are named: more names would overlap.
_MOST_NAMED = 32


def probabilities(model: AlbertModel, features: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the attention probabilities of every block and head, given features by name.

    Returns:
      `<float32>[L, B, N, S, S]`: how much each position (fourth axis) attends to each (last axis,
      sums to 1). L is num_hidden_layers * inner_group_num.
    """
    encoder, found = model.encoder, []
    states = models.block_states(model, features)
    masked_scores = layers.masked_scores(features["input_mask"])
    # The model returns no probabilities: recompute them from the input of each block.
    blocks = [block for layer, times in encoder.schedule() for block in layer * times]
    for block, x in zip(blocks, states, strict=False):
        attention = encoder.attention[block.attention]
        probs, _ = attention.attend(x, attention.read(), masked_scores, None, None)
        found.append(np.asarray(probs))
    return np.stack(found)


def of_text(
    model: AlbertModel, tokenizer: Tokenizer, text: str, text_pair: str | None = None
) -> tuple[list[str], np.ndarray]:
    """Returns a text's pieces, special ones included, and `<float32>[L, N, S, S]`."""
    # Leave room for one piece more, so that the model refuses a text that would be truncated.
    row = pair_features(tokenizer, text, text_pair, model.config.max_position_embeddings + 1)
    features = {name: value[None] for name, value in row.items()}
    found = probabilities(model, features)[:, 0]
    return tokenizer.convert_ids_to_tokens(row["input_ids"]), found


def npz(pieces: Sequence[str], probabilities: np.ndarray) -> bytes:
    """Returns an .npz file of `pieces` `<str>[S]` and `probabilities` `<float32>[L, N, S, S]`."""
    content = io.BytesIO()
    np.savez_compressed(content, pieces=np.array(pieces), probabilities=probabilities)
    return content.getvalue()


def draw(pieces: Sequence[str], probabilities: np.ndarray) -> bytes:
    """Returns a PNG with a panel for each layer (row) and head (column); darker means more.

    They share a scale that ends at the largest probability, since in a long text most are small.
    """
    layers, heads, length, _ = probabilities.shape
    most = probabilities.max()
    figure = figures.new_figure(1.8 + 1.6 * heads, 1 + 1.6 * layers)
    panels = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    for layer, row in enumerate(panels):
        row[0].set_ylabel(f"layer {layer + 1}", fontsize=8)
        for head, axes in enumerate(row):
            image = axes.imshow(probabilities[layer, head], cmap="Blues", vmin=0, vmax=most)
            if not layer:
                axes.set_title(f"head {head + 1}", fontsize=8)
    # Only the outer panels name the pieces.
    places = range(length) if length <= _MOST_NAMED else []
    # A $ would begin a formula.
    names = [piece.replace("$", r"\$") for piece in pieces] if places else []
    for axes in panels[-1]:
        axes.set_xticks(places, names, rotation=90, fontsize=5)
    for axes in panels[:, 0]:
        axes.set_yticks(places, names, fontsize=5)
    figure.suptitle("Attention of each piece (row) to each piece (column)", fontsize=9)
    scale = figure.colorbar(image, ax=panels, aspect=30, fraction=0.05)
    scale.set_label("attention probability", fontsize=8)
    scale.ax.tick_params(labelsize=7)
    return figures.png(figure)
