"""Text and ragged rows in the graph: normalisation, words, and sequences of the model's inputs."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.answers.rows import FEATURES, LENGTH_MULTIPLE
from albert_tf.storage import files
from albert_tf.text.characters import is_mark
from albert_tf.text.tokenization import Tokenizer
from albert_tf.text.word_splitting import APOSTROPHES, CharacterClass, runs_of_classes
from albert_tf.types import Features

# Number of code points in a page of a table.
_PAGE_SIZE = 256
# Table entry of a character that stays as it is.
_KEPT = -1
SIGMA = "Σ"
_FINAL_SIGMA, _SMALL_SIGMA = "ς", "σ"
# Classes of the characters beside a sigma.
_OTHER, _CASED, _IGNORED = range(3)
# Separates characters to normalise in one call: normalisation doesn't change private-use ones.
_APART = "\ue000"
# All code points to normalise, without surrogates, unassigned planes and _APART.
_CODES = (range(0xD800), range(0xE001, 0x40000), range(0xE0000, 0xF0000))


def text_operations() -> Any:
    """Returns tensorflow_text, whose operations split raw texts; other exports do without."""
    try:
        import tensorflow_text
    # With a TensorFlow other than its own, it lacks symbols.
    except (ImportError, tf.errors.OpError) as error:
        raise ImportError(
            f"a SavedModel takes raw texts by tensorflow-text, which can't be imported beside "
            f"TensorFlow {tf.__version__} ({files.reason(error)}): install its release for that "
            "TensorFlow, or export with `format=onnx`, which needs none"
        ) from error
    return tensorflow_text


class RowTable:
    """A table of rows of numbers, which may be empty, to be looked up by index."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self._lengths = np.array([len(row) for row in rows], np.int32)
        self._starts = np.cumsum(self._lengths, dtype=np.int32) - self._lengths
        # At least one value: the graph may gather values that it does not use.
        self._values = np.array([value for row in rows for value in row] or [0], np.int32)

    def lookup(self, indexes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Looks up the rows of `indexes` `<int32>[N]`, and concatenates them.

        Returns:
          Three `<int32>[M]`: the values of the rows; which of the N each is from; and its position
          in that row.
        """
        origins, places = ranges(tf.gather(self._lengths, indexes))
        starts = tf.gather(self._starts, tf.gather(indexes, origins))
        return tf.gather(self._values, starts + places), origins, places


def ranges(lengths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the row of each element, and its position there, for rows of lengths `<int32>[N]`."""
    numbers = tf.ragged.range(lengths)
    return tf.cast(rows_of(numbers), tf.int32), numbers.values


def rows_of(ragged: tf.RaggedTensor) -> tf.Tensor:
    """Returns each flat value's row, `<int64>[M]`, with a tenth of value_rowids' operations."""
    numbers = tf.range(tf.size(ragged.values, tf.int64))
    return _count(tf.raw_ops.UpperBound, ragged.row_splits, numbers) - 1


def from_rows(values: tf.Tensor, rows: tf.Tensor, count: tf.Tensor) -> tf.RaggedTensor:
    """Returns `count` rows of flat values `[M, ...]`, each in the row `<T>[M]`, ascending."""
    splits = _count(tf.raw_ops.LowerBound, rows, tf.range(tf.cast(count + 1, rows.dtype)))
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def _count(bound: Callable[..., tf.Tensor], ascending: tf.Tensor, limits: tf.Tensor) -> tf.Tensor:
    """Returns how many values are below each limit (or equal, with UpperBound), `<int64>[L]`."""
    ascending, limits = tf.expand_dims(ascending, 0), tf.expand_dims(limits, 0)
    found = bound(sorted_inputs=ascending, values=limits, out_type=tf.int64)
    return tf.squeeze(found, axis=0)


def of_rows(ragged: tf.RaggedTensor, values: tf.Tensor) -> tf.Tensor:
    """Spreads one value per row, `<T>[N]`, over the flat values of a ragged tensor.

    Broadcasting a ragged tensor instead makes graphs of a thousand operations.
    """
    return tf.gather(values, rows_of(ragged))


def places(ragged: tf.RaggedTensor) -> tf.Tensor:
    """Returns each flat value's position in its row, `<int64>[M]`."""
    return tf.ragged.range(ragged.row_lengths()).values


def keep(ragged: tf.RaggedTensor, stays: tf.Tensor) -> tf.RaggedTensor:
    """Returns the rows with only the flat values that stay, `<bool>[M]`."""
    chosen = tf.squeeze(tf.where(stays), axis=1)
    return with_origins(ragged, tf.gather(ragged.values, chosen), chosen)


def with_origins(ragged: tf.RaggedTensor, values: tf.Tensor, origins: tf.Tensor) -> tf.RaggedTensor:
    """Returns new values `<T>[M]`, each in the row of its origin, `<int>[M]`, ascending."""
    splits = _count(tf.raw_ops.LowerBound, origins, tf.cast(ragged.row_splits, origins.dtype))
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def dense(
    rows: tf.RaggedTensor,
    default: float | int | bool,
    *,
    least: int = 0,
    multiple: int = 1,
    most: int | None = None,
) -> tf.Tensor:
    """Makes a dense tensor of rows `[N, (L)]`.

    Args:
      rows: The rows.
      default: The padding.
      least: The tensor's minimum width.
      multiple: The width is rounded up to a multiple of this.
      most: Maximum width even then; no row is longer.
    """
    # Dividing the negative rounds up.
    width = -(-tf.maximum(rows.bounding_shape(1), least) // multiple) * multiple
    width = width if most is None else tf.minimum(width, most)
    shape = tf.stack([rows.nrows(), width])
    return tf.ensure_shape(rows.to_tensor(default, shape=shape), [None, None])


def ragged_rows(values: tf.Tensor, widths: tf.Tensor) -> tf.RaggedTensor:
    """Returns rows of flat values, by their widths `<int32>[N]`."""
    return tf.RaggedTensor.from_row_lengths(values, tf.cast(widths, tf.int64), validate=False)


def cut(
    ids: tf.RaggedTensor, room: tf.Tensor, stride: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Cuts rows of pieces into windows of at most `room` `<int32>[B]` pieces.

    Returns:
      `<int32>[W]`, the row of each window; `<int32>[W]`, its width; and `<int32>`, the indexes of
      all windows' pieces among the flat values.
    """
    # Windows begin a step apart, until one reaches the end of its row.
    lengths = tf.cast(ids.row_lengths(), tf.int32)
    step = tf.minimum(room, stride)
    number = 1 + -(-tf.maximum(lengths - room, 0) // step)
    examples, index = ranges(number)
    starts = index * tf.gather(step, examples)
    widths = tf.minimum(tf.gather(room, examples), tf.gather(lengths, examples) - starts)
    # A piece's index: its row's first, plus its window's start, plus its place there.
    of_window, places = ranges(widths)
    bases = tf.cast(ids.row_starts(), tf.int32)
    return examples, widths, tf.gather(tf.gather(bases, examples) + starts, of_window) + places


class SequenceBuilder:
    """Adds a tokenizer's special pieces to ids, and truncates them.

    Args:
      tokenizer: The tokenizer.
      max_seq_length: Maximum pieces in a sequence, special ones included.
    """

    def __init__(self, tokenizer: Tokenizer, max_seq_length: int) -> None:
        self.cls_id, self.sep_id = tokenizer.cls_id, tokenizer.sep_id
        self.pad_id, self.max_seq_length = tokenizer.pad_id, max_seq_length
        self.one_segment = tokenizer.one_segment

    def single(self, ids: tf.RaggedTensor) -> Features:
        """Makes sequences of single texts `<int32>[B, (T)]`, truncated at their ends.

        Returns:
          `input_ids`, `input_mask` and `segment_ids` `<int32>[B, S]`, S the length of the longest.
        """
        none = tf.zeros([ids.nrows()], tf.bool)
        return self.join(first(ids, self.max_seq_length - 2), first(ids, 0), none)

    def pair(self, ids_a: tf.RaggedTensor, ids_b: tf.RaggedTensor) -> Features:
        """Makes sequences of pairs; the longer text is truncated (the second, if equally long).

        With an empty second text, the sequence is that of a single text.

        Source: classifier_utils.py, convert_single_example and _truncate_seq_pair.
        """
        a, b = ids_a.row_lengths(), ids_b.row_lengths()
        room = self.max_seq_length - 3
        # The second text gets what the first leaves, but at least half if it needs it.
        b = tf.minimum(b, tf.maximum(room - a, room // 2))
        # A single text has one special piece fewer.
        a = tf.where(b > 0, room - b, room + 1)
        return self.join(first(ids_a, a), first(ids_b, b), b > 0)

    def join(self, ids_a: tf.RaggedTensor, ids_b: tf.RaggedTensor, is_pair: tf.Tensor) -> Features:
        """Makes sequences of ids that fit. Pairs, `is_pair` `<bool>[B]`, have a second [SEP]."""
        rows, is_pair = ids_a.nrows(), tf.cast(is_pair, tf.int64)
        # Rows are [CLS] a [SEP], and in pairs b [SEP] after that.
        cls, sep = tf.fill([rows, 1], self.cls_id), tf.fill([rows, 1], self.sep_id)
        end = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.reduce_sum(is_pair)], self.sep_id), is_pair, validate=False
        )
        ids = tf.concat([cls, ids_a, sep, ids_b, end], axis=1)
        # The second segment begins after [CLS], the first text and its [SEP].
        in_second = places(ids) >= of_rows(ids, ids_a.row_lengths() + 2)
        in_second &= not self.one_segment
        rows = {
            "input_ids": (ids, self.pad_id),
            "input_mask": (ids.with_values(tf.ones_like(ids.values)), 0),
            "segment_ids": (ids.with_values(tf.cast(in_second, tf.int32)), 0),
        }
        widths = {"least": 1, "multiple": LENGTH_MULTIPLE, "most": self.max_seq_length}
        return {name: dense(values, padding, **widths) for name, (values, padding) in rows.items()}


def last(ragged: tf.RaggedTensor, length: int) -> tf.RaggedTensor:
    """Returns no more than the last `length` values of each row."""
    return keep(ragged, places(ragged) >= of_rows(ragged, ragged.row_lengths() - length))


def first(ragged: tf.RaggedTensor, lengths: int | tf.Tensor) -> tf.RaggedTensor:
    """Returns no more than the first `lengths` `<int64>[B]` values of each row."""
    lengths = tf.broadcast_to(tf.cast(lengths, tf.int64), [ragged.nrows()])
    return keep(ragged, places(ragged) < of_rows(ragged, lengths))


def parse_examples(serialized: tf.Tensor) -> dict[str, tf.RaggedTensor]:
    """Parses serialized tf.train.Examples `<string>[B]` with features of any length."""
    spec = {name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for name in FEATURES}
    parsed = tf.io.parse_example(serialized, spec)
    lengths = {name: rows.row_lengths() for name, rows in parsed.items()}
    # Features of different lengths are refused when the graph runs.
    same = [
        tf.debugging.assert_equal(
            lengths[name], lengths["input_ids"], f"{name} and input_ids differ in length"
        )
        for name in FEATURES
    ]
    with tf.control_dependencies(same):
        return {name: tf.cast(rows, tf.int32) for name, rows in parsed.items()}


_SPACE_CODES = [code for code in range(0x10000) if chr(code).isspace()]
# The characters that str.strip removes, as an RE2 class.
SPACES = "[" + "".join(rf"\x{{{code:x}}}" for code in _SPACE_CODES) + "]"


@dataclasses.dataclass(frozen=True)
class Normalized:
    """Texts after a normalisation.

    Attributes:
      raw: `<string>[N]`, the texts as UTF-8 without invalid bytes.
      texts: `<string>[N]`.
      sources: `<int32>[N, (L)]`, for each character of `texts` the index of its origin in `raw`.
      ends: `<int32>[N, (L)]`, the index after its origin and the marks on it that were dropped.
    """

    raw: tf.Tensor
    texts: tf.Tensor
    sources: tf.RaggedTensor
    ends: tf.RaggedTensor


class Normalizer:
    """Normalises texts, character by character.

    Args:
      replace: Replaces each character of a text on its own, except private-use ones; it may strip
        the text.
      lower: Whether to lower-case capital sigmas, which `replace` leaves.
      collapse_spaces: Whether to collapse runs of white space into one space, and strip both ends,
        first.
    """

    def __init__(self, replace: Callable[[str], str], lower: bool, collapse_spaces: bool) -> None:
        characters = [chr(code) for code in itertools.chain(*_CODES)]
        # One call for all characters: a call for each would take seconds.
        replaced = replace(_APART + _APART.join(characters) + _APART).split(_APART)[1:-1]
        changed = {c: text for c, text in zip(characters, replaced, strict=True) if text != c}
        self._changed = CharacterTable({ord(c): text for c, text in changed.items()})
        dropped = [c for c, text in changed.items() if not text and is_mark(c)]
        # The last entry is not a character: a search beyond all marks ends there.
        self._dropped_marks = np.array([*map(ord, dropped), sys.maxunicode + 1], np.int32)
        self._collapse_spaces = collapse_spaces
        self._sigmas = _Sigmas(sorted(dict.fromkeys("".join(replaced)))) if lower else None

    def __call__(self, texts: tf.Tensor) -> Normalized:
        """Normalises `<string>[N]`; bytes that are not UTF-8 are dropped."""
        raw = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        codes = tf.strings.unicode_decode(raw, "UTF-8")
        # Number the characters of the raw text before any is dropped.
        sources = tf.ragged.range(tf.cast(codes.row_lengths(), tf.int32))
        ends = sources.with_values(self._ends(codes))
        if self._collapse_spaces:
            codes, stays = _collapse(codes)
            codes, sources, ends = (keep(rows, stays) for rows in (codes, sources, ends))
        # Replace each character, and keep track of its origin.
        codes, origins = self._changed.replace(codes)
        sources, ends = (
            codes.with_values(tf.gather(rows.values, origins)) for rows in (sources, ends)
        )
        # Sigmas are rare: only lower-case them if there are any.
        if self._sigmas:
            found = tf.reduce_any(codes.values == ord(SIGMA))
            lowered = tf.cond(
                found,
                lambda: self._sigmas.lower(codes.values, rows_of(codes)),
                lambda: codes.values,
            )
            codes = codes.with_values(lowered)
        return Normalized(raw, tf.strings.unicode_encode(codes, "UTF-8"), sources, ends)

    def _ends(self, codes: tf.RaggedTensor) -> tf.Tensor:
        """Returns the index after each flat character and its marks that are dropped."""
        found = tf.searchsorted(self._dropped_marks, codes.values)
        is_mark = tf.gather(self._dropped_marks, found) == codes.values
        size = tf.size(codes.values, tf.int64)
        # A character extends to the next one that isn't a dropped mark, or to its text's end.
        limits = tf.concat([tf.where(~is_mark)[:, 0], [size]], axis=0)
        numbers = tf.range(size)
        ends = tf.gather(limits, tf.searchsorted(limits, numbers, side="right"))
        ends = tf.minimum(ends, of_rows(codes, codes.row_limits()))
        return tf.cast(ends - of_rows(codes, codes.row_starts()), tf.int32)


def _collapse(codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Returns the codes with spaces for all white space, and which of the flat codes to keep."""
    is_space = tf.reduce_any(codes.values[:, None] == _SPACE_CODES, axis=1)
    # Keep a space right after a word, if another word follows.
    letters = tf.cast(~is_space, tf.int32)
    rows = rows_of(codes)
    of_row = tf.math.unsorted_segment_sum(letters, rows, codes.nrows())
    before = tf.cumsum(letters, exclusive=True)
    before -= of_rows(codes, tf.cumsum(of_row, exclusive=True))
    after_letter = tf.concat([[False], ~is_space], axis=0)[:-1]
    ends_word = after_letter & (before > 0) & (before < of_rows(codes, of_row))
    codes = codes.with_values(tf.where(is_space, ord(" "), codes.values))
    return codes, ~is_space | ends_word


class CharacterTable:
    """Replacements by code point, in pages of 256; all pages without changes share one."""

    def __init__(self, changed: Mapping[int, str]) -> None:
        pages = sorted({code // _PAGE_SIZE for code in changed})
        # All pages without a change share page 0.
        self._page_of = np.zeros(sys.maxunicode // _PAGE_SIZE + 1, np.int32)
        self._page_of[pages] = np.arange(1, len(pages) + 1)
        rows = [[_KEPT]] * _PAGE_SIZE
        for page in pages:
            for code in range(page * _PAGE_SIZE, (page + 1) * _PAGE_SIZE):
                rows.append([ord(c) for c in changed[code]] if code in changed else [_KEPT])
        self._rows = RowTable(rows)

    def replace(self, codes: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Replaces codes `<int32>[N, (L)]`; also returns the index of each new code's origin."""
        pages = tf.gather(self._page_of, codes.values // _PAGE_SIZE)
        values, origins, _ = self._rows.lookup(pages * _PAGE_SIZE + codes.values % _PAGE_SIZE)
        values = tf.where(values == _KEPT, tf.gather(codes.values, origins), values)
        return with_origins(codes, values, origins), origins


class _Sigmas:
    """Lower-cases capital sigmas as str.lower does.

    A sigma is final if a cased letter precedes it and none follows it; case-ignorable characters
    in between don't count. Which characters these are is found by calling str.lower.

    Args:
      characters: All characters that may occur, ascending.
    """

    def __init__(self, characters: Sequence[str]) -> None:
        classes = np.select(
            [_makes_final("", characters), _makes_final("A", characters)],
            [_CASED, _IGNORED],
            _OTHER,
        )
        firsts = np.flatnonzero(np.diff(classes, prepend=-1))
        # Runs of one class: the first character's code, and the class.
        self._codes = np.array([ord(characters[i]) for i in firsts.tolist()], np.int32)
        self._classes = classes[firsts].astype(np.int32)

    def lower(self, codes: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Replaces the sigmas among flat codes `<int32>[M]`, of the texts `rows` `<int64>[M]`."""
        classes = tf.gather(self._classes, tf.searchsorted(self._codes, codes, side="right") - 1)
        counts = tf.where(classes != _IGNORED)[:, 0]
        # Drop ignorable characters, so that those that count are adjacent.
        cased, rows = tf.gather(classes, counts) == _CASED, tf.gather(rows, counts)
        after_cased = cased[:-1] & (rows[:-1] == rows[1:])
        before_cased = cased[1:] & (rows[:-1] == rows[1:])
        is_final = tf.concat([[False], after_cased], 0) & ~tf.concat([before_cased, [False]], 0)
        final = tf.scatter_nd(counts[:, None], is_final, tf.shape(codes, tf.int64))
        small = tf.where(final, ord(_FINAL_SIGMA), ord(_SMALL_SIGMA))
        return tf.where(codes == ord(SIGMA), small, codes)


def _makes_final(before: str, characters: Sequence[str]) -> np.ndarray:
    """Returns for each character whether a last sigma is final after `before` and it."""
    words = (before + (SIGMA + _APART + before).join(characters) + SIGMA).lower().split(_APART)
    return np.array([word[-1] == _FINAL_SIGMA for word in words])


@dataclasses.dataclass(frozen=True)
class Words:
    """Texts as words.

    Attributes:
      raw: `<int32>[B, (L)]`, the texts' code points, without bytes that are not UTF-8.
      starts: `<int32>[B, (W)]`, the index in the raw text of each word's first character.
      ends: `<int32>[B, (W)]`, the index after its last.
    """

    raw: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor

    def texts(self, rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """Returns the parts `<string>[N]` from starts to ends of the texts `rows` `<int64>[N]`."""
        base = tf.cast(tf.gather(self.raw.row_starts(), rows), tf.int32)
        characters = tf.ragged.range(base + starts, base + ends)
        codes = characters.with_values(tf.gather(self.raw.values, characters.values))
        return tf.strings.unicode_encode(codes, "UTF-8")


class WordSplitter:
    """Splits raw texts `<string>[B]` into Words."""

    def __init__(self) -> None:
        codes, classes = zip(*runs_of_classes(), strict=True)
        self._codes, self._classes = np.array(codes, np.int32), np.array(classes, np.int32)

    def __call__(self, texts: tf.Tensor) -> Words:
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        raw = tf.strings.unicode_decode(texts, "UTF-8")
        codes, rows = raw.values, rows_of(raw)
        runs = tf.searchsorted(self._codes, codes, side="right") - 1
        classes = tf.gather(self._classes, runs)
        alone = classes == CharacterClass.ALONE
        begins = alone | self._starts(codes, classes, rows)
        # A word ends before the next word or a space, or at the end of its text.
        is_word = classes != CharacterClass.SPACE
        goes_on = is_word & ~begins & (rows == _before(rows, -1))
        ends = is_word & ~_after(goes_on)
        characters = raw.with_values(tf.cast(places(raw), tf.int32))
        return Words(raw, keep(characters, begins), keep(characters, ends) + 1)

    def _starts(self, codes: tf.Tensor, classes: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Returns which of the letters and marks begin a word, `<bool>[M]`."""
        inside = (classes == CharacterClass.LETTER) | (classes == CharacterClass.MARK)
        # A stretch is a run of letters and marks in one text.
        begins_stretch = inside & ~(_before(inside, False) & (rows == _before(rows, -1)))
        stretches = tf.cumsum(tf.cast(begins_stretch, tf.int32)) - 1
        count = tf.reduce_sum(tf.cast(begins_stretch, tf.int32))
        numbers = tf.range(tf.size(codes))
        # Segment -1 is ignored. In a stretch without letters, the first index exceeds the last.
        of_letters = tf.where(classes == CharacterClass.LETTER, stretches, -1)

        def letter(find: Callable[..., tf.Tensor]) -> tf.Tensor:
            found = find(numbers, of_letters, count)
            return tf.gather(tf.pad(found, [[0, 1]]), tf.maximum(stretches, 0))

        first, last = map(letter, (tf.math.unsorted_segment_min, tf.math.unsorted_segment_max))
        is_apostrophe = tf.reduce_any(codes[:, None] == [ord(c) for c in APOSTROPHES], axis=1)
        is_s = tf.reduce_any(codes[:, None] == [ord("s"), ord("S")], axis=1)
        # As in "Zoë's": the apostrophe before a last s begins a word.
        begins_s = is_apostrophe & _after(is_s) & (numbers > first) & (numbers + 1 == last)
        # Each mark before the first letter, or after the last one, is a word as well.
        return inside & ((numbers <= first) | (numbers > last) | begins_s)


def _before(values: tf.Tensor, default: int | bool) -> tf.Tensor:
    """Returns the value before each, `<T>[M]`."""
    return tf.concat([tf.cast([default], values.dtype), values], axis=0)[:-1]


def _after(values: tf.Tensor) -> tf.Tensor:
    """Returns the value after each, `<bool>[M]`; after the last, False."""
    return tf.concat([values, [False]], axis=0)[1:]
