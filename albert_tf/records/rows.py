"""Rows: lays out two segments as [CLS] A [SEP] B [SEP] and padding, and masks them.

The single definition of a row's layout, for the generator, which masks once, and for training,
which masks again in each epoch.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from albert_tf.records import masking
from albert_tf.records.specs import NUM_SPECIALS, RowFormat


@dataclasses.dataclass(frozen=True)
class Rows:
    """A batch of rows before masking.

    Attributes:
      input_ids: <int32>[B, S].
      lengths: <int>[B], tokens per row, specials included.
      segment_ids: <int32>[B, S], 1 for B and its [SEP].
      candidates: <bool>[B, S], tokens that may be masked: not specials or padding, nor a [CLS]
        or [SEP] that occurs in the text.
      word_starts: <bool>[B, S], of the text; False elsewhere.
    """

    input_ids: np.ndarray
    lengths: np.ndarray
    segment_ids: np.ndarray
    candidates: np.ndarray
    word_starts: np.ndarray

    @classmethod
    def lay_out(
        cls,
        token_ids: np.ndarray,
        segment_lengths: np.ndarray,
        word_starts: np.ndarray,
        row_format: RowFormat,
    ) -> Rows:
        """Adds the special tokens to the segments.

        Args:
          token_ids: <int32>[B, T], tokens of A and then of B; anything after them is ignored.
          segment_lengths: <int>[B, 2], numbers of tokens in A and in B.
          word_starts: <bool>[B, T or more].
          row_format: S and the specials.

        Raises:
          ValueError: If a row is longer than T, or than S with its specials.

        Source: create_pretraining_data.py, create_instances_from_document.
        """
        totals = segment_lengths.sum(1)
        longest = min(token_ids.shape[1], row_format.max_seq_length - NUM_SPECIALS)
        if totals.max(initial=0) > longest:
            raise ValueError(f"a row has {totals.max()} tokens, expected at most {longest}")
        columns = np.arange(row_format.max_seq_length)
        first_sep = 1 + segment_lengths[:, :1]
        lengths = totals[:, None] + NUM_SPECIALS
        behind_first_sep = columns > first_sep
        is_text = (columns != 0) & (columns != first_sep) & (columns < lengths - 1)

        sources = np.minimum(np.maximum(columns - 1 - behind_first_sep, 0), longest - 1)
        input_ids = np.where(
            is_text, np.take_along_axis(token_ids, sources, axis=1), row_format.pad_id
        )
        input_ids[:, 0] = row_format.cls_id
        np.put_along_axis(input_ids, first_sep, row_format.sep_id, axis=1)
        np.put_along_axis(input_ids, lengths - 1, row_format.sep_id, axis=1)
        is_special = (input_ids == row_format.cls_id) | (input_ids == row_format.sep_id)
        return cls(
            input_ids=input_ids.astype(np.int32),
            lengths=lengths[:, 0],
            segment_ids=(behind_first_sep & (columns < lengths)).astype(np.int32),
            candidates=is_text & ~is_special,
            word_starts=is_text & np.take_along_axis(word_starts, sources, axis=1),
        )

    def mask(self, seeds: np.ndarray, settings: masking.MaskingSettings) -> dict[str, np.ndarray]:
        """Masks the rows.

        Args:
          seeds: <uint64>[B], which determine the masks.
          settings: See MaskingSettings.

        Returns:
          The features of records.pretraining_spec except the order label and `token_boundary`.
        """
        masked = masking.mask_tokens(
            self.input_ids, self.lengths, self.candidates, self.word_starts, seeds, settings
        )
        columns = np.arange(self.input_ids.shape[1])
        return {
            "input_mask": (columns < self.lengths[:, None]).astype(np.int32),
            "segment_ids": self.segment_ids,
            **masked._asdict(),
        }

    def token_boundaries(self) -> np.ndarray:
        """Returns <int32>[B, S]: 1 where a word begins, [CLS] and [SEP] included."""
        columns = np.arange(self.input_ids.shape[1])
        is_special = (columns < self.lengths[:, None]) & ~self.candidates
        return (self.word_starts | is_special).astype(np.int32)
