"""Random weights with which attention begins nearby, so that pre-training needs fewer tokens."""

from __future__ import annotations

import numpy as np
from keras import ops

from albert_tf.model.albert import AlbertModel

# Wavelengths are from 2 pi to 2 pi times this number, in positions.
_LONGEST = 64
# A position's mean score for itself, whatever the width.
_SCORE = 6


def attend_nearby(model: AlbertModel) -> None:
    """Changes a random model so that each position attends most to itself and its neighbours.

    The position table becomes sinusoids, twice as large as the other tables: the nearer two
    positions are, the larger is their product. Each key kernel becomes its query kernel, and both
    are scaled, so that a score is such a product. Training changes all of them freely.

    Of 64 positions, each then gives about 28 % of its attention to itself and 10 % to either
    neighbour. Where E is not H, the first layer's inputs are too small for that: it looks at all
    positions alike.

    Source: Trockman and Kolter 2023 (arXiv 2305.09828), and Saponati et al. 2025 (2502.10927) for
    query and key; Vaswani et al. 2017 (1706.03762) for the sinusoids.

    Example:
      >>> from albert_tf.config import AlbertConfig
      >>> config = AlbertConfig(31, embedding_size=8, hidden_size=12, num_attention_heads=3)
      >>> model = AlbertModel(config)
      >>> attend_nearby(model)
      >>> table = model.embeddings.position_embeddings.numpy()
      >>> [round(1000 * float(table[9] @ table[9 + i])) for i in (0, 1, 5, 50)]
      [13, 11, 6, 6]
    """
    config, table = model.config, model.embeddings.position_embeddings
    positions, width = table.shape
    # Half of the columns are sines, and half cosines. An odd width has one sine more.
    number = -(-width // 2)
    angles = np.arange(positions)[:, None] / _LONGEST ** (np.arange(number) / number)
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width]
    # The root mean square of a wave is 1 / sqrt(2).
    table.assign(2 * config.initializer_range * np.sqrt(2) * waves)
    # Inputs are normalised, so the mean score is width * sqrt(size of a head) * variance.
    per_variance = config.hidden_size * np.sqrt(config.hidden_size / config.num_attention_heads)
    for layer in model.encoder.attention:
        kernel = layer.query_kernel / ops.std(layer.query_kernel) * np.sqrt(_SCORE / per_variance)
        layer.query_kernel.assign(kernel)
        layer.key_kernel.assign(kernel)
