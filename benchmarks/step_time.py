"""Training steps of pre-training on random batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from albert_tf.config import AlbertConfig
from albert_tf.inspection.costs import Shape

_LEARNING_RATE = 1e-4


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


def training_step(
    config: AlbertConfig, shape: Shape, dtype: str = "float32"
) -> Callable[[], float]:
    """Returns a function that makes one update of a new model and returns its loss.

    Args:
      config: The model's config.
      shape: Size of the batch, which is the same in every step.
      dtype: See PretrainingTask.
    """
    import tensorflow as tf

    from albert_tf.tasks.pretraining import PretrainingTask
    from albert_tf.training.optimizers import create_optimizer
    from albert_tf.training.tensorflow_devices import TrainStep

    task = PretrainingTask(config, dtype)
    model = task.build_model()
    optimizer = create_optimizer(_LEARNING_RATE, 1_000_000, 0)
    optimizer.build(model.trainable_variables)
    train_step = TrainStep(task, model, optimizer)
    batch = synthetic_batch(shape, config.vocab_size)
    features = {name: tf.constant(value) for name, value in batch.items()}
    function = tf.function(lambda: train_step(features), autograph=False).get_concrete_function()
    return lambda: float(function()[0])
