"""The models that are inspected, and what each of their layers makes of a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import keras
import numpy as np

from albert_tf.config import AlbertConfig
from albert_tf.conversion.names import MASKED_LM_HEAD
from albert_tf.conversion.stored import Stored
from albert_tf.model.albert import AlbertModel
from albert_tf.model.heads import AlbertForPreTraining
from albert_tf.types import Array


def load_encoder(stored: Stored) -> AlbertModel:
    """Returns the encoder of stored weights; whatever heads they have are left out.

    Raises:
      FileNotFoundError: If there are no such weights, or no config beside them.
      ValueError: If they are damaged or don't fit.
    """
    model = AlbertModel(stored.config())
    stored.fill(model)  # Lacks at most the pooler, which is no layer.
    return model


def load_masked_lm(stored: Stored) -> AlbertForPreTraining:
    """Returns a stored model with its masked-LM head.

    Raises:
      FileNotFoundError: See load_encoder.
      ValueError: If there is no such head; see also load_encoder.
    """
    model = AlbertForPreTraining(stored.config())
    lacking = [name for name in stored.fill(model) if name.startswith(MASKED_LM_HEAD)]
    if lacking:
        raise ValueError(
            f"{stored.path} is not trained for masked LM: it lacks {', '.join(lacking)}"
        )
    return model


def with_random_weights(config: AlbertConfig, seed: int) -> AlbertModel:
    """Returns a fresh model, as pre-training would begin with."""
    keras.utils.set_random_seed(seed)
    return AlbertModel(config)


def check_extra_layers(config: AlbertConfig, extra_layers: int) -> None:
    """Checks that a model can be lengthened.

    Raises:
      ValueError: If its layers don't share one block.
    """
    if extra_layers and max(config.num_attention_groups, config.num_ffn_groups) > 1:
        raise ValueError(
            "`extra_layers` applies the block that all layers share; this model has "
            f"{config.num_attention_groups} groups of attention and {config.num_ffn_groups} of "
            "feed-forward layers: leave it out"
        )


def lengthened(model: AlbertModel, extra_layers: int) -> AlbertModel:
    """Returns a model of the same weights that applies its shared block more often."""
    depth = model.config.num_hidden_layers + extra_layers
    longer = AlbertModel(dataclasses.replace(model.config, num_hidden_layers=depth))
    longer.set_weights(model.get_weights())
    return longer


def layer_states(model: AlbertModel, features: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the input of the first layer, which follows the E to H map, and all outputs.

    Args:
      model: The model.
      features: `input_ids`, `input_mask` and `segment_ids`, `<int32>[B, S]`.

    Returns:
      L + 1 arrays `<float32>[B, S, H]`; a layer is all its `inner_group_num` blocks.
    """
    states = block_states(model, features)[:: model.config.inner_group_num]
    return [np.asarray(state) for state in states]


def block_states(model: AlbertModel, features: Mapping[str, np.ndarray]) -> list[Array]:
    """Returns the input of each block, and the last one's output; see layer_states."""
    outputs = model(features, training=False)
    first = model.encoder.to_hidden_size(outputs["embedding_output"])
    return [first, *outputs["all_encoder_layers"]]
