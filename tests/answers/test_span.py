"""Windows on a context, and the best answers in them."""

import tracemalloc

import numpy as np
import pytest

from albert_tf.answers import span
from albert_tf.answers.span import BeamSpan, Span, SpanOrNone
from albert_tf.tasks.question_answering import rows_of


def window(is_max_context) -> dict:
    """Returns a window on a context with one character per piece, after two other positions."""
    places = np.arange(len(is_max_context))
    values = {"char_starts": places, "char_ends": places, "is_max_context": is_max_context}
    return {"doc_offset": 2, **{name: np.array([0, 0, *v, 0]) for name, v in values.items()}}


WHOLE = window([1] * 6)


def peaks(*scores: tuple[int, float]) -> np.ndarray:
    logits = np.full(9, -9.0, np.float32)
    for position, score in scores:
        logits[position] = score
    return logits


def best(windows, starts, ends, kind=Span, **options):
    """Returns the answers in "abcdef", and the null odds."""
    outputs = {"start_logits": starts, "end_logits": ends}
    found = kind(n_best_size=3, **{"max_answer_length": 4, **options})
    return found.best("abcdef", windows, [*rows_of(outputs)])


def texts(*args, **options) -> list[str]:
    return [entry["text"] for entry in best(*args, **options)[0]]


def test_only_spans_of_the_context_are_answers():
    """Position 0 is [CLS], 8 the last [SEP]; the context is at 2 to 7."""
    starts, ends = peaks((0, 9), (5, 5), (4, 3)), peaks((8, 9), (4, 6), (5, 1))
    # Their scores are 9, 6 and 4; a span from 5 to 4 would run backwards.
    assert texts([WHOLE], [starts], [ends]) == ["c", "d", "cd"]


def test_among_equal_scores_the_first_wins():
    assert texts([WHOLE], [np.zeros(9)], [np.zeros(9)])[0] == "a"


def test_length_and_context_limit_an_answer():
    starts, ends = [peaks((2, 5), (3, 2))], [peaks((7, 5), (4, 1))]
    for most, expected in ((6, "abcdef"), (5, "bcdef"), (4, "abc")):
        assert texts([WHOLE], starts, ends, max_answer_length=most)[0] == expected
    # Another window has more context around the first piece.
    elsewhere = [window([0, 1, 1, 1, 1, 1])]
    assert texts(elsewhere, starts, ends, max_answer_length=6)[0] == "bcdef"


def test_equal_texts_count_once_and_probabilities_are_among_the_best():
    starts = [peaks((2, 3), (3, 1)), peaks((2, 4), (3, 1))]
    entries, _ = best([WHOLE] * 2, starts, [peaks((2, 0), (3, -1))] * 2)
    assert [entry["text"] for entry in entries] == ["a", "ab", "b"]
    scores = np.array([4.0 + 0.0, 4.0 - 1.0, 1.0 - 1.0])
    expected = np.exp(scores) / np.exp(scores).sum()
    assert [entry["probability"] for entry in entries] == pytest.approx(expected)
    large = [span.entry("a", 1000.0, 0.0), span.entry("b", 1000.0, -np.log(3))]
    shares = [each["probability"] for each in span.with_probabilities(large)]
    assert shares == pytest.approx([0.75, 0.25])


def test_null_odds_of_a_linear_head_are_the_score_of_cls_less_that_of_the_best_answer():
    """Worked out by hand; BERT's run_squad.py calls them score_diff."""
    starts = [peaks((0, 5), (3, 4)), peaks((0, 2), (3, 9))]
    ends = [peaks((0, 1), (3, 3)), peaks((0, 3), (3, 2))]
    entries, odds = best([window([1, 1])] * 2, starts, ends, SpanOrNone)
    assert odds == (2 + 3) - (9 + 2) and entries[0]["text"] == "b"
    # A window without any position for an answer.
    nothing = best([window([0, 0])], [peaks((0, 7))], [peaks((0, 7))], SpanOrNone)
    assert nothing == ([], span.NO_WINDOW_NULL_ODDS)


def test_null_odds_of_a_beam_are_the_least_of_all_windows():
    beam = {
        "start_top_index": np.array([[2], [3]]),
        "start_top_log_probs": np.array([[-1.0], [-0.5]], np.float32),
        "end_top_index": np.array([[2, 4], [3, 5]]),
        "end_top_log_probs": np.array([[-2.0, -0.25], [-2.0, -1.0]], np.float32),
        "cls_logits": np.array([0.5, -0.75], np.float32),
    }
    kind = BeamSpan(n_best_size=3, max_answer_length=4)
    entries, odds = kind.best("abcdef", [WHOLE] * 2, [*rows_of(beam)])
    assert [entry["text"] for entry in entries] == ["abc", "bcd", "b"] and odds == -0.75


@pytest.mark.parametrize(("threshold", "answer"), [(0.0, ""), (1e-6, "it")])
def test_null_odds_at_the_threshold_are_no_answer(threshold, answer, tokenizer):
    """A threshold of 0 counts, too: scores that are all 0 have null odds of 0."""
    size = {"max_seq_length": 16, "max_query_length": 4}
    kind = SpanOrNone(null_threshold=threshold, n_best_size=16, **size)

    def run(features):
        return {name: np.zeros(features["input_ids"].shape) for name in kind.outputs}

    (found,) = kind.find(tokenizer, run, [["who?", "it"]])
    assert (found["answer"], found["answers"][0], found["null_odds"]) == (answer, "it", 0)


@pytest.mark.parametrize("kind", [Span, BeamSpan])
def test_of_many_windows_only_the_best_answers_are_kept(kind):
    """The pairs of all windows would take some 20 MB."""
    context = "".join(map(chr, range(0x4E00, 0x9E00)))
    rng, width, count = np.random.default_rng(3), 20, 150
    windows = [window([1] * width) for _ in range(count)]
    for number, row in enumerate(windows):
        row["char_starts"] = row["char_ends"] = row["char_starts"] + number * width
    top = np.arange(2, 22)
    outputs = {
        "start_logits": rng.normal(size=(count, width + 3)),
        "end_logits": rng.normal(size=(count, width + 3)),
        "start_top_index": np.tile(top, (count, 1)),
        "start_top_log_probs": rng.normal(size=(count, 20)),
        "end_top_index": np.tile(top, (count, 20)),
        "end_top_log_probs": rng.normal(size=(count, 400)),
        "cls_logits": rng.normal(size=count),
    }
    rows = [*rows_of(outputs)]
    tracemalloc.start()
    entries, _ = kind().best(context, windows, rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(entries) == 20
    assert peak < 2e6


def test_a_longer_window_counts_as_more_context():
    """A hundredth of its length is added, as in squad_utils.py, _check_is_max_context."""
    spans = [(0, 320), (128, 330)]

    def score(span, piece):
        first, end = span
        return min(piece - first, end - 1 - piece) + 0.01 * (end - first)

    expected = [
        int(piece >= 320 or (piece >= 128 and score(spans[1], piece) > score(spans[0], piece)))
        for piece in range(330)
    ]
    assert span.best_spans(spans, 330).tolist() == expected
    assert span.best_spans([(0, 3), (2, 5)], 5).tolist() == [0, 0, 0, 1, 1]


def test_a_long_context_takes_memory_by_its_length(tokenizer):
    """A table of its 40,000 pieces and 2,000 windows would have 640 MB."""
    kind = Span(max_seq_length=64, doc_stride=20, max_query_length=16)
    text = "the cat sat on the mat. " * 5700
    tracemalloc.start()
    lengths = [len(row["input_ids"]) for row in kind.rows(tokenizer, "where?", text.strip())]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(lengths) > 1500 and {*lengths[:-1]} == {64}
    assert peak < 60e6


def test_a_question_keeps_its_first_pieces(tokenizer):
    long = "when did the king and the queen and all of the people go to the house?"
    kind = Span(max_seq_length=24, doc_stride=5, max_query_length=6)
    (cut,) = kind.rows(tokenizer, long, "It was in May.")
    assert cut["input_ids"][1:7].tolist() == tokenizer.encode(long)[:6]
    assert cut["doc_offset"] == 8
    assert cut["p_mask"].tolist() == [0, *[1] * 7, *[0] * (len(cut["p_mask"]) - 9), 1]
