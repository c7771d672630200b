"""Checkpoints of brightmart/albert_zh, converted to the release's names and shapes.

There the embedding is factorised as word_embeddings @ word_embeddings_2, and positions and token
types are added to the product, which is as wide as the hidden states. The release adds them before
it widens the sum, so none of its models with E < H computes the same. One with E = H does: its only
table is the product.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
from absl import logging

from albert_tf.config import AlbertConfig
from albert_tf.conversion import names

_NAMES = names.Renaming(names.ALBERT_ZH_NAMES)
_TABLE = names.WORD_EMBEDDINGS
_PROJECTION = f"{_TABLE}_2"
# The released models have at most 32. A larger product than this could exhaust memory.
_MOST_HIDDEN_PER_EMBEDDING = 64


def recognises(tensors: Iterable[str]) -> bool:
    """Returns whether tensors with these names come from such a checkpoint."""
    return any(name.startswith(names.ALBERT_ZH_LAYER) for name in tensors)


def fold_config(config: AlbertConfig) -> AlbertConfig:
    """Returns the config of the model that `fold` makes."""
    return dataclasses.replace(config, embedding_size=config.hidden_size)


def fold(weights: Mapping[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    """Renames weights, and multiplies the two factors of the embedding.

    Args:
      weights: `<float32>` arrays by their names.
      path: Their source, for messages.

    Returns:
      The same by the release's names, with one table `<float32>[V, H]`.

    Raises:
      ValueError: If the factors do not fit each other, or a weight occurs under both names.
    """
    renamed = {_NAMES.backward(name) or name: value for name, value in weights.items()}
    if len(renamed) != len(weights):
        raise ValueError(
            f"{path} contains weights under albert_zh's names and under the release's: keep one set"
        )
    none = np.empty(0)
    table, projection = renamed.get(_TABLE, none), renamed.pop(_PROJECTION, none)
    shapes = [*table.shape, *projection.shape]
    if len(shapes) != 4 or shapes[1] != shapes[2]:
        raise ValueError(
            f"{path} is damaged: {_TABLE} {list(table.shape)} can't be multiplied by {_PROJECTION} "
            f"{list(projection.shape)}"
        )
    vocab_size, width, _, hidden = shapes
    if hidden > _MOST_HIDDEN_PER_EMBEDDING * width:
        raise ValueError(
            f"{path} is damaged: it maps embeddings of size {width} to size {hidden}, which is "
            "implausible"
        )
    product = table.astype(np.float64) @ projection.astype(np.float64)
    logging.info(
        "%s: word_embeddings @ word_embeddings_2 is loaded as one table (E = H = %d): training "
        "updates all of its %d x %d numbers, whereas albert_zh trains %d x %d and %d x %d",
        *(path, hidden, vocab_size, hidden, *shapes),
    )
    return {**renamed, _TABLE: product.astype(np.float32)}
