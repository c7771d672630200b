"""Plans of batches: every row once, as little padding as possible, determined by the seed alone."""

import itertools

import numpy as np
import pytest

from albert_tf.config import AlbertConfig
from albert_tf.training import length_buckets
from tests.kit.statistics_of_samples import assert_distribution

LENGTHS = (8, 16, 24, 47)


def row_lengths(count: int, seed: int = 3) -> np.ndarray:
    return np.minimum(3 + np.random.default_rng(seed).geometric(0.1, count), 47)


def training(lengths: np.ndarray, steps: int, batch_size: int = 7, seed: int = 5):
    return length_buckets.training_batches(lengths, batch_size, LENGTHS, seed, steps)


def test_every_row_is_there_once_an_epoch():
    """Except for rows left over from whole batches, which differ from epoch to epoch."""
    plan = training(row_lengths(1000), 3 * 142)
    assert plan.rows.shape == (426, 7) and np.all(plan.weights == 1)
    epochs = plan.rows.reshape(3, -1)
    assert [len(set(epoch)) for epoch in epochs] == [994] * 3
    dropped = [set(range(1000)) - set(epoch) for epoch in epochs]
    assert len(set.union(*dropped)) >= 16
    assert not np.array_equal(epochs[0], epochs[1])


def test_each_batch_is_as_long_as_its_longest_row_needs():
    lengths = row_lengths(1000)
    plan = training(lengths, 142)
    fitting = np.searchsorted(LENGTHS, lengths[plan.rows])
    assert plan.lengths.tolist() == np.array(LENGTHS)[fitting.max(axis=1)].tolist()
    # At most one batch mixes each two neighbours of the four lengths.
    assert np.sum(np.ptp(fitting, axis=1) > 0) <= 3
    assert set(plan.lengths) == set(LENGTHS)


def test_a_plan_depends_on_its_seed_alone_and_goes_on_where_a_shorter_one_stops():
    lengths = row_lengths(500)
    plan, short = training(lengths, 150), training(lengths, 97)
    np.testing.assert_array_equal(plan.rows, training(lengths, 150).rows)
    np.testing.assert_array_equal(plan.rows[:97], short.rows)
    np.testing.assert_array_equal(plan.lengths[:97], short.lengths)
    assert not np.array_equal(plan.rows, training(lengths, 150, seed=6).rows)


def test_the_turn_of_a_row_is_random():
    """Among ten batches an epoch, over 300 epochs: for the longest row, the shortest and another.

    Not tested here: that rows of one length share batches, which is the point of a plan.
    """
    lengths = row_lengths(100)
    plan = training(lengths, 300 * 10, batch_size=10)
    for row in (0, int(np.argmax(lengths)), int(np.argmin(lengths))):
        steps = np.flatnonzero(np.any(plan.rows == row, axis=1))
        assert len(steps) == 300
        assert_distribution(np.bincount(steps % 10, minlength=10), np.ones(10))


def test_evaluation_sees_all_rows_and_fills_up_the_last_batch():
    lengths = row_lengths(23)
    plan = length_buckets.evaluation_batches(lengths, 7, LENGTHS)
    assert plan.rows.shape == plan.weights.shape == (4, 7)
    assert sorted(plan.rows[plan.weights == 1].tolist()) == list(range(23))
    assert np.flatnonzero(plan.weights.ravel() == 0).tolist() == [23, 24, 25, 26, 27]
    assert np.all(np.diff(plan.lengths) <= 0)
    longest = lengths[plan.rows].max(axis=1)
    assert np.all(plan.lengths >= longest)


def test_the_lengths_chosen_have_least_padding():
    """Less than with any other set of as many occurring lengths, all of which are tried."""
    cases = ([5, 5, 5], (5,)), ([17, 3], (3, 17)), ([20], (20,)), ([3, 4, 9], (4, 9))
    for lengths, few in cases:  # No longer than needed or allowed.
        assert length_buckets.choose_static_lengths(np.array(lengths), 20, 2) == few
    for seed, count in itertools.product(range(3), (1, 2, 3, 9)):
        lengths = 5 * np.minimum(row_lengths(200, seed) // 5, 9)
        chosen = length_buckets.choose_static_lengths(lengths, 45, count)
        assert len(chosen) <= count and chosen[-1] >= lengths.max()

        def positions(allowed, lengths=lengths):
            return np.sum(np.asarray(allowed)[np.searchsorted(allowed, lengths)])

        chosen_from = (itertools.combinations(range(0, 45, 5), size) for size in range(count))
        least = min(positions((*some, 45)) for some in itertools.chain(*chosen_from))
        assert positions(chosen) == least, (seed, count)


def test_a_length_spares_more_than_its_price():
    """Padding and price have the least sum; if lengths cost nothing, all allowed ones are used."""
    rows = np.minimum(row_lengths(200, 5), 45)
    numbers = []
    for price in (0, 10, 100, 1000):
        costs = {}
        for count in range(1, 7):
            allowed = np.array(length_buckets.choose_static_lengths(rows, 45, count))
            costs[count] = allowed[np.searchsorted(allowed, rows)].sum() + price * count
        chosen = length_buckets.choose_static_lengths(rows, 45, price=price)
        cheapest = min(costs, key=lambda count: (costs[count], -count))
        assert chosen == length_buckets.choose_static_lengths(rows, 45, cheapest), price
        numbers.append(len(chosen))
    assert numbers[0] == 6 > numbers[-1] and numbers == sorted(numbers, reverse=True), numbers


def test_the_price_of_a_length_is_measured():
    """ALBERT-base's positions in 26 s on an H100, and in 8 s on two cores: performance.md."""
    base = AlbertConfig.from_json_file("configs/albert_base_v2.json")
    price = length_buckets.compile_price
    assert price(base, on_cpu=False) == pytest.approx(26 * 610_000, rel=0.1)
    assert price(base, on_cpu=True) == pytest.approx(8 * 500, rel=0.2)


def test_lengths_on_gpus_and_tpus_are_multiples_of_8():
    """For GLUE's tables, for random ones, and if the longest length is not a multiple."""
    rows = np.array([7, 8, 9, 24, 81])
    for longest, expected in ((128, (8, 16, 24, 88)), (83, (8, 16, 24, 83))):
        found = length_buckets.choose_static_lengths(rows, longest, on_cpu=False)
        assert found == expected
    for seed in range(5):
        lengths = np.minimum(row_lengths(200, seed), 512)
        found = length_buckets.choose_static_lengths(lengths, 512, on_cpu=False)
        assert not any(length % 8 for length in found) and found[-1] >= lengths.max()


def test_too_few_rows_and_too_long_ones_are_errors():
    with pytest.raises(ValueError, match="6 training examples are fewer than a batch of 7: lower"):
        training(row_lengths(6), 1)
    with pytest.raises(IndexError, match="out of bounds"):
        training(np.full(9, 48), 1)
