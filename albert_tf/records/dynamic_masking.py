"""Dynamic masking: new masks for every example each time it is fed.

A row's masks are a function of a seed and of the example's position in the run's single sequence
of examples: a resumed run draws the same masks as an uninterrupted one, epochs differ, and no two
replicas draw the same.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from albert_tf.records import masking, rows, specs
from albert_tf.types import Features


@dataclasses.dataclass(frozen=True)
class DynamicMasking:
    """Turns a batch of compact records into the features of pretraining_spec.

    NumPy draws the masks in this process: a dataset on another machine can't call it.

    Attributes:
      row_format: Format of the records' rows.
      settings: How much is masked, and with what.
      seed: Determines all masks, together with the places.
    """

    row_format: specs.RowFormat
    settings: masking.MaskingSettings
    seed: int

    def __call__(self, examples: Features, places: tf.Tensor) -> Features:
        """Lays out and masks a batch; works eagerly and inside Dataset.map.

        Args:
          examples: Features of records.compact_spec.
          places: <int64>[B], positions of the examples in the run, counted from 0.
        """
        declared = specs.pretraining_spec(
            self.row_format.max_seq_length, self.settings.label_slots
        ).features
        drawn = {
            name: feature
            for name, feature in declared.items()
            if feature.parsed and name not in examples
        }

        def draw(*arrays: np.ndarray) -> list[np.ndarray]:
            token_ids, segment_lengths, word_starts, places = arrays
            laid_out = rows.Rows.lay_out(token_ids, segment_lengths, word_starts, self.row_format)
            masked = laid_out.mask(masking.derive_seeds(self.seed, places), self.settings)
            return [masked[name] for name in drawn]

        tensors = tf.numpy_function(
            draw,
            [examples[name] for name in ("token_ids", "segment_lengths", "word_starts")] + [places],
            [feature.dtype for feature in drawn.values()],
            stateful=False,
        )
        features = {"sentence_order_labels": examples["sentence_order_labels"]}
        for (name, feature), tensor in zip(drawn.items(), tensors, strict=True):
            features[name] = tf.ensure_shape(tensor, (*places.shape, *feature.shape))
        return features
