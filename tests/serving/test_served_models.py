"""Served models in the graph: windows, parts, thresholds, places, and what is refused.

Their answers are compared in test_formats.py. Not tested here: TensorFlow Serving, which
test_elsewhere.py asks.
"""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import export
from albert_tf.answers import rows, span
from albert_tf.answers.classify import Classify
from albert_tf.answers.span import BeamSpan, Span, SpanOrNone
from albert_tf.serving import predict, served_tasks
from albert_tf.serving.graphs import base, classify
from albert_tf.serving.graphs import span as graph_span
from albert_tf.serving.graphs import tokenizer as graph_tokenizer
from tests.kit import goldens, tolerances
from tests.kit.served_tasks import KINDS, config_for, in_tensorflow, make, model

pytestmark = pytest.mark.usefixtures("eager")  # SavedModels of test_formats.py have graphs.
LENGTHS = {"max_seq_length": 64, "doc_stride": 20, "max_query_length": 12}


@pytest.mark.parametrize(("stride", "room"), [(128, 320), (700, 320), (50, 9)])
def test_windows_are_those_of_the_evaluation(stride, room):
    """Some are so much longer than others that length counts as context; none skips a piece."""
    lengths = (330, 900, 5, 0)
    ids = tf.ragged.constant([list(range(length)) for length in lengths], dtype=tf.int32)
    pieces = graph_tokenizer.Pieces(ids, ids, ids, tf.constant([""] * len(lengths)))
    query = tf.ragged.constant([[7]] * len(lengths), dtype=tf.int32)
    cut = graph_span.make_windows(query, pieces, room + 4, stride)
    of_text, texts = classify.text_windows(ids, room + 2, stride)
    row = 0
    for example, length in enumerate(lengths):
        spans = rows.window_spans(length, room, stride)
        best = span.best_spans(spans, length)
        for index, (first, end) in enumerate(spans):
            assert cut.examples[row] == texts[row] == example
            expected = list(range(first, end))
            assert cut.ids[row].numpy().tolist() == of_text[row].numpy().tolist() == expected
            counts = cut.counts[row, : end - first].numpy()
            assert counts.tolist() == (best[first:end] == index).tolist()
            row += 1
    assert row == len(cut.widths) == len(texts)


@pytest.mark.slow
def test_a_long_context_is_read_in_parts(vocabulary, monkeypatch):
    kind = BeamSpan(**LENGTHS)
    rng = np.random.default_rng(5)
    words = rng.choice(["the", "cat", "sat", "on", "Zoë's", "½", "bridge."], 2500)
    texts = {"question": ["who?", "where?", "?"], "context": [" ".join(words), "a mat", ""]}

    def ask(positions):
        monkeypatch.setattr(base, "POSITIONS_AT_ONCE", positions)
        served = make(kind, vocabulary)
        apply, seen = served.apply, []
        served.read_texts()

        def recorded(features):
            ids = features["input_ids"]
            tf.py_function(lambda ids: seen.append(tuple(ids.shape)), [ids], [])
            return apply(features)

        served.apply = recorded
        return served.answer_texts(**{k: tf.constant(text) for k, text in texts.items()}), seen

    parts, seen = ask(1024)
    assert len(seen) > 5
    assert max(rows * width for rows, width in seen) <= 1024
    whole, seen = ask(1 << 30)
    assert len(seen) == 1
    for name, expected in whole.items():
        if expected.dtype == tf.string:
            np.testing.assert_array_equal(parts[name], expected)
        else:
            np.testing.assert_allclose(parts[name], expected, atol=tolerances.OUTPUT)


SPANS = {"max_seq_length": 16, "max_query_length": 4, "n_best_size": 16}
NAMES = ("no", "yes")


@pytest.mark.parametrize(
    ("kind", "name", "answer"),
    [
        (Classify(labels=NAMES, max_seq_length=16), "label", "no"),
        (Classify(labels=NAMES, threshold=0.5, max_seq_length=16), "label", "yes"),
        (Classify(labels=NAMES, multilabel=True, max_seq_length=16), "label", "no|yes"),
        # A null threshold of 0, the default, counts, too.
        (SpanOrNone(**SPANS), "answer", ""),
    ],
)
def test_what_equals_a_threshold_has_reached_it(kind, name, answer, vocabulary):
    """If all outputs are 0, probabilities are 1/2 and null odds are 0."""
    zeros = model(kind, config_for(vocabulary))
    zeros.set_weights([np.zeros(value.shape) for value in zeros.get_weights()])
    served = served_tasks.in_graph(zeros, vocabulary, kind)
    for predictor in (predict.from_model(served), in_tensorflow(served)):
        (found,) = predictor.outputs([["a", "a"][: len(kind.text_names)]])
        assert found[name] == answer
        if name == "answer":
            assert (found["answers"][0], found["null_odds"]) == ("a", 0)


def test_an_answer_that_a_context_has_twice_is_where_it_was_found(vocabulary):
    """Later pieces score higher; the second place follows a character of two UTF-16 units."""
    served = make(Span(max_seq_length=32, max_query_length=12), vocabulary)
    the, *_, cat = vocabulary.tokenizer.encode("the cat")

    def later(features):
        ids, pieces = features["input_ids"], {"start_logits": the, "end_logits": cat}
        places = tf.range(tf.shape(ids)[1], dtype=tf.float32)
        return {name: tf.where(ids == piece, places, -99.0) for name, piece in pieces.items()}

    served.apply = later
    context = "the cat saw \U0001f408  the cat"
    for predictor in (predict.from_model(served), in_tensorflow(served)):
        (found,) = predictor.outputs([["who?", context]])
        assert (found["answer"], found["starts"][0]) == ("the cat", context.rindex("the"))


def test_examples_whose_features_differ_in_length_are_refused(vocabulary):
    example = tf.train.Example()
    for name, count in (("input_ids", 3), ("input_mask", 3), ("segment_ids", 2)):
        example.features.feature[name].int64_list.value.extend([1] * count)
    serialized = tf.constant([example.SerializeToString()])
    with pytest.raises(tf.errors.InvalidArgumentError, match="segment_ids and input_ids differ"):
        tf.function(make("classify", vocabulary).parse)(serialized)


def test_a_vocabulary_of_another_size_is_refused(vocabulary):
    kind = KINDS["labels"]
    with pytest.raises(ValueError, match="has 6000 pieces, but the model's vocab_size is 1000"):
        export.Classifier(model(kind, goldens.config("base")), vocabulary, kind)
