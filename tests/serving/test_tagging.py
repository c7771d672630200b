"""Tags of many raw texts: graph, NumPy and evaluation agree, and entities are seqeval's."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from seqeval.metrics.sequence_labeling import get_entities

from albert_tf.answers.tag import Tag, are_entities
from albert_tf.serving import predict
from albert_tf.serving.graphs.text import WordSplitter
from albert_tf.tasks.conll import TokenExample
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.token_classification import TokenClassificationTask
from albert_tf.text.word_splitting import split_words
from tests.kit.served_tasks import assert_same_outputs, in_tensorflow, make
from tests.serving import test_graph_tokenizer

pytestmark = pytest.mark.usefixtures("eager")  # SavedModels of test_formats.py have graphs.
NUM_TEXTS = 2000
BIOES = ("B-LOC", "E-LOC", "E-PER", "I-LOC", "O", "S-PER", "I-PER")
BIO = ("O", "B-LOC", "B-PER", "I-LOC", "I-PER", "I-ORG", "B-ORG")
PLAIN = ("low", "cap", "cap.", "low.", "all", "x", "y")


@functools.cache
def texts(count):
    """Strings that the tokenizer is tested on, too, most of them longer than a window."""
    generated = test_graph_tokenizer.generated_strings(count)
    return [*generated, "", "  ", "'s", "\x01 \x02", " ".join(generated[:97])]


TABLE = np.random.default_rng(5).normal(size=(10_007, len(BIO))).astype(np.float32)


def places(ids, positions):
    """Returns rows of TABLE that differ by the piece and by its position in its window."""
    return (31 * ids + positions) % len(TABLE)


def of_evaluation(kind, vocabulary, sentences):
    """Returns each text's (text, type or tag, start, end), by the training's code and seqeval."""
    cuts = [split_words(text) for text in sentences]
    words = [[text[a:b] for a, b in each] for text, each in zip(sentences, cuts, strict=True)]
    examples = [TokenExample(str(i), tuple(each), None) for i, each in enumerate(words)]
    task = TokenClassificationTask(kind, None, vocabulary.tokenizer, kind.labels)
    rows = list(task.rows(examples, is_training=False))
    features = FeatureTable.from_rows(rows)
    logits = [TABLE[places(row["input_ids"], np.arange(len(row["input_ids"])))] for row in rows]
    parts = [(np.array([i]), values[None]) for i, values in enumerate(logits)]
    predictions = task.predictions(examples, features, task.collect(features, parts))
    found = []
    for text, each, names in zip(sentences, cuts, task._tags(examples, predictions), strict=True):
        spans = ((name, i, i) for i, name in enumerate(names))
        if are_entities(kind.labels):
            spans = get_entities(names)
        ends = ((type_, each[i][0], each[j][1]) for type_, i, j in spans)
        found.append([(text[a:b], type_, a, b) for type_, a, b in ends])
    return found


SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in ((BIOES, 300), (PLAIN, 300))]
COUNTS = [(BIO, NUM_TEXTS), *SLOW]


@pytest.mark.parametrize(("labels", "count"), COUNTS, ids=["BIO", "BIOES", "plain"])
def test_many_texts(labels, count, vocabulary, tmp_path):
    if labels is not BIO:
        vocabulary = test_graph_tokenizer.word_piece_vocabulary(tmp_path, True)
    kind, sentences = Tag(labels=labels, max_seq_length=9), texts(count)
    served = make(kind, vocabulary)
    served.apply = lambda features: tf.gather(
        TABLE, places(features["input_ids"], tf.range(tf.shape(features["input_ids"])[1]))
    )
    inputs = [[text] for text in sentences]
    found = predict.from_model(served).outputs(inputs)
    names = (*kind._names, "starts", "ends")
    spans = [[*zip(*(each[name].tolist() for name in names), strict=True)] for each in found]
    assert spans == of_evaluation(kind, vocabulary, sentences)
    assert sum(map(len, spans)) > len(sentences)
    assert_same_outputs(in_tensorflow(served).outputs(inputs), found)


def test_words_in_the_graph():
    split, sentences = WordSplitter(), texts(NUM_TEXTS)
    found = split(tf.constant(sentences))
    starts, ends = found.starts.to_list(), found.ends.to_list()
    for text, *row in zip(sentences, starts, ends, strict=True):
        assert list(zip(*row, strict=True)) == split_words(text), text
    broken = split(tf.constant([b"a\xff b\xed\xa0\x80c"]))
    assert (broken.starts.to_list(), broken.ends.to_list()) == ([[0, 2]], [[1, 4]])
