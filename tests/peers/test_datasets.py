"""Hugging Face's datasets: a Dataset and its file give the classes that it names."""

import numpy as np
import pytest

import albert_tf
from albert_tf.tasks import table
from albert_tf.text.vocabulary import Vocabulary

pytestmark = pytest.mark.peers
TEXTS, NAMES = ["good film", "bad", "film", "bad bad film"], ["poor", "fine"]


@pytest.fixture(scope="module")
def datasets():
    found = pytest.importorskip("datasets", reason="make test-peers installs it and runs this")
    found.disable_progress_bars()
    return found


@pytest.fixture
def stored(datasets):
    label = datasets.ClassLabel(names=NAMES)
    features = {"text": datasets.Value("string"), "label": label, "n": datasets.Value("int32")}
    columns = {"text": TEXTS, "label": [1, 0, 1, 0], "n": [7, 8, 9, 10]}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.fixture
def vocabulary(tmp_path):
    words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad\nfilm"
    (tmp_path / "vocab.txt").write_text(words)
    return Vocabulary.read(str(tmp_path / "vocab.txt"), is_word_piece=True)


def only_batch(preprocess, dataset):
    (batch,) = preprocess.dataset(dataset, batch_size=8, shuffle=False)
    return batch


@pytest.mark.parametrize("names", [(), NAMES, NAMES[::-1]])
def test_ids_stand_for_the_names_of_classes(names, stored, vocabulary):
    preprocess = albert_tf.Preprocessor(vocabulary, 8, names)
    expected = [0, 1, 0, 1] if names == NAMES[::-1] else [1, 0, 1, 0]
    for dataset in (stored, stored.with_format("numpy"), stored.to_iterable_dataset()):
        features, labels = only_batch(preprocess, dataset)
        assert labels.numpy().tolist() == expected
        np.testing.assert_array_equal(features["input_ids"], preprocess(TEXTS)["input_ids"])


def test_lists_of_ids_are_several_labels(datasets, stored, vocabulary):
    feature = datasets.Sequence(datasets.ClassLabel(names=NAMES))
    dataset = stored.remove_columns("label").add_column("label", [[0], [], [0, 1], [1]])
    dataset = dataset.cast_column("label", feature)
    _, labels = only_batch(albert_tf.Preprocessor(vocabulary, 8), dataset)
    assert labels.numpy().tolist() == [[1, 0], [0, 0], [1, 1], [0, 1]]
    # Lists may also hold 0 or 1 for each class, by position.
    dataset = dataset.remove_columns("label").add_column("label", [[0, 0], [0, 1], [1, 1], [1, 0]])
    dataset = dataset.cast_column("label", feature)
    for names, step in ((), 1), (NAMES[::-1], -1):
        _, labels = only_batch(albert_tf.Preprocessor(vocabulary, 8, names), dataset)
        assert labels.numpy()[:, ::step].tolist() == [[0, 0], [0, 1], [1, 1], [1, 0]]


def test_minus_one_is_no_label(datasets, stored, vocabulary):
    preprocess = albert_tf.Preprocessor(vocabulary, 8, NAMES)
    unlabelled = stored.map(lambda row: {"label": -1})
    assert len(only_batch(preprocess, unlabelled)) == 1
    with pytest.raises(ValueError, match="label '-1' is not one of `labels`"):
        only_batch(preprocess, datasets.concatenate_datasets([stored, unlabelled]))
    with pytest.raises(ValueError, match="expected a column 'text', got 'train'"):
        only_batch(preprocess, datasets.DatasetDict(train=stored))


def test_their_map_takes_a_preprocessor(stored, vocabulary):
    preprocess = albert_tf.Preprocessor(vocabulary, 8)
    expected = preprocess(TEXTS, pad_to=8)["input_ids"].tolist()
    assert list(stored.map(preprocess)["input_ids"]) == expected
    whole = stored.map(lambda rows: preprocess(rows, pad_to=8), batched=True, batch_size=3)
    assert list(whole["input_ids"]) == expected


def test_their_parquet_file_names_the_classes(stored, tmp_path):
    stored.to_parquet(tmp_path / "train.parquet")
    path, columns = str(tmp_path / "train.parquet"), table.TableSettings()
    assert table.find_labels(path, columns) == tuple(NAMES)
    assert [each.label for each in table.read_texts(path, columns, NAMES)] == [1, 0, 1, 0]
