"""Fills [MASK] in raw texts and embeds them, in the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from albert_tf.answers.fill import MADE_OF, MASK, Fill
from albert_tf.serving.graphs.base import ServedModel
from albert_tf.serving.graphs.text import (
    SPACES,
    RowTable,
    from_rows,
    of_rows,
    places,
    ragged_rows,
    with_origins,
)
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.text.word_starts import SPACE_MARK
from albert_tf.types import Features


class MaskFiller(ServedModel):
    """A pretrained model: it fills [MASK] in texts and embeds them.

    With M the largest number of [MASK] in a text, it returns the most probable `pieces`
    `<string>[B, M, K]` and their `probabilities` `<float32>[B, M, K]` (padded with "" and 0),
    `pooled` `<float32>[B, H]`, `mean` `<float32>[B, H]` (over the vectors of all pieces) and
    `swapped` `<float32>[B]`, the probability that the segments are swapped.
    """

    kind_class = Fill

    def __init__(self, model: keras.Model, vocabulary: Vocabulary, kind: Any) -> None:
        super().__init__(model, vocabulary, kind)
        tokenizer = vocabulary.tokenizer
        self.mask_id = tokenizer.mask_id
        self.pieces = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))

    def read_texts(self) -> None:
        super().read_texts()
        self._glued = _glued_pieces(self.pieces)

    def numbers(self, features: Features) -> Features:
        """Returns `masked_lm_logits` of all positions, `sequence_output`, and its other outputs."""
        ids = features["input_ids"]
        positions = tf.range(tf.shape(ids)[1])[None] * tf.ones_like(ids)
        outputs = self._scored(features, positions)
        kept = [name for answer, name in MADE_OF.items() if answer not in self.kind.without]
        return {name: outputs[name] for name in ("masked_lm_logits", "sequence_output", *kept)}

    def _scored(self, features: Features, positions: tf.Tensor) -> Features:
        outputs = self.apply({**features, "masked_lm_positions": positions})
        # A padded embedding table has more rows than pieces; a page expects one logit per piece.
        logits, size = outputs["masked_lm_logits"], len(self.pieces)
        logits = logits if logits.shape[-1] == size else logits[:, :, :size]
        return {**outputs, "masked_lm_logits": logits}

    def answer_texts(self, text: tf.Tensor) -> Features:
        """Splits the text at each [MASK], then the parts into pieces."""
        parts = tf.strings.split(text, MASK)
        # With Hugging Face's ids the tokenizer splits [MASK] off itself, as an added token.
        if MASK in self.vocabulary.tokenizer.added_tokens:
            parts = ragged_rows(text, tf.ones_like(text, tf.int32))
        ids = self.tokenizer.first(parts.values, self.kind.max_seq_length)
        # Text that follows [MASK] without a space continues its word: its first piece has no space.
        has_space = tf.strings.regex_full_match(parts.values, f"(?s){SPACES}.*")
        glued = of_rows(ids, (places(parts) > 0) & ~has_space) & (places(ids) == 0)
        # The second half of the table has the pieces without a space.
        shift = tf.where(glued, len(self.pieces), 0)
        values, origins, _ = self._glued.lookup(ids.values + shift)
        ids = with_origins(ids, values, origins)
        # Join the parts with [MASK] between them: one before each, without the first.
        masks = tf.fill([ids.nrows(), 1], self.mask_id)
        ids = parts.with_values(tf.concat([masks, ids], axis=1)).merge_dims(1, 2)
        return self.run(self.builder.single(ids[:, 1:]))

    def answer(self, features: Features) -> Features:
        is_mask = features["input_ids"] == self.mask_id
        # The positions of [MASK] in each text, `<int32>[B, M]`, padded with 0.
        masked = tf.where(is_mask)
        columns = tf.cast(masked[:, 1], tf.int32)
        rows = from_rows(columns, masked[:, 0], tf.shape(is_mask, tf.int64)[0])
        positions = rows.to_tensor()
        outputs = self._scored(features, positions)
        # The best pieces of each [MASK]; texts with fewer of them than others are padded.
        probabilities = tf.nn.softmax(outputs["masked_lm_logits"])
        probabilities, ids = tf.math.top_k(probabilities, self.kind.top_k)
        there = tf.sequence_mask(rows.row_lengths(), tf.shape(positions)[1])[:, :, None]
        # The mean vector of all positions but padding.
        keep = tf.cast(features["input_mask"], tf.float32)[:, :, None]
        sequence = tf.cast(outputs["sequence_output"], tf.float32)
        answers = {
            "pieces": tf.where(there, tf.gather(tf.constant(self.pieces), ids), ""),
            "probabilities": tf.where(there, probabilities, 0.0),
            "mean": tf.math.divide_no_nan(
                tf.reduce_sum(sequence * keep, axis=1), tf.reduce_sum(keep, axis=1)
            ),
        }
        if "pooled" not in self.kind.without:
            answers["pooled"] = tf.cast(outputs["pooled_output"], tf.float32)
        if "swapped" not in self.kind.without:
            answers["swapped"] = tf.nn.softmax(outputs["sentence_order_logits"])[:, 1]
        return answers


def _glued_pieces(pieces: Sequence[str]) -> RowTable:
    """Returns a table of all pieces, then of their forms without a space before them."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    without = [ids.get(piece.removeprefix(SPACE_MARK), i) for i, piece in enumerate(pieces)]
    # A piece that is nothing but a space vanishes.
    rows = [[i] if piece != SPACE_MARK else [] for i, piece in zip(without, pieces, strict=True)]
    return RowTable([*([i] for i in range(len(pieces))), *rows])
