"""A block's documents -> pairs of segments, masked, several short ones to a row."""

from __future__ import annotations

import array
import bisect
import functools
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.generator.settings import SHORTEST_TARGET, GeneratorSettings
from albert_tf.records import masking
from albert_tf.records.masking import Rows
from albert_tf.records.spec import NUM_SPECIALS, RowFormat
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.word_splitting import split_segmented

_TRIES_FOR_ANOTHER_DOCUMENT = 10
# The purpose of a seed, which is part of its hash.
_PAIRS, _INSTANCES, _ORDER = range(3)
# Features with one value for each token of a row, and for each prediction.
_TOKEN_FEATURES = ("input_mask", "segment_ids", "token_boundary")
_PREDICTION_FEATURES = ("masked_lm_ids", "masked_lm_weights")


# --- pairs: a document is cut ---------------------------------------------------------------


class SegmentPair(NamedTuple):
    """Tokens [a_begin, a_end) and [b_begin, b_end) of one instance."""

    a_begin: int
    a_end: int
    b_begin: int
    b_end: int
    label: int  # 1 if B is not what follows A: swapped, or from a random document.
    single: int  # 1 if the chunk was one sentence, paired as `single_segment` says.
    dropped: int  # Tokens cut off for lack of room, and those of single-word chunks beside it.


def draw_pairs(
    documents: Sequence[Sequence[int]],
    index: int,
    settings: GeneratorSettings,
    rng: random.Random,
    word_starts: np.ndarray | None = None,
) -> list[SegmentPair]:
    """Cuts one document into the instances of one pass.

    Sentences are gathered up to a target length (drawn once per call) and split at random. B is
    what follows A, or both are swapped (sentence-order prediction, for the inter-sentence coherence
    loss); with `random_next_sentence` it is what follows A, or comes from a random document.

    `single_segment` governs a chunk of one sentence. With "random" it gets a B from a random
    document, and label 1, though nothing is out of order. With "split" it is split at the start of
    one of its words, into a pair like any other; a single word is dropped.

    A chunk of whole sentences may be longer than a row. It is truncated, or, with `overflow`
    "carry", ends before a word that doesn't fit, which begins the next chunk.

    Args:
      documents: For each document, where its sentences begin, ascending, then where the last ends.
      index: The document to cut; the others serve as random documents.
      settings: The generator's.
      rng: The only source of randomness.
      word_starts: <bool>[T], which tokens start a word; needed for single_segment "split".

    Source: create_pretraining_data.py, create_instances_from_document.
    """
    bounds = documents[index]
    # Most chunks aim at a full row; some documents aim lower, so that short texts are seen too.
    max_tokens = settings.max_seq_length - NUM_SPECIALS
    target = max_tokens
    if rng.random() < settings.short_seq_prob:
        target = rng.randint(SHORTEST_TARGET, max_tokens)

    pairs: list[SegmentPair] = []
    left_out = 0
    # A chunk begins at the token `begin`, in the sentence `first`.
    begin, first, num_sentences = bounds[0], 0, len(bounds) - 1
    while first < num_sentences:
        # A chunk: sentences up to the target length, cut at a random border between two of them.
        end = _end_of_run(bounds, begin, first, target)
        stop = bounds[end]
        if settings.overflow == "carry" and stop - begin > max_tokens:
            stop = _last_word_start(word_starts, begin, begin + max_tokens)
            end = bisect.bisect_left(bounds, stop, first + 1)
        single = end - first == 1
        middle = end if single else rng.randint(first + 1, end - 1)
        border = bounds[middle]
        if single and settings.single_segment == "split":
            border = _draw_word_start(word_starts, begin, stop, rng)
        a, b = (begin, border), (border, stop)
        begin, first = stop, end if stop == bounds[end] else end - 1
        if a[0] == border:
            left_out += stop - border
            continue
        # Half of the pairs are swapped or, for next-sentence prediction, get another B.
        label = 0
        if border == b[1] or (settings.random_next_sentence and rng.random() < 0.5):
            b = _draw_random_run(documents, index, target - (a[1] - a[0]), rng)
            label = 1
            # The rest, which would have been B, begins the next chunk.
            begin, first = border, middle
        elif not settings.random_next_sentence and rng.random() < 0.5:
            a, b = b, a
            label = 1
        dropped = max(0, a[1] - a[0] + b[1] - b[0] - max_tokens) + left_out
        pairs.append(SegmentPair(*_truncate(a, b, max_tokens, rng), label, int(single), dropped))
        left_out = 0
    if pairs and left_out:
        pairs[-1] = pairs[-1]._replace(dropped=pairs[-1].dropped + left_out)
    return pairs


def _end_of_run(bounds: Sequence[int], begin: int, first: int, target: int) -> int:
    """Returns the end of the shortest run with `target` tokens from `begin`, in sentence `first`.

    The run ends with a sentence, at the latest with the document.
    """
    end = bisect.bisect_left(bounds, begin + target, first + 1)
    return min(end, len(bounds) - 1)


def _draw_word_start(word_starts: np.ndarray, begin: int, end: int, rng: random.Random) -> int:
    """Draws a word's first token after `begin` and before `end`; `begin` if there is none."""
    inner = np.flatnonzero(word_starts[begin + 1 : end])
    return begin + 1 + int(rng.choice(inner)) if len(inner) else begin


def _last_word_start(word_starts: np.ndarray, begin: int, end: int) -> int:
    """Returns the last word start after `begin`, up to and including `end`; else `end`."""
    inner = np.flatnonzero(word_starts[begin + 1 : end + 1])
    return begin + 1 + int(inner[-1]) if len(inner) else end


def _draw_random_run(
    documents: Sequence[Sequence[int]], index: int, target: int, rng: random.Random
) -> tuple[int, int]:
    # The release gives up after as many draws: B may then come from the same document.
    for _ in range(_TRIES_FOR_ANOTHER_DOCUMENT):
        other = rng.randrange(len(documents))
        if other != index:
            break
    bounds = documents[other]
    first = rng.randrange(len(bounds) - 1)
    return bounds[first], bounds[_end_of_run(bounds, bounds[first], first, target)]


def _truncate(
    a: tuple[int, int], b: tuple[int, int], max_tokens: int, rng: random.Random
) -> tuple[int, int, int, int]:
    """Shortens the longer segment (B if equal) token by token, at a random end each time.

    How many tokens each segment loses is computed first; a segment's coin flips are one draw of
    bits.
    """
    # The longer segment loses tokens until both have the same length; then each loses in turn.
    length_a, length_b = a[1] - a[0], b[1] - b[0]
    if length_a + length_b <= max_tokens:
        return *a, *b
    kept_a = min(length_a, max(max_tokens - length_b, (max_tokens + 1) // 2))
    return (
        *_drop_tokens(a, length_a - kept_a, rng),
        *_drop_tokens(b, length_b - (max_tokens - kept_a), rng),
    )


def _drop_tokens(segment: tuple[int, int], count: int, rng: random.Random) -> tuple[int, int]:
    in_front = rng.getrandbits(count).bit_count() if count else 0
    return segment[0] + in_front, segment[1] - (count - in_front)


# --- packing: several short examples share a row --------------------------------------------


def assign_rows(
    lengths: np.ndarray, predictions: np.ndarray, room: tuple[int, int], max_examples_per_row: int
) -> np.ndarray:
    """Chooses a row for each example: longest first, the first row that still has room for it.

    Args:
      lengths: <int>[N], tokens of each example.
      predictions: <int>[N], masked tokens of each example.
      room: Tokens and predictions that a row can hold; no example has more.
      max_examples_per_row: K.

    Returns:
      <int>[N], rows numbered without gaps, in the order of their first examples.
    """
    # Needs of each example and room of each row: tokens, predictions and examples.
    needs = np.stack([lengths, predictions, np.ones_like(lengths)])
    free = np.tile([[room[0]], [room[1]], [max_examples_per_row]], len(lengths))
    rows: np.ndarray = np.empty(len(lengths), np.int64)
    for example in np.argsort(-lengths, kind="stable"):
        need = needs[:, example]
        # argmax finds the first True; a row that is still empty always has room.
        row = ((free[0] >= need[0]) & (free[1] >= need[1]) & (free[2] >= 1)).argmax()
        free[:, row] -= need
        rows[example] = row
    # Number the rows by their first examples.
    _, first_examples, rows = np.unique(rows, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first_examples))[rows]


def pack_rows(
    examples: Mapping[str, np.ndarray], max_examples_per_row: int, pad_id: int
) -> dict[str, np.ndarray]:
    """Packs features of records.pretraining_spec, [N, ...]; the order within a row is kept.

    Returns:
      The features of packed rows with the same S and P, [R, ...], R <= N.
    """
    lengths = examples["input_mask"].sum(axis=1)
    predictions = np.count_nonzero(examples["masked_lm_weights"], axis=1)
    num_tokens, num_predictions = (
        examples[name].shape[1] for name in ("input_ids", "masked_lm_ids")
    )
    # Each example gets a row; then all features are sorted by it.
    rows = assign_rows(lengths, predictions, (num_tokens, num_predictions), max_examples_per_row)
    order = np.argsort(rows, kind="stable")
    rows, lengths, predictions = rows[order], lengths[order], predictions[order]
    examples = {name: values[order] for name, values in examples.items()}

    # Positions count from the start of the row, so they move by the examples before them.
    ones = np.ones_like(rows)
    before = np.cumsum(lengths) - lengths
    starts = (before - before[np.searchsorted(rows, rows)])[:, None]
    positions = examples["masked_lm_positions"] + starts
    # Ids are padded with the vocabulary's [PAD]; zeros fill all other features.
    packed = {
        "input_ids": _join(examples["input_ids"], lengths, rows, num_tokens, pad_id),
        "masked_lm_positions": _join(positions, predictions, rows, num_predictions),
    }
    for name in _TOKEN_FEATURES:
        packed[name] = _join(examples[name], lengths, rows, num_tokens)
    for name in _PREDICTION_FEATURES:
        packed[name] = _join(examples[name], predictions, rows, num_predictions)
    # Features of examples get K slots per row; an empty slot has weight 0 and starts at 0.
    for name, values in (
        ("sentence_order_labels", examples["sentence_order_labels"][:, None]),
        ("sentence_order_weights", ones[:, None]),
        ("cls_positions", starts),
    ):
        packed[name] = _join(values, ones, rows, max_examples_per_row)
    return packed


def _join(
    values: np.ndarray, counts: np.ndarray, rows: np.ndarray, width: int, fill: int = 0
) -> np.ndarray:
    """Concatenates the first `counts` values of each example in its row.

    `rows` is ascending, so the kept values are already in the order in which rows are filled.
    """
    totals = np.bincount(rows, counts)
    joined = np.full((len(totals), width), fill, values.dtype)
    kept = np.arange(values.shape[1]) < counts[:, None]
    joined[np.arange(width) < totals[:, None]] = values[kept]
    return joined


# --- instances: a block is tokenised, cut, shuffled and masked ------------------------------


class TokenBlock(NamedTuple):
    """Documents that serve as each other's random documents and are shuffled together."""

    tokens: np.ndarray  # <int32>[T] of all documents, concatenated.
    word_starts: np.ndarray  # <bool>[T], which of them start a word.
    # For each document, where its sentences begin in `tokens`, and where the last ends.
    documents: list[list[int]]
    numbers: np.ndarray  # <int64>[D], the documents' numbers in the corpus.


class Instances(NamedTuple):
    """A block's examples, drawn and shuffled but not yet built."""

    pairs: np.ndarray  # SegmentPairs as rows of <int32>[N, 7].
    seeds: np.ndarray  # <uint64>[N], each instance's seed for its masks.


def tokenize_documents(
    documents: Sequence[Sequence[str]],
    first_number: int,
    tokenizer: Tokenizer,
    word_starts: np.ndarray,
    word_separator: str | None = None,
) -> TokenBlock:
    """Tokenises documents; one without tokens is dropped, but its number is not reused.

    `word_separator` stands between the words of segmented text, and is no part of it. Without one
    the vocabulary tells where words start, by the tokenizer's `word_starts` <bool>[V].
    """
    # All tokens go into one array; sentences and documents are kept as bounds in it.
    tokens, starts, kept, numbers = array.array("i"), bytearray(), [], []
    for number, sentences in enumerate(documents, first_number):
        # A sentence without tokens adds no bound, a document without sentences only takes a number.
        bounds = [len(tokens)]
        for sentence in sentences:
            if word_separator:
                ids, of_text = tokenizer.encode_words(split_segmented(sentence, word_separator))
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


def draw_instances(block: TokenBlock, settings: GeneratorSettings) -> Instances:
    """Draws the pairs of all passes over a block and shuffles them."""
    draw = functools.partial(draw_pairs, settings=settings, word_starts=block.word_starts)
    pairs, seeds = [], []
    for dupe in range(settings.passes):
        # A document's seed depends on its number and the pass, and an instance's on its document.
        pass_seeds = masking.derive_seeds(settings.random_seed, block.numbers, dupe)
        pair_seeds = masking.derive_seeds(pass_seeds, _PAIRS).tolist()
        drawn = [
            draw(block.documents, index, rng=random.Random(seed))
            for index, seed in enumerate(pair_seeds)
        ]
        # Flatten the pairs of all documents; each instance also gets a seed for its masks.
        counts = [len(of_document) for of_document in drawn]
        instance_numbers = np.concatenate([np.arange(count) for count in counts])
        flat = np.array([pair for of_document in drawn for pair in of_document], np.int32)
        pairs.append(flat.reshape(-1, len(SegmentPair._fields)))  # There may be none.
        seeds.append(
            masking.derive_seeds(np.repeat(pass_seeds, counts), _INSTANCES, instance_numbers)
        )
    # Instances of all passes and documents are mixed.
    all_pairs, all_seeds = np.concatenate(pairs), np.concatenate(seeds)
    order = np.argsort(masking.derive_seeds(all_seeds, _ORDER), kind="stable")
    return Instances(all_pairs[order], all_seeds[order])


def build_examples(
    block: TokenBlock, instances: Instances, row_format: RowFormat, masks: masking.MaskingSettings
) -> dict[str, np.ndarray]:
    """Builds and masks [CLS] A [SEP] B [SEP] for B of a block's instances.

    Returns:
      The features of records.pretraining_spec, [B, ...].

    Source: create_pretraining_data.py, create_instances_from_document and
    write_instance_to_example_files.
    """
    segments = _gather_segments(block, instances, row_format.max_seq_length)
    rows = Rows.lay_out(*segments, row_format)
    return {
        "token_boundary": rows.token_boundaries(),
        "sentence_order_labels": instances.pairs[:, SegmentPair._fields.index("label")],
        **rows.mask(instances.seeds, masks),
    }


def build_compact_examples(
    block: TokenBlock, instances: Instances, row_format: RowFormat
) -> dict[str, np.ndarray | list[np.ndarray]]:
    """Gathers the unmasked content of a batch of instances, for masking during training.

    Returns:
      The features of records.compact_spec, [B, ...]; lists where lengths differ.
    """
    token_ids, lengths, word_starts = _gather_segments(block, instances, row_format.max_seq_length)
    # Records hold no padding: masking during training lays the rows out again.
    sizes = lengths.sum(1).tolist()

    def cut(rows: np.ndarray) -> list[np.ndarray]:
        return [row[:size] for row, size in zip(rows, sizes, strict=True)]

    return {
        "token_ids": cut(token_ids),
        "segment_lengths": lengths,
        "word_starts": cut(word_starts),
        "sentence_order_labels": instances.pairs[:, SegmentPair._fields.index("label")],
        "row_format": np.tile(np.array(row_format, np.int32), (len(sizes), 1)),
    }


def _gather_segments(
    block: TokenBlock, instances: Instances, max_seq_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the tokens of A, then of B, of a batch, as Rows.lay_out takes them.

    They are ids <int32>[B, S - 3], the lengths of A and B <int32>[B, 2], and which tokens start a
    word <bool>[B, S - 3].
    """
    # Each column reads its token from A or, behind A's end, from B.
    pairs = SegmentPair(*instances.pairs.T[..., None])
    length_a = pairs.a_end - pairs.a_begin
    columns = np.arange(max_seq_length - NUM_SPECIALS)
    begins = np.where(columns < length_a, pairs.a_begin, pairs.b_begin - length_a)
    return (
        block.tokens.take(begins + columns, mode="clip"),
        np.concatenate([length_a, pairs.b_end - pairs.b_begin], axis=1),
        block.word_starts.take(begins + columns, mode="clip"),
    )
