"""The order of examples, and masks drawn on the fly: functions of seed and place on all hosts.

How well the order mixes: tests/generator/test_create_records.py. The distribution of masks:
tests/generator/test_release_statistics.py. Not tested here: files in a bucket, another machine.
"""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records import input_files, input_pipeline, masking, spec
from albert_tf.records.input_files import untuned
from albert_tf.records.spec import pretraining_spec
from tests.kit import pretraining_runs as runs
from tests.kit import tiny

SPEC = pretraining_spec(runs.LENGTH, runs.PREDICTIONS)
# Examples by file, 29 in all. Example i has i as its second piece, which identifies it.
COUNTS = (13, 5, 11)


def write(folder, examples) -> list[str]:
    """Writes examples into files by COUNTS."""
    ends = np.cumsum(COUNTS)
    return [
        str(runs.write_records(folder / f"{i}.tfrecord", examples[end - count : end]))
        for i, (count, end) in enumerate(zip(COUNTS, ends, strict=True))
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    rows = runs.examples(sum(COUNTS))
    for i, row in enumerate(rows):
        row["input_ids"][1] = i
    return write(tmp_path_factory.mktemp("records"), rows)


def draw(
    files, steps, *, spec=SPEC, finish=None, hosts=1, replicas=1, seed=7, first=0, size=6
) -> list[dict[str, np.ndarray]]:
    parts: list[list[dict]] = [[] for _ in range(steps)]
    for host in range(hosts):
        context = tf.distribute.InputContext(hosts, host, replicas)
        indexes = input_files.index_records(files)
        given = (files, indexes, spec, size, seed, first, context, finish)
        dataset = input_pipeline.training_dataset(*given)
        dataset = untuned(dataset.take(steps * replicas // hosts))
        for i, batch in enumerate(dataset.as_numpy_iterator()):
            assert batch["input_ids"].shape == (size // replicas, runs.LENGTH)
            assert batch["sentence_order_labels"].shape == (size // replicas,)
            parts[i * hosts // replicas].append(batch)
    return [
        {name: np.concatenate([part[name] for part in step]) for name in step[0]} for step in parts
    ]


def batches(files, steps, **how) -> list[list[int]]:
    return [batch["input_ids"][:, 1].tolist() for batch in draw(files, steps, **how)]


@pytest.fixture(scope="module")
def order(files) -> list[list[int]]:
    return batches(files, 31)


def test_an_epoch_has_every_example_once(order):
    flat = np.concatenate(order)[: 6 * 29].reshape(6, 29)
    np.testing.assert_array_equal(np.sort(flat), np.tile(np.arange(29), (6, 1)))


def test_epochs_and_seeds_differ(files, order):
    flat = [number for step in order for number in step]
    assert flat[:29] != sorted(flat[:29])
    assert flat[:29] != flat[29:58]
    others = [batches(files, 5, seed=seed) for seed in (0, 8)]
    assert order[:5] not in others and others[0] != others[1]
    tf.random.set_seed(1234)  # TensorFlow's global seed makes no difference.
    assert batches(files, 5) == order[:5]


def test_each_epoch_shuffles_a_single_stretch_anew(files):
    first, second = batches(files[:1], 2, size=COUNTS[0])
    assert sorted(first) == sorted(second) and first != second


@pytest.mark.parametrize("seed", [2**31 - 1, 2 * (2**31 - 1), 2**32 - 1])
def test_seeds_that_tensorflow_takes_for_0(files, order, seed):
    flat = [number for step in batches(files, 5, seed=seed) for number in step]
    assert sorted(flat[:29]) == list(range(29)) and flat[:29] != sum(order, [])[:29]


@pytest.mark.parametrize(("hosts", "replicas"), [(1, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize(("max_steps", "expected"), [(100, 29), (3, 18)])
def test_evaluation_sees_each_example_once_in_order(files, hosts, replicas, max_steps, expected):
    steps = collections.defaultdict(list)
    for host in range(hosts):
        context = tf.distribute.InputContext(hosts, host, replicas)
        dataset = input_pipeline.evaluation_dataset(files, COUNTS, SPEC, 6, max_steps, context)
        for i, batch in enumerate(dataset):
            assert batch["input_ids"].shape == (6 // replicas, runs.LENGTH)
            real = batch["example_weights"].numpy() == 1.0
            assert np.all(batch["example_weights"][~real] == 0.0)
            steps[i // (replicas // hosts)] += batch["input_ids"][:, 1].numpy()[real].tolist()
    assert sum((steps[step] for step in sorted(steps)), []) == list(range(expected))


@pytest.mark.parametrize("count", [1, 2, 3, 17, 10_000])
def test_stretches_are_dealt_once_and_evenly(count):
    orders = [input_pipeline._deal(count, 7, tf.constant(epoch)).numpy() for epoch in (0, 1)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(count))
        # A hundred hands of a hundred: each tenth of the order has about ten examples of each hand.
        for part in np.array_split(order, 10) if count > 1000 else ():
            shares = np.bincount(part // 100, minlength=100)[:100]
            assert shares.min() >= 8 and shares.max() <= 12
    if count > 3:
        assert (orders[0] != orders[1]).any()


def test_files_in_a_bucket_are_read_in_long_stretches(monkeypatch):
    monkeypatch.setattr(input_pipeline, "_BUCKET_BYTES", 10_000)
    # 5 stretches of 4,000 bytes, two of which are read together; the last has one record.
    index = input_files.FileIndex(129, np.arange(6) * 4000)
    local, remote = (
        input_pipeline._stretches([path], [index]) for path in ("a.tfrecord", "gs://b/a.tfrecord")
    )
    assert local.tolist() == [[0, 4000 * i, 4000, 32 if i < 4 else 1] for i in range(5)]
    assert remote.tolist() == [[0, 0, 8000, 64], [0, 8000, 8000, 64], [0, 16000, 4000, 1]]


FORMAT = spec.RowFormat(runs.LENGTH, tiny.CONFIG["vocab_size"], 0, 2, 3, 4)
SETTINGS = masking.MaskingSettings(
    FORMAT.vocab_size, FORMAT.mask_id, masked_lm_prob=0.2, max_predictions_per_seq=runs.PREDICTIONS
)
COMPACT_SPEC = spec.compact_spec()
NAMES = set(spec.pretraining_spec(1, 1).features) - {"token_boundary"}


@pytest.fixture(scope="module")
def examples() -> list[dict[str, np.ndarray]]:
    return runs.compact_examples(sum(COUNTS))


@pytest.fixture(scope="module")
def compact_files(examples, tmp_path_factory) -> list[str]:
    return write(tmp_path_factory.mktemp("records"), examples)


def drawn(compact_files, steps: int, seed=7, **how) -> list[dict[str, np.ndarray]]:
    """Returns features with masks that are drawn on the fly, in one order of examples."""
    finish = input_pipeline.DynamicMasking(FORMAT, SETTINGS, seed)
    return draw(compact_files, steps, spec=COMPACT_SPEC, finish=finish, **how)


@pytest.fixture(scope="module", params=["stored", "drawn"])
def masked(request, files, compact_files):
    """Returns a function that draws batches of stored or freshly drawn masks; and 31 batches."""
    how = (draw, files) if request.param == "stored" else (drawn, compact_files)
    some = functools.partial(*how)
    return some, some(31)


def assert_same(actual: list[dict], expected: list[dict]) -> None:
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.keys() == theirs.keys() == NAMES
        for name, values in theirs.items():
            np.testing.assert_array_equal(mine[name], values, err_msg=name)


def original(batch: dict[str, np.ndarray]) -> np.ndarray:
    ids = batch["input_ids"].copy()
    at, slots = np.nonzero(batch["masked_lm_weights"])
    ids[at, batch["masked_lm_positions"][at, slots]] = batch["masked_lm_ids"][at, slots]
    return ids


def test_masks_are_those_of_the_rows_eagerly_and_in_a_dataset(examples):
    finish = input_pipeline.DynamicMasking(FORMAT, SETTINGS, seed=3)
    places = np.arange(100, 100 + len(examples))
    serialized = tf.constant(runs.serialized(examples, COMPACT_SPEC))
    eager = finish(COMPACT_SPEC.parse(serialized), tf.constant(places))
    dataset = tf.data.Dataset.from_tensors((serialized, places))
    mapped = next(iter(untuned(dataset.map(lambda s, p: finish(COMPACT_SPEC.parse(s), p)))))
    for row, example in enumerate(examples):
        parts = (example[n][None] for n in ("token_ids", "segment_lengths", "word_starts"))
        seed = masking.derive_seeds(3, places[row : row + 1])
        expected = masking.Rows.lay_out(*parts, FORMAT).mask(seed, SETTINGS)
        expected["sentence_order_labels"] = example["sentence_order_labels"][None]
        for features in (eager, mapped):
            assert features.keys() == expected.keys() == NAMES
            for name, values in expected.items():
                assert features[name].dtype == values.dtype
                np.testing.assert_array_equal(features[name][row], values[0], err_msg=name)


def test_static_shapes_are_known_before_a_batch_is_drawn(compact_files):
    finish = input_pipeline.DynamicMasking(FORMAT, SETTINGS, 3)
    context = tf.distribute.InputContext(1, 0, 2)
    indexes = input_files.index_records(compact_files)
    given = (compact_files, indexes, COMPACT_SPEC, 6, 7, 0, context, finish)
    dataset = input_pipeline.training_dataset(*given)
    for name, feature in spec.pretraining_spec(runs.LENGTH, runs.PREDICTIONS).features.items():
        if name in NAMES:
            assert dataset.element_spec[name] == tf.TensorSpec((3, *feature.shape), feature.dtype)


def test_each_epoch_has_every_example_once_with_other_masks(compact_files, examples):
    straight = drawn(compact_files, 11)  # More than two epochs.
    before = np.concatenate([original(batch) for batch in straight])
    after = np.concatenate([batch["input_ids"] for batch in straight])
    count = len(examples)
    first, second = (
        epoch[np.lexsort(before[epoch].T)] for epoch in np.arange(2 * count).reshape(2, count)
    )
    np.testing.assert_array_equal(before[first], before[second])
    texts = {tuple(row[(row > 4)].tolist()) for row in before[first]}
    assert len(texts) == count
    assert texts == {tuple(example["token_ids"].tolist()) for example in examples}
    same = (after[first] == after[second]).all(1)
    # A short row has one masked piece: it may be the same one by chance, or keep its id.
    assert same.sum() < len(examples) / 4


@pytest.mark.parametrize("first", [1, 4, 29])
def test_a_later_start_finds_the_same_order_and_masks(masked, first):
    """At steps within an epoch, across its end, and several epochs later."""
    some, whole = masked
    assert_same(some(2, first=first), whole[first : first + 2])


@pytest.mark.parametrize(("hosts", "replicas"), [(1, 2), (3, 3), (2, 6)])
def test_hosts_and_replicas_share_one_order_and_its_masks(masked, hosts, replicas):
    some, whole = masked
    assert_same(some(7, hosts=hosts, replicas=replicas), whole[:7])


def test_an_evaluation_draws_the_same_masks_again_however_it_is_split(compact_files):
    finish = input_pipeline.DynamicMasking(FORMAT, SETTINGS, -1)

    def evaluated(size: int) -> dict[str, np.ndarray]:
        given = compact_files, COUNTS, COMPACT_SPEC, size, 100, tf.distribute.InputContext()
        dataset = input_pipeline.evaluation_dataset(*given, finish)
        batches = list(untuned(dataset).as_numpy_iterator())
        whole = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
        real = whole.pop("example_weights") == 1
        return {name: values[real] for name, values in whole.items()}

    first = evaluated(6)
    assert len(first["input_ids"]) == sum(COUNTS)
    assert_same([evaluated(6), evaluated(10)], [first, first])
