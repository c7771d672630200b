"""Vectors of raw texts, in the graph."""

from __future__ import annotations

import tensorflow as tf

from albert_tf.answers.embed import Embed
from albert_tf.serving.graphs.base import ServedModel
from albert_tf.types import Features


class Embedder(ServedModel):
    """A model that embeds texts.

    It returns `embedding` `<float32>[B, D]`, and `tokens` `<int32>[B]`, how many pieces it read.
    """

    kind_class = Embed

    def answer_texts(self, text: tf.Tensor) -> Features:
        """Puts the default prompt before each text, and cuts long ones."""
        prefix, most = self.kind.prefix, self.kind.max_seq_length
        text = tf.strings.join([prefix, text]) if prefix else text
        return self.run(self.builder.single(self.tokenizer.first(text, most)))

    def numbers(self, features: Features) -> Features:
        return {"embedding": self.apply(features)}

    def answer(self, features: Features) -> Features:
        return {**self.numbers(features), "tokens": tf.reduce_sum(features["input_mask"], axis=1)}
