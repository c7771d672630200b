"""The release's tiny pre-training models and what it computed with them."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np

import albert_tf

FOLDER = pathlib.Path(__file__).parent / "golden" / "encoder"
VARIANTS = ("base", "groups2", "groups2_inner2", "groups3", "inner2", "same_width_relu")


def arrays(file: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads an .npz whose names hold | for /."""
    with np.load(file) as stored:
        return {name.replace("|", "/"): stored[name] for name in stored.files}


def features(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames the release's inputs to those in memory."""
    inputs = dict(inputs)
    inputs["sentence_order_labels"] = inputs.pop("next_sentence_labels")[:, 0]
    return inputs


def inputs(variant: str) -> dict[str, np.ndarray]:
    return features(arrays(FOLDER / variant / "inputs.npz"))


def outputs(variant: str) -> dict[str, np.ndarray]:
    return arrays(FOLDER / variant / "outputs.npz")


def config(variant: str, **changes: Any) -> albert_tf.AlbertConfig:
    stored = albert_tf.AlbertConfig.from_json_file(FOLDER / variant / "albert_config.json")
    return dataclasses.replace(stored, **changes)


def checkpoint(variant: str) -> str:
    return str(FOLDER / variant / "model.ckpt-best")


def pretrained(variant: str, recompute: bool = False, dtype: str = "float32", **changes: Any):
    """Returns an AlbertForPreTraining that holds the release's weights, all of its shapes."""
    released = albert_tf.AlbertForPreTraining(config(variant))
    albert_tf.load_weights(released, checkpoint(variant))
    model = albert_tf.AlbertForPreTraining(
        config(variant, **changes), recompute=recompute, dtype=dtype
    )
    model.set_weights(released.get_weights())
    return model
