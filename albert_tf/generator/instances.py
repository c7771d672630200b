"""From documents to examples: tokens in bounded blocks, drawn pairs, finished feature arrays.

Every step depends only on its arguments and on seeds derived from (random_seed, document, pass,
number), so blocks and batches can be computed anywhere, in any order.
"""

from __future__ import annotations

import array
import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.generator.pairs import PairSettings, SegmentPair, draw_pairs
from albert_tf.records import masking
from albert_tf.records.rows import Rows
from albert_tf.records.specs import NUM_SPECIALS, RowFormat
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.word_starts import split_words

_PAIRS, _INSTANCES, _ORDER = range(3)  # what a seed is used for


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How instances are made from documents.

    Attributes:
      pairs: How documents are cut.
      masking: How instances are masked; None leaves masking to training.
      dupe_factor: Passes over the text, each with new pairs and masks.
      random_seed: Seed of every draw.
      word_starts: Which letters may continue a word, as Tokenizer.word_starts takes it.
      word_separator: What stands between the words of segmented text, and is no part of it. None:
        the vocabulary tells where words start.
      max_examples_per_row: Maximum examples per record; 1 disables packing.

    Raises:
      ValueError: If dupe_factor or max_examples_per_row is below 1, unmasked examples are to be
        packed, or no line of text can hold the separator.
    """

    pairs: PairSettings
    masking: masking.MaskingSettings | None
    dupe_factor: int
    random_seed: int
    word_starts: str = "latin"
    word_separator: str | None = None
    max_examples_per_row: int = 1

    def __post_init__(self) -> None:
        if self.dupe_factor < 1:
            raise ValueError(f"`dupe_factor` must be at least 1, got {self.dupe_factor}")
        if self.max_examples_per_row < 1:
            raise ValueError(
                f"`max_examples_per_row` must be at least 1, got {self.max_examples_per_row}"
            )
        if self.word_separator is not None and (
            not self.word_separator or "\n" in self.word_separator
        ):
            raise ValueError(
                "`word_separator` must be one or more characters that separate words within a "
                f"line, got {self.word_separator!r}"
            )
        if self.max_examples_per_row > 1 and self.masking is None:
            raise ValueError(
                "`max_examples_per_row` packs masked examples, but with `masking=dynamic` they "
                "are not masked yet: leave one of them out"
            )


class TokenBlock(NamedTuple):
    """Documents that serve as each other's random documents and are shuffled together.

    Attributes:
      tokens: <int32>[T] of all documents, concatenated.
      word_starts: <bool>[T], which of them start a word.
      documents: For each document, where its sentences begin in `tokens`, and where the last ends.
      numbers: <int64>[D], their numbers in the corpus.
    """

    tokens: np.ndarray
    word_starts: np.ndarray
    documents: list[list[int]]
    numbers: np.ndarray


class Instances(NamedTuple):
    """A block's examples, drawn and shuffled but not yet built.

    Attributes:
      pairs: SegmentPairs as rows of <int32>[N, 7].
      seeds: <uint64>[N], each instance's seed for its masks.
    """

    pairs: np.ndarray
    seeds: np.ndarray


def tokenize_documents(
    documents: Sequence[Sequence[str]],
    first_number: int,
    tokenizer: Tokenizer,
    word_starts: np.ndarray,
    word_separator: str | None = None,
) -> TokenBlock:
    """Tokenises documents; one without tokens is dropped, but its number stays taken.

    Args:
      documents: The sentences of each.
      first_number: Number of the first.
      tokenizer: Splits them.
      word_starts: <bool>[V], from the tokenizer; not used with a separator.
      word_separator: See Recipe.
    """
    tokens, starts, kept, numbers = array.array("i"), bytearray(), [], []
    for number, sentences in enumerate(documents, first_number):
        bounds = [len(tokens)]
        for sentence in sentences:
            if word_separator:
                ids, of_text = tokenizer.encode_words(split_words(sentence, word_separator))
                starts += of_text.tobytes()
            else:
                ids = tokenizer.encode(sentence)
            if ids:
                tokens.fromlist(ids)
                bounds.append(len(tokens))
        if len(bounds) > 1:
            kept.append(bounds)
            numbers.append(number)
    all_tokens = np.array(tokens, np.int32)
    all_starts = np.frombuffer(starts, bool) if word_separator else word_starts[all_tokens]
    return TokenBlock(all_tokens, all_starts, kept, np.array(numbers, np.int64))


def draw_instances(block: TokenBlock, recipe: Recipe) -> Instances:
    """Draws the pairs of `dupe_factor` passes over a block and shuffles them."""
    draw = functools.partial(draw_pairs, settings=recipe.pairs, word_starts=block.word_starts)
    pairs, seeds = [], []
    for dupe in range(recipe.dupe_factor):
        pass_seeds = masking.derive_seeds(recipe.random_seed, block.numbers, dupe)
        pair_seeds = masking.derive_seeds(pass_seeds, _PAIRS).tolist()
        drawn = [
            draw(block.documents, index, rng=random.Random(seed))
            for index, seed in enumerate(pair_seeds)
        ]
        counts = [len(of_document) for of_document in drawn]
        instance_numbers = np.concatenate([np.arange(count) for count in counts])
        flat = np.array([pair for of_document in drawn for pair in of_document], np.int32)
        pairs.append(flat.reshape(-1, len(SegmentPair._fields)))  # There may be none.
        seeds.append(
            masking.derive_seeds(np.repeat(pass_seeds, counts), _INSTANCES, instance_numbers)
        )
    all_pairs, all_seeds = np.concatenate(pairs), np.concatenate(seeds)
    order = np.argsort(masking.derive_seeds(all_seeds, _ORDER), kind="stable")
    return Instances(all_pairs[order], all_seeds[order])


def build_examples(
    block: TokenBlock, instances: Instances, recipe: Recipe, tokenizer: Tokenizer
) -> dict[str, np.ndarray]:
    """Builds and masks [CLS] A [SEP] B [SEP] for a batch of instances.

    Args:
      block: The documents.
      instances: B of the block's instances.
      recipe: See Recipe; its `masking` is not None.
      tokenizer: For the ids of special tokens.

    Returns:
      The features of records.pretraining_spec, [B, ...].

    Source: create_pretraining_data.py, create_instances_from_document and
    write_instance_to_example_files.
    """
    segments = _gather_segments(block, instances, recipe.pairs.max_seq_length)
    rows = Rows.lay_out(*segments, _row_format(recipe, tokenizer))
    return {
        "token_boundary": rows.token_boundaries(),
        "sentence_order_labels": instances.pairs[:, SegmentPair._fields.index("label")],
        **rows.mask(instances.seeds, recipe.masking),
    }


def build_compact_examples(
    block: TokenBlock, instances: Instances, recipe: Recipe, tokenizer: Tokenizer
) -> dict[str, np.ndarray | list[np.ndarray]]:
    """Gathers the unmasked content of a batch of instances, for masking during training.

    Args: see build_examples.

    Returns:
      The features of records.compact_spec, [B, ...]; lists where lengths differ.
    """
    segments = _gather_segments(block, instances, recipe.pairs.max_seq_length)
    sizes = segments.lengths.sum(1).tolist()

    def cut(rows: np.ndarray) -> list[np.ndarray]:
        return [row[:size] for row, size in zip(rows, sizes, strict=True)]

    row_format = np.array(_row_format(recipe, tokenizer), np.int32)
    return {
        "token_ids": cut(segments.token_ids),
        "segment_lengths": segments.lengths,
        "word_starts": cut(segments.word_starts),
        "sentence_order_labels": instances.pairs[:, SegmentPair._fields.index("label")],
        "row_format": np.tile(row_format, (len(sizes), 1)),
    }


class _Segments(NamedTuple):
    """Tokens of A, then of B, of a batch.

    Attributes:
      token_ids: <int32>[B, S - 3].
      lengths: <int32>[B, 2], tokens of A and of B.
      word_starts: <bool>[B, S - 3], which tokens start a word.
    """

    token_ids: np.ndarray
    lengths: np.ndarray
    word_starts: np.ndarray


def _gather_segments(block: TokenBlock, instances: Instances, max_seq_length: int) -> _Segments:
    pairs = SegmentPair(*instances.pairs.T[..., None])
    length_a = pairs.a_end - pairs.a_begin
    columns = np.arange(max_seq_length - NUM_SPECIALS)
    begins = np.where(columns < length_a, pairs.a_begin, pairs.b_begin - length_a)
    return _Segments(
        block.tokens.take(begins + columns, mode="clip"),
        np.concatenate([length_a, pairs.b_end - pairs.b_begin], axis=1),
        block.word_starts.take(begins + columns, mode="clip"),
    )


def _row_format(recipe: Recipe, tokenizer: Tokenizer) -> RowFormat:
    return RowFormat(
        max_seq_length=recipe.pairs.max_seq_length,
        vocab_size=tokenizer.vocab_size,
        pad_id=tokenizer.pad_id,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        mask_id=tokenizer.mask_id,
    )
