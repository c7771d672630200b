"""One FeatureSpec writes, parses and validates a record; the specs of pre-training."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from albert_tf.records.example_encoding import Column, encode_examples

if TYPE_CHECKING:
    import tensorflow as tf


# --- what a record declares, and how it is written and parsed ----------------------------------


_LIST_TYPES = {"f": "float_list", "i": "int64_list", "b": "bytes_list"}
_BITS_OF_A_BYTE = (128, 64, 32, 16, 8, 4, 2, 1)
_BAD_RECORD = "a record has out-of-range or contradictory values"


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of a record."""

    # np.int32, np.float32, or np.bool_: stored as a string of eight values per byte, the first one
    # in the highest bit.
    dtype: type[np.generic]
    # Shape of one example, without the batch axis; (None,) is any length. np.bool_ has (None,).
    shape: tuple[int | None, ...]
    # Exclusive upper bound of integers; the lower one is 0. Floats are weights: 0 or 1.
    below: int = 1 << 31
    stored_as: str | None = None  # Name on disk, if it differs from the name in memory.
    parsed: bool = True  # False for a feature that `parse` ignores: it is for other readers.
    # True if all records of a run have the same values: `parse` doesn't return them.
    shared: bool = False
    expected: tuple[int, ...] | None = None  # Its values, if known: `parse` rejects others.
    argument: str | None = None  # Name of the argument that determines its length, if any.

    @property
    def list_type(self) -> str:
        """Name of the protobuf field that holds the values."""
        return _LIST_TYPES[np.dtype(self.dtype).kind]

    def read(self, stored: tf.train.Feature) -> np.ndarray | None:
        """Returns one example's values, flat (bits fill whole bytes); None if of another type."""
        if stored.WhichOneof("kind") != self.list_type:
            return None
        values = getattr(stored, self.list_type).value
        if self.list_type == "bytes_list":
            return np.unpackbits(np.frombuffer(b"".join(values), np.uint8)).astype(np.bool_)
        return np.array(values)

    def column(self, examples: np.ndarray | Sequence[np.ndarray]) -> Column:
        """Returns the values of B examples in the form that encode_examples takes."""
        if self.shape != (None,):
            column = np.asarray(examples, self.dtype)
            if column.shape[1:] != self.shape:
                raise ValueError(f"expected shape {self.shape}, got {column.shape[1:]}")
            return column
        rows = [np.asarray(example, self.dtype) for example in examples]
        if self.list_type == "bytes_list":
            return [np.packbits(row).tobytes() for row in rows]
        return rows


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """One declaration that both writes and parses a tf.train.Example."""

    features: Mapping[str, Feature]  # In-memory name -> Feature.
    # Names on disk that only other kinds of records have -> what an error says about them.
    strangers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Returns how one example's values, read by `Feature.read`, contradict each other, or None.
    contradiction: Callable[[Mapping[str, np.ndarray]], str | None] = lambda values: None
    # The same check for a batch, before padding: <bool>[B].
    consistent: Callable[[Mapping[str, tf.Tensor]], tf.Tensor] | None = None

    def expecting(self, values: Mapping[str, np.ndarray]) -> FeatureSpec:
        """Returns a spec that rejects records whose shared features have other values."""
        known = {
            name: dataclasses.replace(feature, expected=tuple(values[name].tolist()))
            for name, feature in self.features.items()
            if feature.shared
        }
        return dataclasses.replace(self, features={**self.features, **known})

    def serialize(self, examples: Mapping[str, np.ndarray | Sequence[np.ndarray]]) -> list[bytes]:
        """Encodes a batch of examples, each as a serialized tf.train.Example.

        The same example always gives the same bytes. Each feature, by its in-memory name, is
        [B, *declared shape], or a sequence of B arrays where lengths differ.
        """
        columns = {}
        for name, feature in self.features.items():
            try:
                columns[feature.stored_as or name] = feature.column(examples[name])
            except ValueError as error:
                raise ValueError(f"feature {name}: {error}") from None
        return encode_examples(columns)

    def parse(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        """Decodes serialized examples <string>[B]; works eagerly and inside Dataset.map.

        Returns:
          In-memory name -> <declared dtype>[B, *declared shape]. Features of any length are
          padded with zeros, at least to the longest in the batch.
        """
        import tensorflow as tf  # Not at the top: writers of records do without it.

        # A shared feature was checked before the run: here it is only compared.
        wanted = {
            name: feature
            for name, feature in self.features.items()
            if feature.parsed and (feature.expected or not feature.shared)
        }
        on_disk = {feature.stored_as or name: _on_disk(feature) for name, feature in wanted.items()}
        parsed = tf.io.parse_example(serialized, on_disk)
        stored = {name: parsed[feature.stored_as or name] for name, feature in wanted.items()}
        # All values are checked before the cast, which would turn 2^32 + 9 into 9.
        allowed = [_is_allowed(stored[name], feature) for name, feature in wanted.items()]
        if self.consistent:
            allowed.append(tf.reduce_all(self.consistent(stored)))
        check = tf.debugging.Assert(tf.reduce_all(allowed), [_BAD_RECORD])  # None if eager.
        with tf.control_dependencies([check] if check is not None else []):
            return {
                name: _finish(stored[name], feature)
                for name, feature in wanted.items()
                if not feature.shared
            }


def _on_disk(feature: Feature) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    import tensorflow as tf

    if feature.list_type == "bytes_list":
        return tf.io.FixedLenFeature((), tf.string)
    dtype = tf.float32 if feature.list_type == "float_list" else tf.int64
    if feature.shape == (None,):
        return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
    return tf.io.FixedLenFeature(feature.shape, dtype)


def _is_allowed(values: tf.Tensor | tf.RaggedTensor, feature: Feature) -> tf.Tensor:
    """Whether all stored values of a feature are allowed: <bool>[]."""
    import tensorflow as tf

    if feature.expected:
        return tf.reduce_all(values == tf.constant(feature.expected, values.dtype))
    if feature.list_type == "bytes_list":
        return tf.constant(True)
    if feature.list_type == "float_list":
        # NaN fails as well: it differs from its truth value.
        return tf.reduce_all(values == tf.cast(tf.cast(values, tf.bool), values.dtype))
    flat = values.values if feature.shape == (None,) else values
    # Negative numbers are large as unsigned: one comparison does (microseconds for 16,384 values).
    return tf.reduce_max(tf.bitcast(flat, tf.uint64)) < feature.below


def _finish(values: tf.Tensor | tf.RaggedTensor, feature: Feature) -> tf.Tensor:
    import tensorflow as tf

    if feature.list_type == "bytes_list":
        # <string>[B] -> <bool>[B, 8 * bytes of the longest].
        size = tf.maximum(tf.reduce_max(tf.strings.length(values)), 1)
        octets = tf.io.decode_raw(values, tf.uint8, fixed_length=size)
        bits = tf.bitwise.bitwise_and(octets[:, :, None], tf.constant(_BITS_OF_A_BYTE, tf.uint8))
        return tf.reshape(bits > 0, [tf.shape(octets)[0], 8 * size])
    if feature.shape == (None,):
        values = values.to_tensor()
    return tf.cast(values, feature.dtype)


# --- records of pre-training, with masks -------------------------------------------------------


# Tokens in a row besides its two segments: [CLS], [SEP], [SEP].
NUM_SPECIALS = 3


def pretraining_spec(
    max_seq_length: int,
    max_predictions_per_seq: int,
    max_examples_per_row: int = 1,
    vocab_size: int = 1 << 31,
    type_vocab_size: int = 2,
) -> FeatureSpec:
    """The eight features of a pre-training record (S = max_seq_length, P = predictions).

    `token_boundary` is written, as in the release, but not read: training doesn't use it.

    If max_examples_per_row is above 1, rows are packed: a row holds several examples, one after
    the other. They share the row's tokens and predictions, but each has a slot of its own for its
    order label. Two more features say which slots are filled (`sentence_order_weights`, 1 or 0)
    and where each example's [CLS] is (`cls_positions`, ascending; 0 in an empty slot).

    Ids are below the model's vocab_size, and segments below its type_vocab_size.

    Source: create_pretraining_data.py, write_instance_to_example_files.
    """
    sequence = functools.partial(Feature, shape=(max_seq_length,), argument="max_seq_length")
    predictions = functools.partial(
        Feature, shape=(max_predictions_per_seq,), argument="max_predictions_per_seq"
    )
    slots = functools.partial(
        Feature, shape=(max_examples_per_row,), argument="max_examples_per_row"
    )
    packed = max_examples_per_row > 1
    packed_only = {
        "sentence_order_weights": slots(np.float32, stored_as="next_sentence_weights"),
        "cls_positions": slots(np.int32, below=max_seq_length),
    }
    return FeatureSpec(
        {
            "input_ids": sequence(np.int32, below=vocab_size),
            "input_mask": sequence(np.int32, below=2),
            "segment_ids": sequence(np.int32, below=type_vocab_size),
            "token_boundary": sequence(np.int32, parsed=False),
            "masked_lm_positions": predictions(np.int32, below=max_seq_length),
            "masked_lm_ids": predictions(np.int32, below=vocab_size),
            "masked_lm_weights": predictions(np.float32),
            # Both shapes store one value, but with () a batch is <int32>[B].
            "sentence_order_labels": slots(
                np.int32,
                shape=(max_examples_per_row,) if packed else (),
                below=2,
                stored_as="next_sentence_labels",
            ),
            **(packed_only if packed else {}),
        },
        strangers={"starts": "has no masks: set `masking=dynamic`"},
    )


# --- compact records, without masks ------------------------------------------------------------


class RowFormat(NamedTuple):
    """How rows are laid out and masked: the generator's sequence length and vocabulary."""

    max_seq_length: int
    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int


def compact_spec(max_seq_length: int = 1 << 31, vocab_size: int = 1 << 31) -> FeatureSpec:
    """The features of a compact record: a row before masking, without specials and padding.

    `token_ids` are A's tokens followed by B's, `segment_lengths` says how many each has, and
    `word_starts` which of them begin a word. Every record holds the RowFormat, so that it can be
    read without the vocabulary. Names on disk are short, since each record repeats them.

    With its specials a row is at most max_seq_length long, and ids are below vocab_size.
    """
    most_tokens = max_seq_length - NUM_SPECIALS
    return FeatureSpec(
        {
            "token_ids": Feature(np.int32, (None,), vocab_size, stored_as="ids"),
            "segment_lengths": Feature(np.int32, (2,), most_tokens, stored_as="lengths"),
            "word_starts": Feature(np.bool_, (None,), stored_as="starts"),
            "sentence_order_labels": Feature(np.int32, (), 2, stored_as="labels"),
            "row_format": Feature(
                np.int32, (len(RowFormat._fields),), stored_as="format", shared=True
            ),
        },
        strangers={
            "masked_lm_positions": "already has masks: set `masking=static`, and leave out "
            "`masked_lm_prob`"
        },
        contradiction=_compact_contradiction,
        consistent=functools.partial(_are_consistent, most_tokens=most_tokens),
    )


def _compact_contradiction(values: Mapping[str, np.ndarray]) -> str | None:
    num_tokens, num_flags = len(values["token_ids"]), len(values["word_starts"])
    lengths = values["segment_lengths"]
    row_format = RowFormat(*values["row_format"].tolist())
    if not _is_row(num_tokens, lengths[0], lengths[1], num_flags // 8):
        return (
            f"{num_tokens} tokens, segment lengths {lengths.tolist()}, {num_flags} word-start flags"
        )
    if num_tokens + NUM_SPECIALS > row_format.max_seq_length:
        places = row_format.max_seq_length
        return f"{num_tokens} tokens and {NUM_SPECIALS} special tokens in a row of {places}"
    if not 0 <= min(row_format[2:]) <= max(row_format[2:]) < row_format.vocab_size:
        return f"special ids {row_format[2:]} in a vocabulary of {row_format.vocab_size}"
    return None


def _are_consistent(stored: Mapping[str, tf.Tensor], most_tokens: int) -> tf.Tensor:
    import tensorflow as tf

    num_tokens = stored["token_ids"].row_lengths()
    lengths_a, lengths_b = tf.unstack(stored["segment_lengths"], axis=1)
    num_bytes = tf.strings.length(stored["word_starts"])
    row = _is_row(num_tokens, lengths_a, lengths_b, tf.cast(num_bytes, tf.int64))
    return row & (num_tokens <= most_tokens)


def _is_row(num_tokens: Any, length_a: Any, length_b: Any, num_bytes: Any) -> Any:
    """Whether the numbers of a compact record are consistent; takes numbers or tensors."""
    fits = (length_a >= 1) & (length_b >= 1) & (length_a + length_b == num_tokens)
    return fits & (num_bytes == (num_tokens + 7) // 8)
