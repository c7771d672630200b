"""The records on disk: one declaration per kind of record writes it and reads it back.

This is the only home of on-disk feature names. In memory a feature may be called otherwise
(`next_sentence_labels` is `sentence_order_labels` here, 1 = swapped): the name changes once, in
`FeatureSpec`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from albert_tf.example_encoding import encode_examples

if TYPE_CHECKING:
    import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of a record.

    Attributes:
        dtype: np.int32 (stored as int64_list) or np.float32 (stored as float_list).
        shape: shape of one example, without the batch axis.
        stored_as: name on disk, where it differs from the name in memory.
        parsed: False for a feature that is written for other readers and ignored by `parse`.
    """

    dtype: type[np.generic]
    shape: tuple[int, ...]
    stored_as: str | None = None
    parsed: bool = True

    @property
    def is_float(self) -> bool:
        """Whether the values are stored as a float_list."""
        return np.issubdtype(self.dtype, np.floating)


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """One declaration that both writes and parses a tf.train.Example.

    Attributes:
        features: in-memory name -> Feature.
    """

    features: Mapping[str, Feature]

    def serialize(self, example: Mapping[str, np.ndarray]) -> bytes:
        """Encodes one example, without a batch axis; see `serialize_batch`."""
        return self.serialize_batch({name: np.asarray(v)[None] for name, v in example.items()})[0]

    def serialize_batch(self, examples: Mapping[str, np.ndarray]) -> list[bytes]:
        """Encodes a batch of examples, each as a serialized tf.train.Example.

        The same example always gives the same bytes.

        Args:
            examples: in-memory name -> [B, *declared shape].

        Raises:
            ValueError: a feature is missing, not declared, or of another shape.
        """
        if examples.keys() != self.features.keys():
            raise ValueError(
                f"expected the features {sorted(self.features)}, got {sorted(examples)}"
            )
        columns = {}
        for name, feature in self.features.items():
            values = np.asarray(examples[name], feature.dtype)
            if values.shape[1:] != feature.shape:
                raise ValueError(
                    f"feature {name}: expected shape {feature.shape}, got {values.shape[1:]}"
                )
            columns[feature.stored_as or name] = values
        return encode_examples(columns)

    def parse(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        """Decodes a batch of serialized examples; works eagerly and inside Dataset.map.

        Args:
            serialized: <string>[B].

        Returns:
            in-memory name -> <declared dtype>[B, *declared shape].
        """
        import tensorflow as tf  # Writers of records do without it.

        wanted = {name: feature for name, feature in self.features.items() if feature.parsed}
        on_disk = {
            feature.stored_as or name: tf.io.FixedLenFeature(
                feature.shape, tf.float32 if feature.is_float else tf.int64
            )
            for name, feature in wanted.items()
        }
        parsed = tf.io.parse_example(serialized, on_disk)
        return {
            name: tf.cast(parsed[feature.stored_as or name], feature.dtype)
            for name, feature in wanted.items()
        }


def pretraining_spec(max_seq_length: int, max_predictions_per_seq: int) -> FeatureSpec:
    """The eight features of a pre-training record (S = max_seq_length, P = predictions).

    `token_boundary` is written, as the release does, and not read: nothing in training uses it.

    Source: create_pretraining_data.py, write_instance_to_example_files.
    """
    sequence, predictions = (max_seq_length,), (max_predictions_per_seq,)
    return FeatureSpec(
        {
            "input_ids": Feature(np.int32, sequence),
            "input_mask": Feature(np.int32, sequence),
            "segment_ids": Feature(np.int32, sequence),
            "token_boundary": Feature(np.int32, sequence, parsed=False),
            "masked_lm_positions": Feature(np.int32, predictions),
            "masked_lm_ids": Feature(np.int32, predictions),
            "masked_lm_weights": Feature(np.float32, predictions),
            # Shape () and not (1,): both store one value, and the batch is then <int32>[B].
            "sentence_order_labels": Feature(np.int32, (), stored_as="next_sentence_labels"),
        }
    )
