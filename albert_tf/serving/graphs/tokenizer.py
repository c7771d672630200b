"""albert_tf.Tokenizer in the graph, on tensorflow-text: strings -> the same ids."""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata

import numpy as np
import sentencepiece
import tensorflow as tf

from albert_tf.serving.graphs.text import (
    SIGMA,
    Normalized,
    Normalizer,
    RowTable,
    first,
    of_rows,
    ragged_rows,
    text_operations,
    with_origins,
)
from albert_tf.text.characters import CLEANED, SPLIT_PUNCTUATION, WITHOUT_MARKS
from albert_tf.text.sentence_piece import (
    END,
    FOLDER,
    RULES,
    ends_in_digit_comma,
    preprocess_text,
    read_model,
    rules_of,
)
from albert_tf.text.tokenization import CHARACTERS_PER_PIECE, GROWTH, LONGEST_WORD, Tokenizer
from albert_tf.text.vocabulary import Vocabulary
from albert_tf.text.word_piece import MAX_WORD_CHARS
from albert_tf.text.word_starts import SPACE_MARK

# Words with more bytes have more than MAX_WORD_CHARS characters.
_MAX_WORD_BYTES = 4 * MAX_WORD_CHARS


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Texts as pieces.

    Attributes:
      ids: `<int32>[N, (T)]`.
      starts: `<int32>[N, (T)]`, the index in the raw text of each piece's first character.
      ends: `<int32>[N, (T)]`, the index after its last.
      raw: `<string>[N]`, the texts as UTF-8 without invalid bytes.
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    raw: tf.Tensor


def build(vocabulary: Vocabulary) -> _Graph | WithAddedTokens:
    """Returns a graph tokenizer, `<string>[N]` -> Pieces, equal to the vocabulary's tokenizer."""
    tokenizer = vocabulary.tokenizer
    graph: type[_Graph] = WordPieceGraph if vocabulary.is_word_piece else SentencePieceGraph
    made = (FolderPieceGraph if tokenizer.ids == FOLDER else graph)(vocabulary)
    return WithAddedTokens(made, tokenizer) if tokenizer.added_tokens else made


class WithAddedTokens(tf.Module):
    """A graph tokenizer that keeps each added token in a text as one piece."""

    def __init__(self, graph: _Graph, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._graph, self._pattern = graph, f"({tokenizer.added_pattern})"
        self._tokens = np.array(tokenizer.added_tokens, object)
        self._ids = np.array(tokenizer.convert_tokens_to_ids(tokenizer.added_tokens), np.int32)

    def __call__(self, texts: tf.Tensor) -> Pieces:
        """Splits `<string>[N]`."""
        raw = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        parts, *_ = text_operations().regex_split_with_offsets(raw, self._pattern, self._pattern)
        # A part is an added token, perhaps with spaces before it, or text to split into pieces.
        matches = tf.strings.strip(parts.values)[:, None] == self._tokens
        is_token = tf.reduce_any(matches, axis=1)
        found = self._graph(tf.where(is_token, "", parts.values))
        tokens = tf.boolean_mask(tf.argmax(matches, axis=1), is_token)
        # Count a part's characters from the beginning of its text.
        lengths = tf.strings.length(parts.values, "UTF8_CHAR")
        before = tf.pad(tf.cumsum(lengths), [[1, 0]])
        before = before[:-1] - of_rows(parts, tf.gather(before, parts.row_starts()))

        def joined(of_tokens: tf.Tensor, others: tf.RaggedTensor) -> tf.RaggedTensor:
            rows = ragged_rows(of_tokens, tf.cast(is_token, tf.int32))
            return parts.with_values(tf.concat([rows, others], axis=1)).merge_dims(1, 2)

        def moved(places: tf.RaggedTensor) -> tf.RaggedTensor:
            return places.with_values(places.values + of_rows(places, before))

        ids = joined(tf.gather(self._ids, tokens), found.ids)
        starts = joined(tf.boolean_mask(before, is_token), moved(found.starts))
        ends = joined(tf.boolean_mask(before + lengths, is_token), moved(found.ends))
        return Pieces(ids, starts, ends, raw)

    def first(self, texts: tf.Tensor, most: int) -> tf.RaggedTensor:
        """Returns the first ids `<int32>[N, (T)]` of texts, up to `most`."""
        return first(self(texts).ids, most)


class _Graph(tf.Module):
    """Base of both tokenizers.

    Subclasses define `normalize`, whose output `split` takes, and `clean`, whose output `ids_of`
    takes. In the output of `clean`, no word depends on others.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._words_are_apart = vocabulary.tokenizer.words_are_apart

    def __call__(self, texts: tf.Tensor) -> Pieces:
        """Splits `<string>[N]`."""
        text = self.normalize(texts)
        return _pieces(text, *self.split(text.texts))

    def first(self, texts: tf.Tensor, most: int) -> tf.RaggedTensor:
        """Returns the first ids `<int32>[N, (T)]` of texts, up to `most`, as Tokenizer.encode does.

        Long texts are read only as far as needed.
        """
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        lengths = tf.strings.length(texts, "UTF8_CHAR")
        # The head of a text has the text's own pieces only if no word depends on later words.
        if not self._words_are_apart:
            return first(self.ids_of(self.clean(texts)), most)

        def ids_of(sizes: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
            # The last word of a head may be cut: leave it out, unless it is too long to end soon.
            heads = self.clean(tf.strings.substr(texts, 0 * sizes, sizes, "UTF8_CHAR"))
            words = tf.strings.regex_replace(heads, "(^| )[^ ]*$", "", replace_global=False)
            ends = tf.strings.length(words, "UTF8_CHAR")
            goes_on = tf.strings.length(heads, "UTF8_CHAR") - ends > LONGEST_WORD
            cut = tf.strings.substr(heads, 0 * ends, ends + LONGEST_WORD, "UTF8_CHAR")
            is_whole = sizes >= lengths
            ids = self.ids_of(tf.where(is_whole, heads, tf.where(goes_on, cut, words)))
            return ids, is_whole | goes_on | (ids.row_lengths() >= most)

        def read(
            sizes: tf.Tensor, _: tf.RaggedTensor, known: tf.Tensor
        ) -> tuple[tf.Tensor, tf.RaggedTensor, tf.Tensor]:
            ids, known = ids_of(sizes)
            return tf.where(known, sizes, sizes * GROWTH), ids, known

        # Read longer heads of the texts until all have enough pieces or are read whole.
        sizes = tf.fill(tf.shape(texts), CHARACTERS_PER_PIECE * most)
        # Placeholder: the first iteration replaces it.
        ids = tf.RaggedTensor.from_row_lengths(sizes, tf.ones_like(sizes, tf.int64), validate=False)
        _, ids, _ = tf.while_loop(
            lambda sizes, ids, known: ~tf.reduce_all(known),
            read,
            (sizes, ids, tf.zeros_like(sizes, tf.bool)),
        )
        return first(ids, most)


class SentencePieceGraph(_Graph):
    """A SentencePiece model with the release's digit-comma rule."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        content = vocabulary.tokenizer.content
        self.normalize = _preprocessing(*vocabulary.form)
        self._model = text_operations().SentencepieceTokenizer(content, out_type=tf.int32)
        splits = _comma_splits(vocabulary, content)
        self._ids = RowTable([[i for i, _ in row] for row in splits])
        self._lengths = RowTable([[length for _, length in row] for row in splits])

    def clean(self, texts: tf.Tensor) -> tf.Tensor:
        """Normalises `<string>[N]`."""
        return self.normalize(texts).texts

    def ids_of(self, cleaned: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of the output of `clean`."""
        return self.split(cleaned)[0]

    def split(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Splits normalised texts `<string>[N]` into ids, with their start and end bytes."""
        pieces = self._model.tokenize_with_offsets(texts)
        ids, starts, ends = (tf.cast(t, tf.int32) for t in pieces)
        # Replace each piece by its parts; all but those with a digit and a comma are one part.
        parts, origins, places = self._ids.lookup(ids.values)
        # A part ends where the next part of its piece begins.
        following, _, _ = self._lengths.lookup(ids.values)
        ends = tf.gather(ends.values, origins) - following
        starts = tf.where(
            places == 0,
            tf.gather(starts.values, origins),
            tf.concat([[0], ends], axis=0)[:-1],
        )
        ids = with_origins(ids, parts, origins)
        return ids, ids.with_values(starts), ids.with_values(ends)


class FolderPieceGraph(SentencePieceGraph):
    """A SentencePiece model that text/folder_ids.py made, which does all that `normalize` does."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tf.Module.__init__(self)
        content = vocabulary.tokenizer.content
        self._model = text_operations().SentencepieceTokenizer(content)
        self.normalize = _unchanged()
        self._end = END if rules_of(read_model(content)) == RULES[0] else ""
        (self._space,) = vocabulary.tokenizer.convert_tokens_to_ids([SPACE_MARK])

    def split(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Splits texts `<string>[N]` into ids, with their start and end bytes; see FolderPiece."""
        pieces = self._model.tokenize_with_offsets(tf.where(texts == "", "", texts + self._end))
        pieces = [tf.cast(t[:, :-1] if self._end else t, tf.int32) for t in pieces]
        ids, starts, ends = pieces
        widths = tf.cast(ids.values != self._space, tf.int32)
        return ids, starts, ends.with_values(tf.maximum(ends.values, starts.values + widths))


def _comma_splits(vocabulary: Vocabulary, content: bytes) -> list[list[tuple[int, int]]]:
    """Returns each piece's replacement: ids, and how many bytes of the piece follow each."""
    tokenizer = vocabulary.tokenizer
    pieces = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    (comma,) = tokenizer.convert_tokens_to_ids([","])
    if comma == tokenizer.unk_id:
        raise ValueError(
            f"{vocabulary.path} has no piece for the comma, without which the release's "
            "digit-comma rule can't be exported: use a vocabulary that has one"
        )
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(content)
    splits = []
    for i, piece in enumerate(pieces):
        if not ends_in_digit_comma(piece):
            splits.append([(i, 0)])
            continue
        # The release splits the digits again, and puts the comma behind them.
        parts = processor.encode(piece[:-1].replace(SPACE_MARK, ""), out_type=str)
        lengths = [len(part.replace(SPACE_MARK, "").encode()) for part in parts]
        # The comma, one byte, follows all parts.
        following = [sum(lengths[k + 1 :]) + 1 for k in range(len(parts))]
        ids = tokenizer.convert_tokens_to_ids(parts)
        splits.append([*zip(ids, following, strict=True), (comma, 0)])
    return splits


class WordPieceGraph(_Graph):
    """A WordPiece vocabulary with BERT's word splitting."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        tokenizer = vocabulary.tokenizer
        self._cleaning, self._splitting = _cleaning(*vocabulary.form), _splitting()
        self._words = text_operations().WhitespaceTokenizer()
        pieces = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
        initializer = tf.lookup.KeyValueTensorInitializer(pieces, np.arange(len(pieces)))
        self._table = tf.lookup.StaticVocabularyTable(initializer, num_oov_buckets=1)
        self._model = text_operations().WordpieceTokenizer(
            self._table, max_bytes_per_word=_MAX_WORD_BYTES, token_out_type=tf.int64
        )

    def clean(self, texts: tf.Tensor) -> tf.Tensor:
        """Normalises `<string>[N]` except punctuation: a sigma depends on letters beyond it."""
        return self._cleaning(texts).texts

    def ids_of(self, cleaned: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of the output of `clean`."""
        return self.split(self._splitting(cleaned).texts)[0]

    def normalize(self, texts: tf.Tensor) -> Normalized:
        """Applies all normalisation before word splitting to `<string>[N]`."""
        # Follow each character through both steps to its origin in the raw text.
        cleaned = self._cleaning(texts)
        split = self._splitting(cleaned.texts)
        origins = split.sources.values + of_rows(
            split.sources, tf.cast(cleaned.sources.row_starts(), tf.int32)
        )
        sources, ends = (
            split.sources.with_values(tf.gather(rows.values, origins))
            for rows in (cleaned.sources, cleaned.ends)
        )
        return Normalized(cleaned.raw, split.texts, sources, ends)

    def split(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Splits normalised texts `<string>[N]` into ids, with their start and end bytes."""
        found = self._words.tokenize_with_offsets(texts)
        words, word_starts, word_ends = found[0], *(tf.cast(t, tf.int32) for t in found[1:])
        # The op limits bytes, the release limits characters: make such words too long for both.
        too_long = tf.strings.length(words.values, "UTF8_CHAR") > MAX_WORD_CHARS
        words = words.with_values(tf.where(too_long, "x" * (_MAX_WORD_BYTES + 1), words.values))
        pieces = self._model.tokenize_with_offsets(words)
        ids, starts, ends = (tf.cast(t, tf.int32) for t in pieces)
        # Turn positions in the word into positions in the text.
        firsts, limits = (of_rows(ids.values, t.values) for t in (word_starts, word_ends))
        starts = starts.merge_dims(1, 2)
        starts = starts.with_values(starts.values + firsts)
        ends = ends.merge_dims(1, 2)
        # A word that was too long ends at its own end, not at that of its replacement.
        is_whole = of_rows(ids.values, too_long)
        stops = tf.where(is_whole, limits, tf.minimum(ends.values + firsts, limits))
        ends = ends.with_values(stops)
        return ids.merge_dims(1, 2), starts, ends


# Built once: it calls the normalisation for all Unicode characters.
@functools.cache
def _preprocessing(lower: bool, keep_accents: bool) -> Normalizer:
    """Returns the normalisation of preprocess_text."""

    def replace(text: str) -> str:
        plain = preprocess_text(text, lower=False, keep_accents=keep_accents)
        return _lower_but_sigma(plain) if lower else plain

    return Normalizer(replace, lower, collapse_spaces=True)


@functools.cache
def _cleaning(lower: bool, keep_accents: bool) -> Normalizer:
    """Returns WordPiece's normalisation before word splitting."""

    def replace(text: str) -> str:
        text = text.translate(CLEANED)
        text = _lower_but_sigma(text) if lower else text
        if lower and not keep_accents:
            text = unicodedata.normalize("NFD", text).translate(WITHOUT_MARKS)
        return re.sub(r"\s", " ", text)

    return Normalizer(replace, lower, collapse_spaces=False)


@functools.cache
def _splitting() -> Normalizer:
    """Returns the normalisation that puts spaces around punctuation.

    It is a separate step because a sigma before punctuation inside a word is not its last letter.
    """
    return Normalizer(lambda text: text.translate(SPLIT_PUNCTUATION), False, collapse_spaces=False)


@functools.cache
def _unchanged() -> Normalizer:
    """Returns the normalisation that leaves texts as they are."""
    return Normalizer(str, False, collapse_spaces=False)


def _lower_but_sigma(text: str) -> str:
    return SIGMA.join(part.lower() for part in text.split(SIGMA))


def _pieces(
    text: Normalized, ids: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> Pieces:
    """Maps bytes of the normalised text back to characters of the raw text."""
    # The first byte of each character, counted through all texts.
    _, offsets = tf.strings.unicode_decode_with_offsets(text.texts, "UTF-8")
    lengths = tf.strings.length(text.texts)
    bases = tf.cumsum(lengths, exclusive=True)
    places = tf.cast(offsets.values, tf.int32) + of_rows(offsets, bases)

    def characters(of_bytes: tf.Tensor, raw: tf.RaggedTensor) -> tf.Tensor:
        of_bytes = tf.minimum(of_bytes, of_rows(ids, lengths) - 1) + of_rows(ids, bases)
        # A byte belongs to the last character that begins there or before.
        found = tf.searchsorted(places, of_bytes, side="right") - 1
        return tf.gather(raw.values, found)

    first = characters(starts.values, text.sources)
    after = characters(tf.maximum(starts.values, ends.values - 1), text.ends)
    # An empty piece ends where it begins.
    after = tf.where(ends.values > starts.values, after, first)
    return Pieces(ids, ids.with_values(first), ids.with_values(after), text.raw)
