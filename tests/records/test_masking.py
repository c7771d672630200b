"""Masking and its rows: certain cases first, then a scalar re-derivation, then statistics (p 1e-4).

Not tested here: whether SplitMix64 is random enough beyond these distributions.
"""

import hashlib
import json

import numpy as np
import pytest

from albert_tf.records import masking
from albert_tf.records.masking import Rows
from albert_tf.records.spec import RowFormat
from tests.kit.statistics_of_samples import assert_distribution

MASK_ID = 4
VOCAB_SIZE = 307


def _settings(**changes) -> masking.MaskingSettings:
    return masking.MaskingSettings(vocab_size=VOCAB_SIZE, mask_id=MASK_ID, **changes)


def _batch(rows: int, length: int, seed: int = 0, start_prob: float = 0.7) -> dict:
    """Rows of random ids and words; first, middle and last token are special, two are padding."""
    draws = np.random.default_rng(seed)
    ids = draws.integers(5, VOCAB_SIZE, (rows, length)).astype(np.int32)
    candidates = np.ones(ids.shape, bool)
    candidates[:, [0, length // 2, length - 3]] = False
    candidates[:, -2:] = False
    return {
        "input_ids": ids,
        "lengths": np.full(rows, length - 2),
        "candidates": candidates,
        "word_starts": draws.random(ids.shape) < start_prob,
        "seeds": masking.derive_seeds(seed, np.arange(rows)),
    }


def _mask(batch: dict, settings: masking.MaskingSettings) -> dict[str, np.ndarray]:
    rows = {name: values for name, values in batch.items() if name != "seeds"}
    rows["segment_ids"] = np.zeros_like(batch["input_ids"])
    return Rows(**rows).mask(batch["seeds"], settings)


def _labelled(masked: dict[str, np.ndarray], size: int) -> np.ndarray:
    flags = np.zeros((len(masked["input_ids"]), size), bool)
    rows, slots = np.nonzero(masked["masked_lm_weights"])
    flags[rows, masked["masked_lm_positions"][rows, slots]] = True
    return flags


@pytest.fixture(scope="module")
def units(golden) -> list[dict]:
    return json.loads((golden / "pretrain_data" / "masking_units.json").read_text())


def test_without_probability_or_candidates_nothing_is_masked():
    batch = _batch(7, 31)
    masked = _mask(batch, _settings(masked_lm_prob=0.0))
    np.testing.assert_array_equal(masked["input_ids"], batch["input_ids"])
    for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        np.testing.assert_array_equal(masked[name], np.zeros((7, 20)))
    batch["candidates"][1] = False
    masked = _mask(batch, _settings())
    np.testing.assert_array_equal(masked["masked_lm_weights"].sum(1), [4, 0, *[4] * 5])


def test_probability_one_labels_every_candidate_and_no_special():
    # Unigrams only: a word whose only n-gram overlaps an earlier one is never masked.
    settings = _settings(masked_lm_prob=1, max_predictions_per_seq=29, ngram=1)
    batch = _batch(7, 31)
    masked, ids, candidates = _mask(batch, settings), batch["input_ids"], batch["candidates"]
    np.testing.assert_array_equal(_labelled(masked, 31), candidates)
    np.testing.assert_array_equal(masked["input_ids"][~candidates], ids[~candidates])
    at = np.tile(np.flatnonzero(candidates[0]), (7, 1))
    labels = {"positions": at, "ids": np.take_along_axis(ids, at, 1), "weights": np.ones(at.shape)}
    for name, values in labels.items():
        expected = np.pad(values, ((0, 0), (0, 29 - at.shape[1])))
        np.testing.assert_array_equal(masked[f"masked_lm_{name}"], expected, err_msg=name)


def test_numbers_of_predictions_are_those_of_the_release(units):
    lengths = np.array([len(unit["tokens"]) for unit in units])
    expected = [unit["num_to_predict"] for unit in units]
    np.testing.assert_array_equal(masking.count_predictions(lengths, _settings()), expected)
    # 0.5 * 5 and 0.5 * 7 round to even; at least 1, at most the limit.
    halves = _settings(masked_lm_prob=0.5, max_predictions_per_seq=11)
    counts = masking.count_predictions(np.array([1, 5, 7, 89]), halves)
    assert counts.tolist() == [1, 2, 4, 11]


def test_masked_words_are_the_word_groups_of_the_release(units):
    repeats, size = 97, 128
    for number, unit in enumerate(units):
        length = len(unit["tokens"])
        special = [token in ("[CLS]", "[SEP]") for token in unit["tokens"]]
        candidates = np.pad(~np.array(special), (0, size - length))
        starts = np.pad(np.array(unit["token_boundary"], bool), (0, size - length))
        batch = {
            "input_ids": np.full((repeats, size), 5, np.int32),
            "lengths": np.full(repeats, length),
            "candidates": np.tile(candidates, (repeats, 1)),
            "word_starts": np.tile(starts, (repeats, 1)),
            "seeds": masking.derive_seeds(number, np.arange(repeats)),
        }
        masked = _mask(batch, _settings(ngram=1))
        labelled = _labelled(masked, size)
        seen = [labelled[:, group] for group in unit["whole_word_groups"]]
        for group, flags in zip(unit["whole_word_groups"], seen, strict=True):
            np.testing.assert_array_equal(flags.any(1), flags.all(1), err_msg=str(group))
            assert flags.any(), f"never masked: {group} of unit {number}"
        assert sum(flags.sum() for flags in seen) == labelled.sum()
        assert (masked["masked_lm_weights"].sum(1) == unit["num_to_predict"]).all()


def _choose_one_by_one(words, order, lengths, budget) -> set[int]:
    """The release's loop over shuffled candidates of one row, written with lists."""
    covered: set[int] = set()
    for first, length in zip(order, lengths, strict=True):
        if len(covered) >= budget:
            break
        pieces = sum(words[first : first + length], [])
        while len(covered) + len(pieces) > budget and length > 1:
            length -= 1
            pieces = sum(words[first : first + length], [])
        if len(covered) + len(pieces) <= budget and covered.isdisjoint(pieces):
            covered.update(pieces)
    return covered


@pytest.mark.parametrize("start_prob", [0.3, 0.7, 1.0])
@pytest.mark.parametrize("ngram", [1, 3, 5])
def test_all_rows_at_once_choose_what_a_loop_over_one_row_chooses(start_prob, ngram):
    settings = _settings(ngram=ngram, max_predictions_per_seq=13)
    batch = _batch(101, 67, seed=ngram, start_prob=start_prob)
    labelled = _labelled(_mask(batch, settings), 67)
    seeds = masking.derive_seeds(batch["seeds"], masking._MASKED)
    budget = masking.count_predictions(batch["lengths"], settings)
    for row in range(101):
        words: list[list[int]] = []
        for position in np.flatnonzero(batch["candidates"][row]):
            if not words or batch["word_starts"][row, position]:
                words.append([])
            words[-1].append(int(position))
        keys = masking.derive_seeds(seeds[row], masking._WORD_ORDER, np.arange(len(words)))
        order = np.argsort(keys)
        lengths = [
            int(masking._draw_ngram_lengths(seeds[row : row + 1], k, settings)[0])
            for k in range(len(words))
        ]
        chosen = _choose_one_by_one(words, order, lengths, budget[row])
        assert chosen == set(np.flatnonzero(labelled[row])), f"row {row}"


def test_a_row_does_not_depend_on_its_batch():
    batch, settings = _batch(53, 47), _settings(do_permutation=True)
    whole = _mask(batch, settings)
    picked = np.array([41, 3, 17])
    part = _mask({name: values[picked] for name, values in batch.items()}, settings)
    for name, of_part in part.items():
        np.testing.assert_array_equal(whole[name][picked], of_part)


def test_derived_seeds_are_splitmix64():
    # First outputs of the public reference implementation for seeds 0 and 1234567.
    assert masking.derive_seeds(0, 0) == np.uint64(0xE220A8397B1DCDAF)
    assert masking.derive_seeds(0, 1) == np.uint64(0x6E789E6AA1B965F4)
    assert masking.derive_seeds(1234567, 0) == np.uint64(6457827717110365317)
    assert masking.derive_seeds(-1, 0) == masking.derive_seeds(2**64 - 1, 0)


def test_without_whole_words_every_piece_is_a_word():
    batch = _batch(211, 31, start_prob=0.0)
    pieces = _settings(do_whole_word_mask=False, ngram=1)
    assert (_mask(batch, pieces)["masked_lm_weights"].sum(1) == 4).all()
    # A single word of 26 pieces exceeds the budget of 4.
    assert not _mask(batch, _settings())["masked_lm_weights"].any()


def test_permutation_exchanges_as_many_tokens_again():
    batch = _batch(59, 47)
    both = _mask(batch, _settings(do_permutation=True, max_predictions_per_seq=6))
    only_masked = _mask(batch, _settings(max_predictions_per_seq=6))
    exchanged = _labelled(both, 47) & ~_labelled(only_masked, 47)
    np.testing.assert_array_equal(both["masked_lm_weights"].sum(1), np.full(59, 12))
    np.testing.assert_array_equal(exchanged.sum(1), np.full(59, 6))
    ids, before = both["input_ids"], batch["input_ids"]
    np.testing.assert_array_equal(ids[~exchanged], only_masked["input_ids"][~exchanged])
    after, before_in_rows = ids[exchanged].reshape(59, 6), before[exchanged].reshape(59, 6)
    np.testing.assert_array_equal(np.sort(after), np.sort(before_in_rows))
    assert (after != before_in_rows).sum() > 59 * 3
    labels = np.take_along_axis(before, both["masked_lm_positions"], axis=1)
    np.testing.assert_array_equal(both["masked_lm_ids"], labels)


def test_ngram_lengths_are_drawn_with_probability_1_over_n():
    seeds = masking.derive_seeds(5, np.arange(100_003))
    drawn = masking._draw_ngram_lengths(seeds, 2, _settings(ngram=3))
    assert_distribution(np.bincount(drawn)[1:], [6 / 11, 3 / 11, 2 / 11])
    drawn = masking._draw_ngram_lengths(seeds, 2, _settings(ngram=3, favor_shorter_ngram=False))
    assert_distribution(np.bincount(drawn)[1:], [2 / 11, 3 / 11, 6 / 11])


def test_every_word_is_as_likely_to_be_masked_first():
    batch = _batch(50_021, 23, start_prob=1.0)
    masked = _mask(batch, _settings(max_predictions_per_seq=1))
    counts = np.bincount(masked["masked_lm_positions"][:, 0], minlength=23)
    assert_distribution(counts[batch["candidates"][0]], np.ones(18))


@pytest.mark.parametrize(
    ("mask", "random"), [(None, None), (0.5, 0.3), (0.9, 0.1), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0)]
)
def test_masked_pieces_become_mask_stay_or_change_to_any_piece(mask, random):
    """By default 80 % become [MASK], and 10 % a random piece."""
    batch = _batch(5_003, 31)
    batch["input_ids"][:] = 11
    shares = {} if mask is None else {"mask_replace_prob": mask, "random_replace_prob": random}
    mask, random = (0.8, 0.1) if mask is None else (mask, random)
    settings = _settings(masked_lm_prob=1, max_predictions_per_seq=29, ngram=1, **shares)
    masked = _mask(batch, settings)
    counts = np.bincount(masked["input_ids"][batch["candidates"]], minlength=VOCAB_SIZE)
    shares = np.full(VOCAB_SIZE, random / VOCAB_SIZE)
    shares[MASK_ID] += mask
    shares[11] += 1 - mask - random
    possible = shares > 1e-9
    assert not counts[~possible].any()
    if possible.sum() > 1:
        assert_distribution(counts[possible], shares[possible])


PAD, CLS, SEP, MASK = 1, 7, 11, 13  # not those of any released vocabulary
FORMAT = RowFormat(19, 307, PAD, CLS, SEP, MASK)
LENGTHS = np.array([[5, 11], [1, 1], [2, 7], [11, 3], [4, 4]])


def _segments() -> tuple[np.ndarray, np.ndarray]:
    """Token ids and word starts in arrays wider than needed, with garbage after the tokens."""
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


def test_masked_rows_keep_their_segments_and_say_what_is_padding():
    ids, starts = _segments()
    rows = Rows.lay_out(ids, LENGTHS, starts, FORMAT)
    settings = masking.MaskingSettings(307, MASK, masked_lm_prob=0.3, max_predictions_per_seq=3)
    features = rows.mask(masking.derive_seeds(5, np.arange(len(LENGTHS))), settings)
    assert features["masked_lm_weights"].sum(1).tolist() == [3, 2, 3, 3, 3]
    np.testing.assert_array_equal(features["input_mask"].sum(1), LENGTHS.sum(1) + 3)
    np.testing.assert_array_equal(features["segment_ids"], rows.segment_ids)


def _digest(settings: masking.MaskingSettings) -> str:
    """Masks 211 rows of up to 71 tokens, some special in the text; returns the features' hash."""
    row_format = FORMAT._replace(max_seq_length=71)
    bits = masking.derive_seeds(17, np.arange(211)[:, None], np.arange(70))
    ids = ((bits[:, :68] >> np.uint64(32)) % np.uint64(300)).astype(np.int32)
    starts = bits[:, :68] % np.uint64(100) < bits[:, 68:69] % np.uint64(101)
    lengths = 1 + ((bits[:, 68:] >> np.uint64(8)) % np.uint64(34)).astype(np.int64)
    rows = Rows.lay_out(ids, lengths, starts, row_format)
    features = rows.mask(masking.derive_seeds(5, np.arange(211)), settings)
    features["token_boundary"] = rows.token_boundaries()
    digest = hashlib.sha256()
    for name in sorted(features):
        digest.update(f"{name}{features[name].dtype}".encode())
        digest.update(features[name].tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "96d94ae638447370"),
        ({"ngram": 1}, "74d107522eeca921"),
        ({"ngram": 5, "favor_shorter_ngram": False}, "e77a512e76a586b8"),
        ({"do_whole_word_mask": False}, "fd51f106e791eca7"),
        ({"do_permutation": True}, "21739eae489c1ea9"),
        ({"masked_lm_prob": 0.9, "max_predictions_per_seq": 66}, "26dae6115c7476ae"),
    ],
)
def test_masks_stay_what_they_were_to_the_bit(changes, expected):
    # A run that a later version resumes must go on with the same masks. The hashes are those of
    # the first version of this code, which the loop over one row above confirms.
    assert _digest(masking.MaskingSettings(307, MASK, **changes)) == expected
