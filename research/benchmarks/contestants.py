"""The contestants of train_step.py: each function builds one and returns its training step.

A step is one update of ALBERT-base v2 (dropout 0, V = 30,000): forward and backward pass, clip to a
global norm of 1, AdamW. It returns when the update is done. Each framework is imported only by its
own contestants, and used as its documentation says, on the same random batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from base_model import CONFIG_FILE, hugging_face_config

from albert_tf.config import AlbertConfig
from albert_tf.conversion import kerashub
from albert_tf.inspection import costs
from albert_tf.inspection.costs import Shape

Step = Callable[[], float]

LEARNING_RATE = 1e-4
CLIP_NORM = 1.0
VOCAB_SIZE = 30_000
# Keras's dtype policies.
_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def albert_tf(shape: Shape, dtype: str) -> Step:
    """This project: the step that the Trainer runs."""
    import tensorflow as tf

    from albert_tf.training.tensorflow_devices import TrainStep

    config, *parts = _parts(CONFIG_FILE, dtype)
    train_step, batch = TrainStep(*parts), synthetic_batch(shape, config.vocab_size)
    features = {name: tf.constant(value) for name, value in batch.items()}
    function = tf.function(lambda: train_step(features), autograph=False).get_concrete_function()
    return lambda: float(function()[0])


def albert_tf_on_jax(
    shape: Shape, dtype: str, config_file: Path = CONFIG_FILE, device: Any = None
) -> Callable[..., float]:
    """This project on a JAX device, by default the first: runs of the Trainer's steps.

    The function returned makes a given number of steps, by default one; returns the last loss.
    """
    import jax
    import keras

    from albert_tf.training.interfaces import StepSettings
    from albert_tf.training.jax_devices import JaxDevices

    keras.utils.set_random_seed(0)
    device = device or jax.devices()[0]
    with jax.default_device(device):
        config, *parts = _parts(config_file, dtype)
        run = JaxDevices([device]).train_steps(*parts, StepSettings())
    batch = jax.device_put(synthetic_batch(shape, config.vocab_size), device)
    return lambda count=1: float(run([(iter([batch] * count), count)])[-1, 0])


def _parts(config_file: Path, dtype: str) -> tuple[AlbertConfig, Any, Any, Any]:
    """Returns a config, and the task, model and optimizer of a step."""
    from albert_tf.tasks.pretraining import PretrainingTask
    from albert_tf.training.optimizers import create_optimizer

    config = AlbertConfig.from_json_file(config_file)
    task = PretrainingTask(config, _POLICIES[dtype])
    model = task.build_model()
    optimizer = create_optimizer(LEARNING_RATE, 1_000_000, 0)
    optimizer.build(model.trainable_variables)
    return config, task, model, optimizer


def hugging_face(
    shape: Shape, dtype: str, compiled: bool, device: str = "cpu", **options: Any
) -> Step:
    """Hugging Face's AlbertForPreTraining on torch, with its own loss, under autocast.

    Args:
      shape, dtype: The step's.
      compiled: Whether torch.compile compiles it.
      device: torch's.
      **options: See hugging_face_config.
    """
    import torch
    import transformers

    config = hugging_face_config(**options)
    model = transformers.AlbertForPreTraining(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    inputs = hugging_face_inputs(synthetic_batch(shape, config.vocab_size), device)
    forward = torch.compile(model) if compiled else model

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = forward(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        return loss.item()

    return step


def keras_hub(shape: Shape, dtype: str, jit_compile: bool) -> Step:
    """KerasHub's AlbertMaskedLM on TensorFlow, without a preprocessor; it has no sentence order."""
    import keras
    import keras_hub
    import tensorflow as tf

    config = AlbertConfig.from_json_file(CONFIG_FILE)
    sizes = {**kerashub.backbone_arguments(config), "dropout": 0.0}
    backbone = keras_hub.models.AlbertBackbone(**sizes, dtype=_POLICIES[dtype])
    model = keras_hub.models.AlbertMaskedLM(backbone, preprocessor=None)
    model.compile(
        optimizer=keras.optimizers.AdamW(LEARNING_RATE, global_clipnorm=CLIP_NORM),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    batch = synthetic_batch(shape, VOCAB_SIZE)
    inputs = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
        "mask_positions": batch["masked_lm_positions"],
    }
    inputs = {name: tf.constant(value) for name, value in inputs.items()}
    labels = tf.constant(batch["masked_lm_ids"])
    return lambda: float(np.ravel(model.train_on_batch(inputs, labels))[0])


def synthetic_batch(shape: Shape, vocab_size: int) -> dict[str, np.ndarray]:
    """Returns a full batch of random pieces: the features of PretrainingTask."""
    rng = np.random.default_rng(0)
    tokens, masked = (shape.batch, shape.seq), (shape.batch, shape.predictions)
    positions = np.stack(
        [np.sort(rng.permutation(shape.seq)[: shape.predictions]) for _ in range(shape.batch)]
    )
    return {
        "input_ids": rng.integers(5, vocab_size, tokens).astype(np.int32),
        "input_mask": np.ones(tokens, np.int32),
        "segment_ids": (np.arange(shape.seq) >= shape.seq // 2 + np.zeros(tokens)).astype(np.int32),
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": rng.integers(5, vocab_size, masked).astype(np.int32),
        "masked_lm_weights": np.ones(masked, np.float32),
        "sentence_order_labels": rng.integers(0, 2, shape.batch).astype(np.int32),
    }


def hugging_face_inputs(batch: dict[str, np.ndarray], device: str = "cpu") -> dict[str, Any]:
    """Returns a batch under the names of Hugging Face's AlbertForPreTraining, as torch tensors."""
    import torch

    # It scores every position; the label -100 excludes a position from the loss.
    labels = np.full(batch["input_ids"].shape, -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], axis=1)
    inputs = {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["input_mask"],
        "token_type_ids": batch["segment_ids"],
        "labels": labels,
        "sentence_order_label": batch["sentence_order_labels"],
    }
    return {
        name: torch.tensor(value, dtype=torch.long, device=device) for name, value in inputs.items()
    }


def step_gflop(shape: Shape, config_file: Path = CONFIG_FILE) -> float:
    """Returns the GFLOP of a step; see albert_tf.inspection.costs."""
    return costs.step_flops(AlbertConfig.from_json_file(config_file), shape) / 1e9


# By dtype and name, in table order.
CONTESTANTS: dict[tuple[str, str], Callable[[Shape], Step]] = {}
for _dtype in _POLICIES:
    for _name, _build in {
        "albert_tf": partial(albert_tf, dtype=_dtype),
        "albert_tf, JAX": partial(albert_tf_on_jax, dtype=_dtype),
        "Hugging Face, eager": partial(hugging_face, dtype=_dtype, compiled=False),
        "Hugging Face, torch.compile": partial(hugging_face, dtype=_dtype, compiled=True),
        "KerasHub": partial(keras_hub, dtype=_dtype, jit_compile=False),
        "KerasHub, jit_compile": partial(keras_hub, dtype=_dtype, jit_compile=True),
    }.items():
        CONTESTANTS[_dtype, _name] = _build
