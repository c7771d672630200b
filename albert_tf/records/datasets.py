"""Datasets of tf.data as this project reads them."""

from __future__ import annotations

import tensorflow as tf


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset without autotuning, whose iterators end at once.

    Autotuning gives each iterator a thread that can miss the signal to end, and the iterator's end
    waits until the thread's next round: up to as long as the iterator has existed, at most a
    minute. Without it, `num_parallel_calls=AUTOTUNE` means one thread per core, up to 16.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
