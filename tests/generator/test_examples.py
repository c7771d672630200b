"""Segment pairs and packed rows; statistics at p 1e-4."""

import itertools
import random

import numpy as np
import pytest

from albert_tf.generator import examples
from albert_tf.generator.examples import _truncate, assign_rows, draw_pairs, pack_rows
from albert_tf.generator.settings import GeneratorSettings
from albert_tf.records.spec import pretraining_spec
from tests.kit.statistics_of_samples import assert_distribution


def _document(*lengths: int, begin: int = 0) -> list[int]:
    return list(itertools.accumulate(lengths, initial=begin))


def _settings(**given) -> GeneratorSettings:
    return GeneratorSettings(input_file="", output_file="", **given)


def _draw(documents, seeds=range(101), word_starts=None, **changes):
    settings = _settings(**{"max_seq_length": 23, "short_seq_prob": 0.0} | changes)
    return [draw_pairs(documents, 0, settings, random.Random(seed), word_starts) for seed in seeds]


def test_neighbouring_segments_cover_the_document_in_order():
    bounds = _document(7, 5, 3, 5, 11, 9, 13, 2, 5)
    # Sentences gathered until they have 20 tokens: 20, 20, 15 + 5.
    chunks = [(0, 20), (20, 40), (40, 60)]
    for pairs in _draw([bounds], seeds=range(307)):
        assert [(min(p.a_begin, p.b_begin), max(p.a_end, p.b_end)) for p in pairs] == chunks
        for pair in pairs:
            assert (pair.a_end == pair.b_begin) == (pair.label == 0)
            assert (pair.b_end == pair.a_begin) == (pair.label == 1)
            assert {pair.a_end, pair.b_end} - {20, 40, 60} < set(bounds)
            assert not pair.single


def test_tokens_without_room_are_counted():
    # Chunks of 9 + 17, 20 and 3 + 5 tokens, for which there is room for 20.
    for pairs in _draw([_document(9, 17, 13, 7, 3, 5)]):
        assert [pair.dropped for pair in pairs] == [6, 0, 0]
        kept = [p.a_end - p.a_begin + p.b_end - p.b_begin for p in pairs]
        assert kept == [20, 20, 8]


def test_an_example_that_ends_before_a_word_is_as_long_as_it_can_be():
    """Words of 1 token, and one of 4: there is room for 20 tokens."""
    word_starts = np.ones(50, bool)
    word_starts[[38, 39, 40]] = False
    how = {"single_segment": "split", "overflow": "carry"}
    for pairs in _draw([_document(50)], word_starts=word_starts, **how):
        found = [(min(p.a_begin, p.b_begin), max(p.a_end, p.b_end)) for p in pairs]
        assert found == [(0, 20), (20, 37), (37, 50)]


@pytest.mark.parametrize("short_seq_prob", [0.0, 1.0])
def test_what_has_no_room_begins_the_next_example(short_seq_prob):
    """Only tokens of one-word sentences are lost; segments begin with a word."""
    rng = np.random.default_rng(8)
    for _ in range(307):
        document = _document(*rng.integers(1, 70, rng.integers(1, 30)).tolist())
        word_starts = rng.random(document[-1]) < 0.5
        word_starts[document[:-1]] = True
        how = {"single_segment": "split", "overflow": "carry", "short_seq_prob": short_seq_prob}
        (pairs,) = _draw([document], [int(rng.integers(1000))], word_starts, **how)
        seen = np.zeros(document[-1], int)
        for pair in pairs:
            assert pair.label == (pair.b_end == pair.a_begin)
            for begin, end in (pair[0:2], pair[2:4]):
                seen[begin:end] += 1
                assert word_starts[begin]
        assert seen.max() < 2
        left_out = np.flatnonzero(seen == 0)
        assert len(left_out) == sum(pair.dropped for pair in pairs) or not pairs
        for run in np.split(left_out, np.flatnonzero(np.diff(left_out) > 1) + 1):
            assert {*run[1:][word_starts[run[1:]]]} <= {*document}


def test_segments_part_at_every_sentence_and_swap_with_the_same_probability():
    drawn = _draw([_document(3, 5, 7, 2, 3)], seeds=range(5003))
    assert_distribution(np.bincount([pair.label for pairs in drawn for pair in pairs]), [1, 1])
    middles = [max(pair.a_begin, pair.b_begin) for pairs in drawn for pair in pairs]
    values, counts = np.unique(middles, return_counts=True)
    assert values.tolist() == [3, 8, 15, 17]
    assert_distribution(counts, [1, 1, 1, 1])


def test_single_sentence_takes_b_from_another_document_with_label_1():
    documents = [_document(13), _document(2, 3, 2, begin=13), _document(7, 5, begin=20)]
    # B has 7 tokens, or goes to its document's end: document and first sentence are drawn.
    shares = {(13, 20): 1 / 6, (15, 20): 1 / 6, (18, 20): 1 / 6, (20, 27): 1 / 4, (27, 32): 1 / 4}
    counts = dict.fromkeys(shares, 0)
    for (pair,) in _draw(documents, seeds=range(2003)):
        assert (pair.a_begin, pair.a_end, pair.label, pair.single) == (0, 13, 1, 1)
        counts[pair.b_begin, pair.b_end] += 1
    assert_distribution(list(counts.values()), list(shares.values()))


def test_a_random_b_fills_up_to_the_target_that_was_drawn():
    documents = [_document(3), _document(*[1] * 1000, begin=3)]
    lengths = [
        pair.b_end - pair.b_begin
        for (pair,) in _draw(documents, seeds=range(2003), short_seq_prob=1.0)
        if pair.b_begin < 980  # Beyond, the document ends too soon.
    ]
    # A has 3 tokens, and the target is one of 2 to 20: 2, 3 and 4 leave room for one.
    assert_distribution(np.bincount(lengths)[1:], [3, *[1] * 16])


def test_only_document_serves_as_its_own_random_document():
    for (pair,) in _draw([_document(13)]):
        assert (pair.label, pair.single) == (1, 1)
        assert pair.a_end - pair.a_begin == pair.b_end - pair.b_begin == 10


def test_single_sentence_is_parted_between_words_and_swapped_half_of_the_time():
    documents = [_document(13), _document(7, 5, begin=13)]
    word_starts = np.zeros(25, bool)
    word_starts[[0, 2, 3, 7, 11, 13, 17]] = True
    borders, labels = [], []
    for (pair,) in _draw(documents, range(5003), word_starts, single_segment="split"):
        assert {pair.a_begin, pair.b_begin} == {0, border := max(pair.a_begin, pair.b_begin)}
        assert {pair.a_end, pair.b_end} == {13, border}
        assert pair.label == (pair.b_begin == 0)
        assert pair.single
        borders.append(border)
        labels.append(pair.label)
    values, counts = np.unique(borders, return_counts=True)
    assert values.tolist() == [2, 3, 7, 11]
    assert_distribution(counts, [1, 1, 1, 1])
    assert_distribution(np.bincount(labels), [1, 1])


def test_single_word_is_left_out_where_it_cannot_be_parted():
    documents = [_document(20, 13), _document(7, 5, begin=33)]
    word_starts = np.zeros(45, bool)
    word_starts[[0, 5, 20, 33]] = True
    for pairs in _draw(documents, word_starts=word_starts, single_segment="split"):
        assert [(min(p.a_begin, p.b_begin), max(p.a_end, p.b_end)) for p in pairs] == [(0, 20)]


def test_a_pass_may_leave_nothing_to_pair():
    """Two sentences of one word each: a pass makes a pair only if it gathers both."""
    document = [0, 2, 4]
    pairs = {"max_seq_length": 11, "short_seq_prob": 0.5, "single_segment": "split"}
    settings = _settings(**pairs, dupe_factor=61, random_seed=7)
    tokens, numbers = np.zeros(4, np.int32), np.zeros(1, np.int64)
    block = examples.TokenBlock(tokens, np.zeros(4, bool), [document], numbers)
    drawn = examples.draw_instances(block, settings)
    assert 0 < len(drawn.pairs) == len(drawn.seeds) < 61
    assert drawn.pairs.shape[1] == 7


def test_random_next_segment_puts_the_unused_sentences_back():
    documents = [_document(5, 5, 5, 5), _document(31, begin=20)]
    shares = []
    for pairs in _draw(documents, seeds=range(1009), random_next_sentence=True):
        position = 0
        for pair in pairs:
            assert pair.a_begin >= position
            is_random = pair.b_begin >= 20
            assert pair.label == is_random
            position = pair.a_end if is_random else pair.b_end
        assert pairs[-1].a_end == 20 or pairs[-1].b_end == 20
        shares.append(pairs[0].label)
    assert_distribution(np.bincount(shares), [1, 1])


def test_one_coin_per_call_sets_the_target_length():
    bounds = _document(*[1] * 600)
    targets = []
    for pairs in _draw([bounds], seeds=range(2003), short_seq_prob=0.5):
        lengths = {pair.a_end - pair.a_begin + pair.b_end - pair.b_begin for pair in pairs[:-1]}
        assert len(lengths) == 1
        targets.append(lengths.pop())
    # Half of the targets are the full 20; the other half are uniform over 2 to 20.
    shares = np.full(19, 0.5 / 19)
    shares[-1] += 0.5
    assert_distribution(np.bincount(targets, minlength=21)[2:], shares)


def test_truncation_takes_tokens_from_the_longer_segment_until_all_fit():
    rng = random.Random(0)
    for most, length_a, length_b in itertools.product((10, 11), range(1, 25), range(1, 25)):
        a, b = (100, 100 + length_a), (200, 200 + length_b)
        a_begin, a_end, b_begin, b_end = _truncate(a, b, most, rng)
        kept = [length_a, length_b]
        while sum(kept) > most:
            kept[kept[0] <= kept[1]] -= 1
        assert [a_end - a_begin, b_end - b_begin] == kept, (most, length_a, length_b)
        assert 100 <= a_begin <= a_end <= 100 + length_a
        assert 200 <= b_begin <= b_end <= 200 + length_b


def test_truncation_takes_each_token_in_front_or_behind_by_a_coin():
    rng = random.Random(1)
    in_front = [_truncate((0, 3), (50, 61), 10, rng)[2] - 50 for _ in range(10_007)]
    assert_distribution(np.bincount(in_front), [1, 4, 6, 4, 1])


COUNT, S, P, K = 211, 43, 7, 5
PAD = 3


@pytest.fixture(scope="module")
def packed_examples() -> dict[str, np.ndarray]:
    """Examples whose values are all different, so that none can stand in for another."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(4 + rng.geometric(0.07, COUNT), S)
    lengths[:3] = 5, S, 5
    kept = np.arange(S) < lengths[:, None]
    predictions = rng.integers(1, np.minimum(P, lengths // 3) + 1)
    filled = np.arange(P) < predictions[:, None]
    drawn = np.array([np.sort(rng.choice(length - 1, P)) + 1 for length in np.maximum(lengths, P)])
    return {
        "input_ids": np.where(kept, 10 + rng.permutation(COUNT * S).reshape(COUNT, S), PAD),
        "input_mask": kept.astype("int32"),
        "segment_ids": (kept & (np.arange(S) > lengths[:, None] // 2)).astype("int32"),
        "token_boundary": (kept & (rng.random((COUNT, S)) < 0.5)).astype("int32"),
        "masked_lm_positions": (drawn % lengths[:, None] * filled).astype("int32"),
        "masked_lm_ids": (10 + rng.permutation(COUNT * P).reshape(COUNT, P)) * filled,
        "masked_lm_weights": filled.astype("float32"),
        "sentence_order_labels": rng.integers(0, 2, COUNT).astype("int32"),
    }


@pytest.fixture(scope="module")
def packed(packed_examples) -> dict[str, np.ndarray]:
    return pack_rows(packed_examples, K, PAD)


def example(features: dict[str, np.ndarray], start: int, end: int, *place: int) -> dict[str, list]:
    """Returns the example at `place` (its row, and its slot if it has one), without padding."""
    row, *_ = place
    positions, filled = features["masked_lm_positions"][row], features["masked_lm_weights"][row] > 0
    inside = np.flatnonzero(filled & (start <= positions) & (positions < end))
    names = ("input_ids", "input_mask", "segment_ids", "token_boundary")
    return {
        **{name: features[name][row, start:end].tolist() for name in names},
        "masked_lm_positions": (positions[inside] - start).tolist(),
        "masked_lm_ids": features["masked_lm_ids"][row, inside].tolist(),
        "label": features["sentence_order_labels"][place],
    }


def test_every_example_is_there_once_and_whole(packed_examples, packed):
    lengths = packed_examples["input_mask"].sum(1)
    expected = [example(packed_examples, 0, length, i) for i, length in enumerate(lengths)]
    found = []
    for row in range(len(packed["input_ids"])):
        slots = np.flatnonzero(packed["sentence_order_weights"][row])
        starts = packed["cls_positions"][row, slots].tolist()
        # An example ends where the next one begins.
        ends = [*starts[1:], packed["input_mask"][row].sum()]
        places = zip(starts, ends, slots, strict=True)
        found += [example(packed, start, end, row, slot) for start, end, slot in places]
    assert len(found) == COUNT
    by_ids = {tuple(each["input_ids"]): each for each in found}
    assert [by_ids[tuple(each["input_ids"])] for each in expected] == expected


def test_rows_are_records_and_what_is_free_is_padding(packed_examples, packed):
    assert len(pretraining_spec(S, P, K).serialize(packed)) == len(packed["input_ids"])
    assert set(np.diff(packed["input_mask"]).ravel()) == {0, -1}
    for kept, names, fill in (
        ("input_mask", ("input_ids",), PAD),
        ("input_mask", ("segment_ids", "token_boundary"), 0),
        ("masked_lm_weights", ("masked_lm_ids", "masked_lm_positions"), 0),
        ("sentence_order_weights", ("cls_positions",), 0),
    ):
        free = packed[kept] == 0
        assert free.any() and all((packed[name][free] == fill).all() for name in names), kept


@pytest.mark.parametrize(
    ("room", "most", "expected"),
    [
        # Longest first into the first row with room for 10 tokens, 3 predictions, 3 examples:
        # 9 opens a row; 6, 5 one each; 4 goes to 6; 3 to 5; 2 to 5 and 3; 1 to 9.
        ((10, 3), 3, [0, 1, 2, 0, 1, 1, 2]),
        # Two examples a row: 2 opens one, where 1 can't go before 9's has it.
        ((10, 3), 2, [0, 1, 2, 0, 3, 1, 2]),
        # Two predictions a row: 6 has them all.
        ((10, 2), 3, [0, 1, 2, 3, 1, 0, 2]),
    ],
)
def test_first_fit_decreasing_by_hand(room, most, expected):
    lengths, predictions = np.array([[4, 3, 9, 6, 2, 5, 1], [1, 1, 1, 2, 1, 1, 1]])
    assert assign_rows(lengths, predictions, room, most).tolist() == expected


def test_rows_come_in_the_order_of_their_first_examples(packed_examples, packed):
    number = {ids[0]: i for i, ids in enumerate(packed_examples["input_ids"].tolist())}
    names = ("input_ids", "cls_positions", "sentence_order_weights")
    members = [
        [number[ids[start]] for start in starts[weights > 0]]
        for ids, starts, weights in zip(*(packed[name] for name in names), strict=True)
    ]
    assert all(row == sorted(row) for row in members)
    assert [row[0] for row in members] == sorted(row[0] for row in members)
    assert max(map(len, members)) == K
