"""Tagging raw text in the graph, against the same in Python: words, windows, tags, entities."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from seqeval.metrics.sequence_labeling import get_entities

import albert_tf
from albert_tf import export
from albert_tf.serving import predict
from albert_tf.serving.graph_text import WordSplitter
from albert_tf.serving.predict import GraphFunction, Predictor
from albert_tf.tasks import conll, sequence_features
from albert_tf.tasks.conll import TokenExample
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.token_classification import TokenClassificationTask
from albert_tf.text.words import split_words
from tests import goldens, tolerances
from tests.serving import test_graph_tokenizer
from tests.tiny import randomise

NUM_TEXTS = 10_000
LENGTH = 9
BIOES = ("B-LOC", "E-LOC", "E-PER", "I-LOC", "O", "S-PER", "I-PER")
BIO = ("O", "B-LOC", "B-PER", "I-LOC", "I-PER", "I-ORG", "B-ORG")
PLAIN = ("low", "cap", "cap.", "low.", "all", "x", "y")


@pytest.fixture(scope="module")
def model(config):
    return randomise(albert_tf.AlbertForTokenClassification(config, len(BIO)))


@functools.cache
def texts(count):
    """Strings that the tokenizer is tested on, too, most of them longer than a window."""
    generated = test_graph_tokenizer.generated_strings(count)
    return [*generated, "", "  ", "'s", "\x01 \x02", " ".join(generated[:97])]


def python_answers(task, sentences, logits_of):
    """Returns the entities, or words, by the code that trains and by seqeval.

    They are lists of (text, type or tag, start, end, probability).
    """
    places = [split_words(text) for text in sentences]
    words = [[text[a:b] for a, b in each] for text, each in zip(sentences, places, strict=True)]
    examples = [TokenExample(str(i), tuple(each), None) for i, each in enumerate(words)]
    rows = list(task.rows(examples, is_training=False))
    logits = np.full((len(rows), task.max_seq_length, len(task.classes)), -np.inf, np.float32)
    for i, row in enumerate(rows):
        logits[i, : len(row["input_ids"])] = logits_of(row)
    features = FeatureTable.from_rows(rows)
    found = task.predictions(
        examples, features, task.collect(features, [(np.arange(len(rows)), logits)])
    )
    found[~found.any(axis=1), conll.default_tag(task.classes)] = 1.0  # Words without pieces.
    best, probabilities = found.argmax(axis=1), found.max(axis=1)
    answers, first = [], 0
    for text, each in zip(sentences, places, strict=True):
        names = [task.classes[i] for i in best[first : first + len(each)]]
        shares = probabilities[first : first + len(each)]
        first += len(each)
        spans = ((name, i, i) for i, name in enumerate(names))
        if conll.are_entities(task.classes):
            spans = get_entities(names)
        places_of = ((kind, each[i][0], each[j][1], shares[i : j + 1]) for kind, i, j in spans)
        answers.append([(text[a:b], kind, a, b, p.mean()) for kind, a, b, p in places_of])
    return answers


def graph_answers(outputs, names):
    columns = [outputs[name].numpy() for name in (*names, "starts", "ends", "probabilities")]
    return [
        [(a.decode(), b.decode(), *rest) for a, b, *rest in zip(*row, strict=True) if a]
        for row in zip(*columns, strict=True)
    ]


def assert_same(actual, expected):
    assert [[span[:4] for span in each] for each in actual] == [
        [span[:4] for span in each] for each in expected
    ]
    shares = [[span[4] for each in found for span in each] for found in (actual, expected)]
    np.testing.assert_allclose(*shares, atol=tolerances.OUTPUT)


TABLE = np.random.default_rng(5).normal(size=(10_007, len(BIO))).astype(np.float32)


def by_place(served):
    """Gives it logits that tell each piece, and its place in its window, from all others."""

    def logits(inputs):
        ids = inputs["input_ids"]
        return tf.gather(TABLE, (31 * ids + tf.range(tf.shape(ids)[1])) % len(TABLE))

    served.apply = logits
    return served


def place_logits(row):
    ids = row["input_ids"]
    return TABLE[(31 * ids + np.arange(len(ids))) % len(TABLE)]


def assert_python_and_slices(outputs, names, sentences, vocabulary, labels):
    task = TokenClassificationTask(None, vocabulary.tokenizer, LENGTH, labels)
    assert set(outputs) == {*names, "starts", "ends", "probabilities"}
    found = graph_answers(outputs, names)
    assert_same(found, python_answers(task, sentences, place_logits))
    assert sum(map(len, found)) > len(sentences)
    for text, spans in zip(sentences, found, strict=True):
        assert all(text[start:end] == span for span, _, start, end, _ in spans)


@pytest.fixture(scope="module")
def exported(model, vocabulary, tmp_path_factory):
    directory = tmp_path_factory.mktemp("served") / "tagger"
    export.save(by_place(export.Tagger(model, vocabulary, BIO, max_seq_length=LENGTH)), directory)
    return tf.saved_model.load(str(directory))


def test_an_export_is_python_on_many_texts(exported, vocabulary):
    sentences = texts(NUM_TEXTS)
    outputs = exported.signatures["serving_default"](text=tf.constant(sentences))
    assert_python_and_slices(outputs, ("entities", "types"), sentences, vocabulary, BIO)


@pytest.mark.parametrize("labels", [BIOES, PLAIN])
def test_other_tags_and_word_pieces(labels, tmp_path):
    vocabulary = test_graph_tokenizer.word_piece_vocabulary(tmp_path, True)
    config = goldens.config("base", vocab_size=vocabulary.tokenizer.vocab_size)
    model = albert_tf.AlbertForTokenClassification(config, len(labels))
    served = by_place(export.Tagger(model, vocabulary, labels, max_seq_length=LENGTH))
    sentences = texts(1000)
    names = ("words", "tags") if labels is PLAIN else ("entities", "types")
    outputs = served.answer_texts(tf.constant(sentences))
    assert_python_and_slices(outputs, names, sentences, vocabulary, labels)


def test_words_in_the_graph():
    split, sentences = WordSplitter(), texts(NUM_TEXTS)
    found = split(tf.constant(sentences))
    starts, ends = found.starts.to_list(), found.ends.to_list()
    wrong = [
        text
        for text, *row in zip(sentences, starts, ends, strict=True)
        if list(zip(*row, strict=True)) != split_words(text)
    ]
    assert wrong == []
    broken = split(tf.constant([b"a\xff b\xed\xa0\x80c"]))
    assert (broken.starts.to_list(), broken.ends.to_list()) == ([[0, 2]], [[1, 4]])


TEXTS = (
    "The House of Representatives, in 1990, and Anna's: \u6211 of Z\u00fcrich!",
    "",
    "of",
    "\x01",
)


@pytest.fixture(scope="module")
def served(model, vocabulary):
    return export.Tagger(model, vocabulary, BIO, max_seq_length=LENGTH)


def test_it_answers_as_its_model(served, model, vocabulary):
    task = TokenClassificationTask(None, vocabulary.tokenizer, LENGTH, BIO)

    def logits_of(row):
        names = ("input_ids", "input_mask", "segment_ids")
        return model({name: row[name][None] for name in names})[0].numpy()

    named = python_answers(task, TEXTS, logits_of)
    assert named[0]
    names = ("entities", "types")
    assert_same(graph_answers(served.answer_texts(tf.constant(TEXTS)), names), named)
    for text, expected in zip(TEXTS, named, strict=True):
        alone = graph_answers(served.answer_texts(tf.constant([text])), names)
        assert_same(alone, [expected])
    features = sequence_features.pair_features(vocabulary.tokenizer, "in the House", None, LENGTH)
    batch = {name: tf.constant(value[None]) for name, value in features.items()}
    found = served.run(batch)
    np.testing.assert_allclose(found["logits"], model(batch), atol=tolerances.OUTPUT)
    np.testing.assert_allclose(tf.reduce_sum(found["probabilities"], -1), 1, rtol=1e-5)


def test_no_texts(exported):
    none = exported.signatures["serving_default"](text=tf.constant([], tf.string))
    assert [value.shape[0] for value in none.values()] == [0] * 5


def test_predict_says_what_it_finds(exported):
    predictor = Predictor(GraphFunction(exported.signatures["serving_default"], exported))
    (answer,) = predictor([TEXTS[0]])
    for entity in answer["entities"]:
        assert TEXTS[0][entity["start"] : entity["end"]] == entity["text"]
        assert entity["type"] in ("LOC", "ORG", "PER") and 0 < entity["probability"] <= 1
    first = answer["entities"][0]
    said = f"{first['text']} ({first['type']} {first['probability']:.3f})"
    assert answer.said.startswith(said)
    spans = {"starts": [0, 3], "ends": [2, 5], "probabilities": [1, 1]}
    words = {"words": [b"In", b"it"], "tags": [b"cap", b"low"], **spans}
    assert predict.MAKERS["words"](words).said == "In/cap it/low"
    none = {"entities": [b"", b""], "types": [b"", b""], **spans}
    assert predict.MAKERS["entities"](none).said == "no entities"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (BIO[:3], "has 7 classes: give 7 labels, .* not 3"),
        (("O",) * 7, "must be distinct names.*, got 'O'"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, message, model, vocabulary):
    with pytest.raises(ValueError, match=message):
        export.Tagger(model, vocabulary, labels)
