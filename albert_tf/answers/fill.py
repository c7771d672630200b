"""Answers of a pretrained model: the likely pieces for each [MASK], and vectors of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from albert_tf.answers import rows as rows_of
from albert_tf.answers.kind import Kind, Reading, option, softmax, strings
from albert_tf.answers.rows import Row
from albert_tf.config import AlbertConfig
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.word_starts import SPACE_MARK

MASK = "[MASK]"
# Answers that are left out if their weights were not trained -> the outputs they come from.
MADE_OF = {"pooled": "pooled_output", "swapped": "sentence_order_logits"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fill(Kind):
    """Fills each [MASK] in a text, and embeds the text.

    Attributes:
      top_k: Number of pieces for each [MASK].
      without: Which of MADE_OF are left out.
    """

    task = task_name = "fill_mask"
    model = "AlbertForPreTraining"
    heads = ("cls/predictions/", "cls/seq_relationship/")
    reads_pooler = True
    title = "Guess the missing words"
    vector = "mean"
    is_scored = False
    dispensable = {"bert/pooler/": ("pooled", "swapped"), "cls/seq_relationship/": ("swapped",)}
    positions_at_once = 512  # Each position has a logit for every piece.

    top_k: int = option(5, "Number of pieces per [MASK].", most=1000)
    without: tuple[str, ...] = option((), "")

    def check(self, config: AlbertConfig) -> None:
        super().check(config)
        if self.top_k > config.vocab_size:
            raise ValueError(f"`top_k` must be from 1 to {config.vocab_size}, got {self.top_k}")

    @property
    def outputs(self) -> Mapping[str, tuple[int | None, ...] | None]:
        return {"masked_lm_logits": None, "sequence_output": None}

    def rows(self, tokenizer: Tokenizer, text: str) -> Iterator[Row]:
        """Yields one row. Text that follows [MASK] without a space continues its word."""
        found: list[int] = []
        # With Hugging Face's ids the tokenizer splits [MASK] off itself, as an added token.
        parts = [text] if MASK in tokenizer.added_tokens else text.split(MASK)
        for i, part in enumerate(parts):
            ids = tokenizer.encode(part, self.max_seq_length)
            # After [MASK] the first piece has no space, if the vocabulary has such a piece.
            if i > 0 and ids and not part[0].isspace():
                (piece,) = tokenizer.convert_ids_to_tokens(ids[:1])
                bare = piece.removeprefix(SPACE_MARK)
                glued = tokenizer.convert_tokens_to_ids([bare]) if bare else []
                # If the piece without a space is not in the vocabulary, keep the one with it.
                if tokenizer.convert_ids_to_tokens(glued) == [bare] * len(glued):
                    ids = [*glued, *ids[1:]]
            found += [tokenizer.mask_id, *ids] if i else ids
        yield rows_of.join_ids(tokenizer, found[: self.max_seq_length - 2])

    def found(self, reading: Reading) -> dict[str, Any]:
        tokenizer, _, (row,), (output,) = reading
        # The best pieces of each [MASK]; positions after the row's end are padding.
        length = len(row["input_ids"])
        is_mask = row["input_ids"] == tokenizer.mask_id
        # A padded embedding table has more rows than there are pieces.
        logits = output["masked_lm_logits"][:length, : tokenizer.vocab_size]
        shares = softmax(logits[is_mask])
        best = np.argsort(-shares, axis=1, kind="stable")[:, : self.top_k]
        pieces = [tokenizer.convert_ids_to_tokens(ids) for ids in best.tolist()]
        # Vectors of the text, as far as their weights were trained.
        vectors = {"mean": output["sequence_output"][:length].mean(axis=0)}
        if MADE_OF["pooled"] in output:
            vectors["pooled"] = output[MADE_OF["pooled"]]
        if MADE_OF["swapped"] in output:
            vectors["swapped"] = np.float32(softmax(output[MADE_OF["swapped"]])[1])
        return {
            "pieces": strings(pieces).reshape(best.shape),
            "probabilities": np.take_along_axis(shares, best, axis=1).astype(np.float32),
            **vectors,
        }

    def answer(self, found: Mapping[str, Any]) -> dict[str, Any]:
        masks = zip(found["pieces"].tolist(), found["probabilities"].tolist(), strict=True)
        return {
            "masks": [
                [{"piece": p, "probability": share} for p, share in zip(*mask, strict=True)]
                for mask in masks
                if mask[0][0]  # A SavedModel pads texts with fewer masks than others of the batch.
            ]
        }

    def said(self, answer: Mapping[str, Any]) -> str:
        nothing = "there is no [MASK] in the part that the model reads"
        masks = (
            ", ".join(f"{each['piece']} {each['probability']:.3f}" for each in mask)
            for mask in answer["masks"]
        )
        return "\n".join(masks) or nothing
