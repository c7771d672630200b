"""Features of a set of examples: as a table, and in the cache."""

import functools
import hashlib
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.answers.rows import pad_features
from albert_tf.records.input_files import untuned
from albert_tf.tasks import feature_table
from albert_tf.tasks.conll import TokenExample
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.glue import TextExample
from albert_tf.tasks.race import ChoiceExample
from albert_tf.tasks.squad_text import Answer, SquadExample
from albert_tf.training import length_buckets
from tests.kit import tiny

LENGTHS = (11, 17, 23)
COUNT = 29
ONE_REPLICA = tf.distribute.InputContext(1, 0, 1)


def rows(choices: int | None = None) -> list[dict[str, np.ndarray]]:
    """Returns rows of 2 to 23 positions; with `choices`, each has that many sequences."""
    rng = np.random.default_rng(7)
    found = []
    for i in range(COUNT):
        shape = (int(rng.integers(2, 24)),)
        shape = shape if choices is None else (choices, *shape)
        row = {"input_ids": rng.integers(1, 53, shape), "p_mask": rng.integers(0, 2, shape)}
        row = {name: values.astype(np.int32) for name, values in row.items()}
        found.append({**row, "label_ids": np.int32(i), "score": np.float32(i / 7)})
    return found


def assert_batch(batch: dict, examples: list[dict], chosen: np.ndarray, length: int) -> None:
    for name in examples[0]:
        if examples[0][name].ndim:
            padded = [pad_features({name: examples[row][name]}, length)[name] for row in chosen]
        else:
            padded = [examples[row][name] for row in chosen]
        np.testing.assert_array_equal(batch[name], padded)
        assert batch[name].dtype == examples[0][name].dtype


@pytest.mark.parametrize("static_shapes", [True, False])
@pytest.mark.parametrize("choices", [None, 3])
def test_training_batches_hold_the_rows_of_their_steps(choices, static_shapes, monkeypatch):
    """Without static shapes, batches of 11 and 17 positions come from one dataset."""
    monkeypatch.setattr(feature_table, "SHORT_POSITIONS", 6 * 17 * (choices or 1))
    examples = rows(choices)
    table = FeatureTable.from_rows(examples)
    plan = length_buckets.training_batches(table.lengths, 6, LENGTHS, 1, 21)
    assert set(plan.lengths.tolist()) == set(LENGTHS)
    source = table.training_input(plan, 4, static_shapes)
    datasets = {length: make(ONE_REPLICA) for length, make in source.input_fns.items()}
    assert set(datasets) == (set(LENGTHS) if static_shapes else {23, feature_table.ANY_LENGTH})
    for length, dataset in datasets.items():
        inner = () if choices is None else (choices,)
        shape = dataset.element_spec["input_ids"].shape.as_list()
        assert shape == [6, *inner, length or None]
    iterators = {length: iter(untuned(dataset)) for length, dataset in datasets.items()}
    for step in range(4, 21):
        batch = next(iterators[int(source.lengths[step])])
        assert_batch(batch, examples, plan.rows[step], int(plan.lengths[step]))
    assert all(next(iterator, None) is None for iterator in iterators.values())


def test_evaluation_batches_tell_rows_and_weights():
    examples = rows()
    table = FeatureTable.from_rows(examples)
    plan = length_buckets.evaluation_batches(table.lengths, 6, LENGTHS)
    seen, step = [], 0
    for make in table.evaluation_inputs(plan):
        for batch in make(ONE_REPLICA):
            chosen, weights = batch.pop("example_rows").numpy(), batch.pop("example_weights")
            np.testing.assert_array_equal(chosen, plan.rows[step])
            np.testing.assert_array_equal(weights, plan.weights[step])
            assert_batch(batch, examples, chosen, int(plan.lengths[step]))
            seen += chosen[weights == 1].tolist()
            step += 1
    assert step == len(plan.lengths) and sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("static_shapes", [True, False])
def test_hosts_and_replicas_share_each_batch_in_order(static_shapes):
    """Two hosts with two replicas each: the parts of a step, put together, are its batch."""
    table = FeatureTable.from_rows(rows())
    plan = length_buckets.training_batches(table.lengths, 12, LENGTHS, 1, 8)
    source = table.training_input(plan, 0, static_shapes)
    hosts = [tf.distribute.InputContext(2, host, 4) for host in range(2)]
    for length, make in source.input_fns.items():
        batches = [list(make(host)) for host in hosts]
        labels = [[batch["label_ids"].numpy() for batch in host] for host in batches]
        steps = np.flatnonzero(source.lengths == length)
        assert [len(batches) for batches in labels] == [2 * len(steps)] * 2
        for i, step in enumerate(steps):
            parts = [part for host in labels for part in host[2 * i : 2 * i + 2]]
            assert {len(part) for part in parts} == {3}
            np.testing.assert_array_equal(np.concatenate(parts), plan.rows[step])
            of_step = [batch for host in batches for batch in host[2 * i : 2 * i + 2]]
            assert {batch["input_ids"].shape[1] for batch in of_step} == {plan.lengths[step]}


EXAMPLES = [TextExample("1", "a cat", None, 1), TextExample("2", "a dog", "b", 0)]
SETTINGS = {"max_seq_length": 7, "tokenizer": "abc"}


class Maker:
    """Makes a row of three choices for each example, of unequal lengths; counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, examples):
        self.count += 1
        for i, example in enumerate(examples, start=2):
            ids = np.arange(3 * i, dtype=np.int32).reshape(3, i)
            yield {"input_ids": ids, "label_ids": np.float32(example.label / 3)}


def load(tmp_path, make, examples=EXAMPLES, **changes):
    stem = str(tmp_path / "folder/rte_train")
    return feature_table.load_or_make_features(examples, make, {**SETTINGS, **changes}, stem)


def test_what_is_read_is_what_was_made(tmp_path):
    make = Maker()
    first, second = load(tmp_path, make), load(tmp_path, make)
    assert make.count == 1
    for table in (first, second):
        np.testing.assert_array_equal(table.lengths, [2, 3])
        np.testing.assert_array_equal(table.scalars["label_ids"], np.float32([1 / 3, 0]))
        ids = table.sequences["input_ids"]
        assert ids.dtype == np.int32
        np.testing.assert_array_equal(ids.T, [[0, 1, 0, 1, 2], [2, 3, 3, 4, 5], [4, 5, 6, 7, 8]])


@pytest.mark.parametrize(
    "change",
    [
        {"max_seq_length": 8},
        {"tokenizer": "abd"},
        {"examples": EXAMPLES[:1]},
        {"examples": EXAMPLES[::-1]},
        {"examples": [EXAMPLES[0], TextExample("2", "a dog", "b", 1)]},
        {"examples": [EXAMPLES[0], TextExample("2", "a dog", "c", 0)]},
    ],
    ids=["length", "vocabulary", "fewer", "order", "label", "text"],
)
def test_another_shape_of_features_is_another_file(tmp_path, change):
    make = Maker()
    load(tmp_path, make)
    load(tmp_path, make, **change)
    assert make.count == 2
    load(tmp_path, make)
    assert make.count == 2
    assert len(list((tmp_path / "folder").iterdir())) == 2


def test_a_killed_process_leaves_no_file_to_read(tmp_path, monkeypatch):
    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.replace", killed)
        load(tmp_path, Maker())
    assert not list((tmp_path / "folder").glob("*.npz"))
    make = Maker()
    load(tmp_path, make)
    assert make.count == 1


@pytest.mark.parametrize("damage", ["empty", "half", "another file"])
def test_a_damaged_file_is_made_again(tmp_path, damage, caplog):
    make = Maker()
    load(tmp_path, make)
    (path,) = (tmp_path / "folder").iterdir()
    whole = path.read_bytes()
    contents = {"empty": b"", "half": whole[: len(whole) // 2], "another file": b"\x93NUMPY"}
    path.write_bytes(contents[damage])
    np.testing.assert_array_equal(load(tmp_path, make).lengths, [2, 3])
    assert make.count == 2 and "it is written again" in caplog.text
    assert path.read_bytes() == whole


def test_examples_without_any_row_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="none of 2 examples yields any features"):
        load(tmp_path, lambda examples: iter(()))
    assert not (tmp_path / "folder").exists()


LONG = "the cat sat on the mat. " * 6
WINDOWS = {"windows": "max", "doc_stride": 4}
SPANS = {"doc_stride": 5, "max_query_length": 6, "max_seq_length": 24}
LINEAR = {**SPANS, "span_head": "linear"}
ANSWERED = SquadExample("q", "Who sat?", LONG, (Answer("mat", 19),), False)
WORDS = ("In", "\x01", "London", "unaffable-x1990,") * 4
TEXT = TextExample("1", LONG, None, 1)
SEVERAL = TextExample("1", LONG, None, (0, 2))
CHOICES = ChoiceExample("1", LONG, ("a", "", LONG, "b"), 2)
SENTENCE = TokenExample("1", WORDS, (0, 0, 1, 0) * 4)
# Task, settings, classes and example; and the digests of its cached file's name and content.
CACHED = [
    ("cola", {}, None, TEXT, "38ddbb967598e168 4c3417a7d760b7d9"),
    ("mrpc", {}, None, TextExample("1", LONG, LONG, 1), "c04dc0dad5d9be41 aafa44365048842a"),
    ("sts-b", {}, None, TextExample("1", LONG, "a cat", 2.5), "2a32b00a47139b22 786047345316514f"),
    ("classification", WINDOWS, "ab", TEXT, "e12e7bcbb0d596e5 2ade0fd4d862e0b4"),
    ("multilabel", {"windows": "mean"}, "abc", SEVERAL, "a179db96ae467a00 ffb5f901594fc705"),
    ("race", {"max_qa_length": 5}, None, CHOICES, "dc79e45307490830 50edb7a220a7e9a1"),
    ("token_classification", {}, ("O", "B-a"), SENTENCE, "f35be8399ce5d8f9 86c8b4edd6c4a98f"),
    ("squad_v1", SPANS, None, ANSWERED, "52ba840855ee8a6f cd0c54c3dd250576"),
    ("squad_v2", SPANS, None, ANSWERED, "52ba840855ee8a6f cd0c54c3dd250576"),
    ("squad_v2", LINEAR, None, ANSWERED, "52ba840855ee8a6f cd0c54c3dd250576"),
]


@pytest.mark.parametrize(("name", "given", "classes", "example", "digests"), CACHED)
def test_cached_files_stay(name, given, classes, example, digests, tokenizer, tmp_path):
    """Otherwise resumed runs would make features again, or read wrong ones: then raise FORMAT."""
    task = tiny.task(name, tokenizer, classes, **{"max_seq_length": 12, **given})
    settings = {**task.settings, "is_training": True}
    make = functools.partial(task.rows, is_training=True)
    feature_table.load_or_make_features([example], make, settings, str(tmp_path / "f"))
    (path,) = tmp_path.iterdir()
    found = hashlib.sha256()
    with zipfile.ZipFile(path) as stored:
        for column in stored.namelist():
            found.update(column.encode() + stored.read(column))
    assert f"{path.stem} {found.hexdigest()[:16]}" == f"f-{digests}"
