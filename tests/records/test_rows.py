"""Rows: specials, segments and word starts stand where a loop over tokens puts them."""

from __future__ import annotations

import numpy as np
import pytest

from albert_tf.records import masking
from albert_tf.records.masking import Rows
from albert_tf.records.spec import RowFormat

PAD, CLS, SEP, MASK = 1, 7, 11, 13  # not those of any released vocabulary
FORMAT = RowFormat(
    max_seq_length=19, vocab_size=307, pad_id=PAD, cls_id=CLS, sep_id=SEP, mask_id=MASK
)
LENGTHS = np.array([[5, 11], [1, 1], [2, 7], [11, 3], [4, 4]])


def _segments() -> tuple[np.ndarray, np.ndarray]:
    """Token ids and word starts, wider than needed, with rubbish behind the tokens."""
    draws = np.random.default_rng(3)
    ids = draws.integers(20, 307, (len(LENGTHS), 17)).astype(np.int32)
    return ids, draws.random((len(LENGTHS), 23)) < 0.6


def test_rows_are_what_a_loop_over_tokens_makes():
    ids, starts = _segments()
    ids[3, 4] = SEP  # stands in the text, and is never masked
    rows = Rows.lay_out(ids, LENGTHS, starts, FORMAT)
    assert rows.input_ids.dtype == rows.segment_ids.dtype == np.int32
    for row, (length_a, length_b) in enumerate(LENGTHS.tolist()):
        tokens, words = ids[row].tolist(), starts[row].tolist()
        end = length_a + length_b
        line = [CLS, *tokens[:length_a], SEP, *tokens[length_a:end], SEP]
        flags = [0, *words[:length_a], 0, *words[length_a:end], 0]
        special = [int(token in (CLS, SEP)) for token in line]
        padding = [0] * (19 - len(line))
        assert rows.lengths[row] == len(line)
        assert rows.input_ids[row].tolist() == line + [PAD] * len(padding)
        segments = [0] * (length_a + 2) + [1] * (length_b + 1)
        assert rows.segment_ids[row].tolist() == segments + padding
        assert rows.candidates[row].tolist() == [1 - flag for flag in special] + padding
        assert rows.word_starts[row].tolist() == flags + padding
        boundaries = [max(pair) for pair in zip(flags, special, strict=True)]
        assert rows.token_boundaries()[row].tolist() == boundaries + padding


def test_masking_a_row_is_mask_tokens_of_it():
    rows = Rows.lay_out(*_segments()[:1], LENGTHS, _segments()[1], FORMAT)
    settings = masking.MaskingSettings(307, MASK, masked_lm_prob=0.3, max_predictions_per_seq=3)
    seeds = masking.derive_seeds(5, np.arange(len(LENGTHS)))
    features = rows.mask(seeds, settings)
    expected = masking.mask_tokens(
        rows.input_ids, rows.lengths, rows.candidates, rows.word_starts, seeds, settings
    )
    for name, values in expected._asdict().items():
        np.testing.assert_array_equal(features[name], values)
    assert features["masked_lm_weights"].sum(1).tolist() == [3, 2, 3, 3, 3]
    np.testing.assert_array_equal(features["input_mask"].sum(1), LENGTHS.sum(1) + 3)
    np.testing.assert_array_equal(features["segment_ids"], rows.segment_ids)


@pytest.mark.parametrize("lengths", [[10, 7], [9, 14]])
def test_a_row_that_is_too_long_is_refused(lengths):
    ids, starts = _segments()
    with pytest.raises(ValueError, match=f"a row has {sum(lengths)} tokens, expected at most 16"):
        Rows.lay_out(ids[:1], np.array([lengths]), starts[:1], FORMAT)
