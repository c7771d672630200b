"""Answers of exported models against those of the evaluation of SQuAD, on the same model."""

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf import export
from albert_tf.serving import answering, classifying, graph_tokenizer, served_models
from albert_tf.tasks import sequence_features, squad_text
from tests import goldens, tolerances
from tests.tiny import randomise

N_BEST, MAX_ANSWER = 6, 12
SETTINGS = {"max_seq_length": 64, "doc_stride": 20, "max_query_length": 12}
CLASSES = [albert_tf.AlbertForQuestionAnswering, albert_tf.AlbertForQuestionAnsweringV2]


def reference(model, examples, vocabulary, settings, may_be_impossible):
    """Returns what the evaluation predicts, window by window, each question by itself."""
    windows = list(
        squad_text.squad_windows(examples, vocabulary.tokenizer, **settings, is_training=False)
    )
    rows = [window.features for window in windows]
    outputs = model(sequence_features.stack(rows, settings["max_seq_length"]))
    outputs = {name: np.array(value) for name, value in outputs.items()}
    limits = (N_BEST, MAX_ANSWER, may_be_impossible)
    return squad_text.predict(examples, windows, outputs, *limits)


def serve(model, vocabulary, settings, **arguments):
    return export.QuestionAnswerer(
        model, vocabulary, **settings, n_best_size=N_BEST, max_answer_length=MAX_ANSWER, **arguments
    )


@pytest.mark.parametrize("version", ["v1", "v2", "linear_v2"])
def test_answers_are_those_of_the_evaluation(golden, vocabulary, config, version):
    settings = goldens.squad_settings(golden)
    examples = squad_text.read_squad(golden / f"features/squad_{version[-2:]}_dev.json")
    threshold = {}
    if version != "v2":
        model = randomise(albert_tf.AlbertForQuestionAnswering(config))
    else:
        beam = {"start_n_top": 4, "end_n_top": 3}
        model = randomise(albert_tf.AlbertForQuestionAnsweringV2(config, **beam))
    expected = reference(model, examples, vocabulary, settings, version != "v1")
    if version != "v1":
        # Between two questions, as the last digits differ.
        middle = sorted(expected.null_odds.values())[len(examples) // 2 :][:2]
        threshold = {"null_threshold": sum(middle) / 2}
    signature = serve(model, vocabulary, settings, **threshold).text_signature()
    answers = signature(
        question=tf.constant([example.question for example in examples]),
        context=tf.constant([example.paragraph for example in examples]),
    )
    compared = 0
    for row, example in enumerate(examples):
        if example.qas_id.startswith("P-Mismatch"):
            continue  # The release gives that paragraph up.
        nbest = expected.nbest[example.qas_id]
        texts = [entry["text"] for entry in nbest]
        if texts in (["empty"], [""]):
            texts, nbest = [], []
        rest = N_BEST - len(texts)
        found = [text.decode() for text in answers["answers"][row].numpy()]
        assert found == [*texts, *[""] * rest], example.qas_id
        np.testing.assert_allclose(
            answers["probabilities"][row],
            [*(entry["probability"] for entry in nbest), *[0.0] * rest],
            atol=tolerances.OUTPUT,
        )
        best = found[0]
        if version != "v1":
            odds = expected.null_odds[example.qas_id]
            np.testing.assert_allclose(answers["null_odds"][row], odds, atol=tolerances.OUTPUT)
            best = best if odds < threshold["null_threshold"] else ""
        assert answers["answer"][row].numpy().decode() == best
        compared += bool(texts)
    assert compared >= 12
    if version != "v1":
        blank = answers["answer"].numpy() == b""
        assert 0 < blank.sum() < len(examples), "the threshold must part the questions"


@pytest.mark.parametrize("model_class", CLASSES)
def test_no_questions(vocabulary, config, model_class):
    signature = serve(model_class(config), vocabulary, SETTINGS).text_signature()
    none = signature(question=tf.zeros([0], tf.string), context=tf.zeros([0], tf.string))
    assert {len(value) for value in none.values()} == {0}


def test_a_paragraph_that_the_release_gives_up_is_answered(vocabulary, config):
    model = randomise(albert_tf.AlbertForQuestionAnswering(config))
    served = serve(model, vocabulary, SETTINGS)
    context = "  the" + " " * 300 + "bridge"
    answers = served.answer_texts(
        question=tf.constant(["what?", ""]), context=tf.constant([context, ""])
    )
    first, empty = (text.decode() for text in answers["answer"].numpy())
    assert first
    assert first in context
    assert empty == ""
    np.testing.assert_array_equal(answers["probabilities"][1], np.zeros(N_BEST))


def test_a_beam_may_be_wider_than_a_text(vocabulary, config):
    model = randomise(albert_tf.AlbertForQuestionAnsweringV2(config, start_n_top=40))
    settings = {**SETTINGS, "max_seq_length": 40}
    served = serve(model, vocabulary, settings, null_threshold=np.inf)
    answers = served.answer_texts(question=tf.constant(["who?"]), context=tf.constant(["a cat"]))
    assert answers["answer"][0].numpy() in (b"a", b"cat", b"a cat")
    with pytest.raises(ValueError, match="must be from 1 to 39 .*max_seq_length.*, got 40 and 5"):
        serve(model, vocabulary, {**settings, "max_seq_length": 39})


@pytest.mark.parametrize("model_class", CLASSES)
def test_a_long_context_is_read_in_parts(vocabulary, config, monkeypatch, model_class):
    model = randomise(model_class(config))
    rng = np.random.default_rng(5)
    words = rng.choice(["the", "cat", "sat", "on", "Zoë's", "½", "bridge."], 2500)
    texts = {"question": ["who?", "where?", "?"], "context": [" ".join(words), "a mat", ""]}

    def ask(positions):
        monkeypatch.setattr(served_models, "_POSITIONS_AT_ONCE", positions)
        served = export.QuestionAnswerer(model, vocabulary, **SETTINGS)
        apply, seen = served.apply, []

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


@pytest.mark.parametrize(("stride", "room"), [(128, 320), (700, 320), (50, 9)])
def test_windows_are_those_of_the_evaluation(stride, room):
    """Some so much longer than others that it counts as context; none skips a piece."""
    lengths = (330, 900, 5, 0)
    ids = tf.ragged.constant([list(range(length)) for length in lengths], dtype=tf.int32)
    pieces = graph_tokenizer.Pieces(ids, ids, ids, tf.constant([""] * len(lengths)))
    query = tf.ragged.constant([[7]] * len(lengths), dtype=tf.int32)
    cut = answering.make_windows(query, pieces, room + 4, stride)
    of_text, texts = classifying.text_windows(ids, room + 2, stride)
    row = 0
    for example, length in enumerate(lengths):
        spans = sequence_features.window_spans(length, room, stride)
        best = squad_text.best_spans(spans, length)
        for index, (first, end) in enumerate(spans):
            assert cut.examples[row] == texts[row] == example
            expected = list(range(first, end))
            assert cut.ids[row].numpy().tolist() == of_text[row].numpy().tolist() == expected
            counts = cut.counts[row, : end - first].numpy()
            assert counts.tolist() == (best[first:end] == index).tolist()
            row += 1
    assert row == len(cut.widths) == len(texts)


def test_null_odds_at_the_threshold_are_no_answer(vocabulary, config):
    model = randomise(albert_tf.AlbertForQuestionAnsweringV2(config))
    texts = {"question": tf.constant(["who?"]), "context": tf.constant(["the cat sat"])}
    found = serve(model, vocabulary, SETTINGS, null_threshold=np.inf).answer_texts(**texts)
    assert found["answer"][0] != b""
    odds = float(found["null_odds"][0])
    found = serve(model, vocabulary, SETTINGS, null_threshold=odds).answer_texts(**texts)
    assert found["null_odds"][0] == odds and found["answer"][0] == b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"doc_stride": 0}, "must be positive, got 0, 12"),
        ({"max_query_length": 61}, "`max_query_length` 61 leaves no room .* at most 60"),
    ],
)
def test_what_leaves_no_room_is_refused(vocabulary, config, arguments, message):
    model = randomise(albert_tf.AlbertForQuestionAnswering(config))
    with pytest.raises(ValueError, match=message):
        serve(model, vocabulary, {**SETTINGS, **arguments})
