"""The records on disk: one declaration per kind of record writes it and reads it back.

This is the only home of on-disk feature names. In memory a feature may be called otherwise
(`next_sentence_labels` is `sentence_order_labels` here, 1 = swapped): the name changes once, in
`FeatureSpec`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from albert_tf.example_encoding import Column, encode_examples

if TYPE_CHECKING:
    import tensorflow as tf

_KIND_OF_TYPE = {"f": "float_list", "i": "int64_list", "b": "bytes_list"}
# Tokens of a row beside its two segments: [CLS], [SEP], [SEP].
NUM_SPECIALS = 3
_BITS_OF_A_BYTE = (128, 64, 32, 16, 8, 4, 2, 1)


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of a record.

    Attributes:
        dtype: np.int32 (stored as int64_list), np.float32 (stored as float_list) or np.bool_
            (stored as a bytes_list of one string that holds eight values a byte, the first one
            in the highest bit).
        shape: shape of one example, without the batch axis; (None,) is any length. np.bool_ has
            (None,).
        stored_as: name on disk, where it differs from the name in memory.
        parsed: False for a feature that `parse` ignores: it is for other readers.
        shared: True for one that is the same in all records of a run: `parse` ignores it too.
        flag: name of the flag that its length comes from, if any.
    """

    dtype: type[np.generic]
    shape: tuple[int | None, ...]
    stored_as: str | None = None
    parsed: bool = True
    shared: bool = False
    flag: str | None = None

    @property
    def kind(self) -> str:
        """The protobuf field that holds the values."""
        return _KIND_OF_TYPE[np.dtype(self.dtype).kind]

    def read(self, stored: tf.train.Feature) -> np.ndarray | None:
        """Values of one example, flat; whole bytes of bits. None if stored as another kind."""
        if stored.WhichOneof("kind") != self.kind:
            return None
        values = getattr(stored, self.kind).value
        if self.kind == "bytes_list":
            return np.unpackbits(np.frombuffer(b"".join(values), np.uint8)).astype(np.bool_)
        return np.array(values)

    def column(self, examples: np.ndarray | Sequence[np.ndarray]) -> Column:
        """What encode_examples takes for the values of B examples.

        Raises:
            ValueError: an example has another shape.
        """
        if self.shape != (None,):
            column = np.asarray(examples, self.dtype)
            if column.shape[1:] != self.shape:
                raise ValueError(f"expected shape {self.shape}, got {column.shape[1:]}")
            return column
        rows = [np.asarray(example, self.dtype) for example in examples]
        for row in rows:
            if row.ndim != 1:
                raise ValueError(f"expected shape {self.shape}, got {row.shape}")
        if self.kind == "bytes_list":
            return [np.packbits(row).tobytes() for row in rows]
        return rows


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """One declaration that both writes and parses a tf.train.Example.

    Attributes:
        features: in-memory name -> Feature.
        strangers: names on disk that only another kind of record has -> what to do about it.
        contradiction: says how the values of one example, each as `Feature.read` returns it,
            contradict each other, or None if they don't.
    """

    features: Mapping[str, Feature]
    strangers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    contradiction: Callable[[Mapping[str, np.ndarray]], str | None] = lambda values: None

    def serialize(self, example: Mapping[str, np.ndarray]) -> bytes:
        """Encodes one example, without a batch axis; see `serialize_batch`."""
        return self.serialize_batch({name: [value] for name, value in example.items()})[0]

    def serialize_batch(
        self, examples: Mapping[str, np.ndarray | Sequence[np.ndarray]]
    ) -> list[bytes]:
        """Encodes a batch of examples, each as a serialized tf.train.Example.

        The same example always gives the same bytes.

        Args:
            examples: in-memory name -> [B, *declared shape], as a sequence of B arrays where
                lengths differ.

        Raises:
            ValueError: a feature is missing, not declared, or of another shape.
        """
        if examples.keys() != self.features.keys():
            raise ValueError(
                f"expected the features {sorted(self.features)}, got {sorted(examples)}"
            )
        columns = {}
        for name, feature in self.features.items():
            try:
                columns[feature.stored_as or name] = feature.column(examples[name])
            except ValueError as error:
                raise ValueError(f"feature {name}: {error}") from None
        return encode_examples(columns)

    def parse(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        """Decodes a batch of serialized examples; works eagerly and inside Dataset.map.

        Args:
            serialized: <string>[B].

        Returns:
            in-memory name -> <declared dtype>[B, *declared shape]. Features of any length are
            filled up with zeros, at least to the longest of the batch.
        """
        import tensorflow as tf  # Writers of records do without it.

        wanted = {
            name: feature
            for name, feature in self.features.items()
            if feature.parsed and not feature.shared
        }
        on_disk = {feature.stored_as or name: _on_disk(feature) for name, feature in wanted.items()}
        parsed = tf.io.parse_example(serialized, on_disk)
        return {
            name: _unpack_bits(parsed[feature.stored_as or name])
            if feature.kind == "bytes_list"
            else tf.cast(parsed[feature.stored_as or name], feature.dtype)
            for name, feature in wanted.items()
        }


def _on_disk(feature: Feature) -> tf.io.FixedLenFeature | tf.io.FixedLenSequenceFeature:
    import tensorflow as tf

    if feature.kind == "bytes_list":
        return tf.io.FixedLenFeature((), tf.string)
    dtype = tf.float32 if feature.kind == "float_list" else tf.int64
    if feature.shape == (None,):
        return tf.io.FixedLenSequenceFeature((), dtype, allow_missing=True)
    return tf.io.FixedLenFeature(feature.shape, dtype)


def _unpack_bits(strings: tf.Tensor) -> tf.Tensor:
    """<bool>[B, 8 * bytes of the longest] from <string>[B]."""
    import tensorflow as tf

    size = tf.maximum(tf.reduce_max(tf.strings.length(strings)), 1)
    octets = tf.io.decode_raw(strings, tf.uint8, fixed_length=size)
    bits = tf.bitwise.bitwise_and(octets[:, :, None], tf.constant(_BITS_OF_A_BYTE, tf.uint8))
    return tf.reshape(bits > 0, [tf.shape(octets)[0], 8 * size])


def pretraining_spec(
    max_seq_length: int, max_predictions_per_seq: int, max_examples_per_row: int = 1
) -> FeatureSpec:
    """The eight features of a pre-training record (S = max_seq_length, P = predictions).

    `token_boundary` is written, as the release does, and not read: nothing in training uses it.

    A packed row, where max_examples_per_row is above 1, holds several examples one after the
    other: their tokens and predictions are the row's, each has a slot of its own for its order
    label, and two more features tell which slots are filled (`sentence_order_weights`, 1 or 0)
    and where each example's [CLS] stands (`cls_positions`, rising; 0 in an empty slot).

    Source: create_pretraining_data.py, write_instance_to_example_files.
    """
    sequence = functools.partial(Feature, shape=(max_seq_length,), flag="max_seq_length")
    predictions = functools.partial(
        Feature, shape=(max_predictions_per_seq,), flag="max_predictions_per_seq"
    )
    slots = functools.partial(Feature, shape=(max_examples_per_row,), flag="max_examples_per_row")
    packed = max_examples_per_row > 1
    packed_only = {
        "sentence_order_weights": slots(np.float32, stored_as="next_sentence_weights"),
        "cls_positions": slots(np.int32),
    }
    return FeatureSpec(
        {
            "input_ids": sequence(np.int32),
            "input_mask": sequence(np.int32),
            "segment_ids": sequence(np.int32),
            "token_boundary": sequence(np.int32, parsed=False),
            "masked_lm_positions": predictions(np.int32),
            "masked_lm_ids": predictions(np.int32),
            "masked_lm_weights": predictions(np.float32),
            # Shape () and not (1,): both store one value, and the batch is then <int32>[B].
            "sentence_order_labels": slots(
                np.int32,
                shape=(max_examples_per_row,) if packed else (),
                stored_as="next_sentence_labels",
            ),
            **(packed_only if packed else {}),
        },
        strangers={"starts": "holds no masks: set --masking=dynamic"},
    )


class RowFormat(NamedTuple):
    """What rows are laid out and masked with: of the generator and its vocabulary.

    Attributes:
        max_seq_length: S.
        vocab_size: V.
        pad_id: id of <pad> or [PAD].
        cls_id: id of [CLS].
        sep_id: id of [SEP].
        mask_id: id of [MASK].
    """

    max_seq_length: int
    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int


def compact_spec() -> FeatureSpec:
    """The features of a compact record: a row before its masks, without specials and padding.

    `token_ids` are those of segment A and B one after the other, `segment_lengths` the numbers of
    them, `word_starts` says which of them begin a word. Every record tells the RowFormat, so that
    it can be read without the vocabulary. Names on disk are short, since each record repeats them.
    """
    return FeatureSpec(
        {
            "token_ids": Feature(np.int32, (None,), stored_as="ids"),
            "segment_lengths": Feature(np.int32, (2,), stored_as="lengths"),
            "word_starts": Feature(np.bool_, (None,), stored_as="starts"),
            "sentence_order_labels": Feature(np.int32, (), stored_as="labels"),
            "row_format": Feature(
                np.int32, (len(RowFormat._fields),), stored_as="format", shared=True
            ),
        },
        strangers={
            "masked_lm_positions": "holds masks: set --masking=static, without --masked_lm_budget"
        },
        contradiction=_compact_contradiction,
    )


def _compact_contradiction(values: Mapping[str, np.ndarray]) -> str | None:
    num_tokens = len(values["token_ids"])
    lengths = values["segment_lengths"].tolist()
    row_format = RowFormat(*values["row_format"].tolist())
    if min(lengths) < 1 or sum(lengths) != num_tokens:
        return f"{num_tokens} tokens in segments of {lengths}"
    if len(values["word_starts"]) != -(-num_tokens // 8) * 8:
        return f"{num_tokens} tokens and {len(values['word_starts'])} flags of word starts"
    if num_tokens + NUM_SPECIALS > row_format.max_seq_length:
        places = row_format.max_seq_length
        return f"{num_tokens} tokens and {NUM_SPECIALS} specials for {places} places"
    if not 0 <= min(row_format[2:]) <= max(row_format[2:]) < row_format.vocab_size:
        return f"specials {row_format[2:]} for a vocabulary of {row_format.vocab_size}"
    return None
