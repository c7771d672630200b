"""Datasets of tf.data as this project reads them."""

from __future__ import annotations

import tensorflow as tf


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset without autotuning, whose iterators end at once.

    Autotuning gives each iterator a thread, which can miss the signal to end and sleep until its
    next round: as long again as the iterator has been there, up to a minute. The iterator's end
    waits for it. (`num_parallel_calls=AUTOTUNE` then means one thread per core, up to 16.)
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
