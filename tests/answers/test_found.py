"""Answers of each kind to made-up outputs, worked out by hand; tests/serving has models'."""

import numpy as np
import pytest

from albert_tf.answers.choose import Choose
from albert_tf.answers.classify import Classify
from albert_tf.answers.fill import Fill
from albert_tf.answers.span import BeamSpan, Span
from albert_tf.answers.tag import Tag

# The logit of a probability of 3/4.
LN3 = np.log(3)
NAMES = ("no", "yes")
ODDS = {"probabilities": {"no": 0.25, "yes": 0.75}}


def approx(answer):
    """Lets the numbers in an answer differ by float32's rounding."""
    if isinstance(answer, dict):
        return {name: approx(value) for name, value in answer.items()}
    if isinstance(answer, list):
        return [approx(value) for value in answer]
    return pytest.approx(answer, abs=1e-6) if isinstance(answer, float) else answer


@pytest.mark.parametrize(
    ("kind", "logits", "answer", "said"),
    [
        (
            Classify(labels=NAMES, max_seq_length=9),
            [0, LN3],
            {"label": "yes", **ODDS},
            "yes (no 0.250, yes 0.750)",
        ),
        (
            Classify(labels=NAMES, pairs=True, threshold=0.8, max_seq_length=9),
            [0, LN3],
            {"label": "no", **ODDS, "threshold": 0.8},
            "no (no 0.250, yes 0.750)",
        ),
        (
            Classify(labels=("a", "b", "c"), multilabel=True, max_seq_length=9),
            [LN3, -LN3, 0],
            {"label": "a|c", "probabilities": {"a": 0.75, "b": 0.25, "c": 0.5}},
            "a|c (a 0.750, b 0.250, c 0.500)",
        ),
        (
            Classify(labels=NAMES, multilabel=True, threshold=0.8, max_seq_length=9),
            [LN3, 0],
            {"label": "", "probabilities": {"no": 0.75, "yes": 0.5}, "threshold": 0.8},
            "no label (no 0.750, yes 0.500)",
        ),
        (Classify(max_seq_length=9), [1.5], {"score": 1.5}, "score 1.5000"),
    ],
)
def test_a_text_is_classified(kind, logits, answer, said, tokenizer):
    def run(features):
        assert (features["segment_ids"].sum() > 0) == kind.pairs
        return {"logits": np.array([logits])}

    (found,) = kind.find(tokenizer, run, [["a cat", "a dog"][: len(kind.text_names)]])
    assert kind.answer(found) == approx(answer)
    assert kind.said(kind.answer(found)) == said
    assert "score" in found or found["logits"].tolist() == logits


def test_windows_of_a_text_are_combined():
    logits = [[0, LN3], [LN3, 0], [0, 0]]
    mean, largest = (Classify(labels=NAMES, windows=name) for name in ("mean", "max"))
    np.testing.assert_allclose(mean.shares(logits, [0, 2]), [[0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_allclose(largest.shares(logits, [0, 2]), [[0.75, 0.75], [0.5, 0.5]])
    number = Classify(windows="max")
    assert number.shares([[2.0], [-3.0], [1.0]], [0, 1]).tolist() == [[2], [1]]


def test_an_ending_is_chosen(tokenizer):
    kind = Choose(max_seq_length=9)
    assert kind.text_ranks == {"context": 1, "endings": 2}
    assert Span(max_query_length=9).text_ranks == {"question": 1, "context": 1}

    def run(features):
        assert features["input_ids"].shape[:2] == (1, 2)
        return {"logits": np.array([[0, LN3]])}

    (found,) = kind.find(tokenizer, run, [["a story", ["one", "two"]]])
    answer = kind.answer(found)
    assert answer == approx({"choice": 1, "probabilities": [0.25, 0.75]})
    assert kind.said(answer) == "2 (0.250, 0.750)"


TEXT = "Anna Bell met Otto. In Rome"
TAGS = {"Anna": "B-PER", "Bell": "I-PER", "Otto": "I-PER", "In": "E-LOC", "Rome": "E-LOC"}


@pytest.mark.parametrize("length", [64, 9])
def test_words_are_merged_to_entities(length, tokenizer):
    kind = Tag(labels=("O", *sorted({*TAGS.values()})), max_seq_length=length)
    first_pieces = {tokenizer.encode(word)[0]: tag for word, tag in TAGS.items()}

    def run(features):
        tags = [[first_pieces.get(i, "O") for i in row] for row in features["input_ids"].tolist()]
        ids = np.array([[kind.labels.index(tag) for tag in row] for row in tags])
        return {"logits": np.eye(len(kind.labels))[ids] * np.log(9)}

    (found,) = kind.find(tokenizer, run, [[TEXT]])
    # Probabilities are 9 / (9 + 3). For seqeval, a tag that continues no entity begins one.
    spans = [("Anna Bell", "PER"), ("Otto", "PER"), ("In", "LOC"), ("Rome", "LOC")]
    entities = [
        {"text": text, "type": name, "probability": 0.75}
        | {"start": TEXT.index(text), "end": TEXT.index(text) + len(text)}
        for text, name in spans
    ]
    assert kind.answer(found) == approx({"entities": entities})
    assert kind.said(kind.answer(found)).startswith("Anna Bell (PER 0.750), Otto (PER 0.750), ")
    padding = {**found, "entities": np.full_like(found["entities"], "")}
    assert kind.said(kind.answer(padding)) == "no entities"


def test_plain_tags_stay_apart(tokenizer):
    kind = Tag(labels=("cap", "low"), max_seq_length=9)
    logits = np.broadcast_to([0, LN3], (1, 9, 2))
    (found,) = kind.find(tokenizer, lambda features: {"logits": logits}, [["it is \x01"]])
    # The last word has no pieces: it has the default tag, with a probability of 1.
    answer = kind.answer(found)
    assert kind.said(answer) == "it/low is/low \x01/cap"
    assert [each["probability"] for each in answer["words"]] == [0.75, 0.75, 1]
    padded = {name: np.append(values, values.dtype.type(0)) for name, values in found.items()}
    padded["words"] = np.append(found["words"], "")
    assert kind.answer(padded) == answer


def test_text_after_a_mask_continues_its_word(tokenizer):
    kind, encode, mask = Fill(max_seq_length=64), tokenizer.encode, [tokenizer.mask_id]
    after = tokenizer.convert_tokens_to_ids(["."])  # Not "▁.".
    for text, ids in {
        "the [MASK] of France [MASK].": encode("the") + mask + encode("of France") + mask + after,
        "nothing here": encode("nothing here"),
        "[MASK]": mask,
        "[MASK]\u3000dog": mask + encode("dog"),
    }.items():
        (row,) = kind.rows(tokenizer, text)
        assert row["input_ids"][1:-1].tolist() == ids


def test_masks_are_filled(tokenizer):
    kind = Fill(top_k=2, max_seq_length=16)
    best = tokenizer.encode("the met")

    def run(features):
        shape = features["input_ids"].shape
        logits = np.zeros((*shape, tokenizer.vocab_size + 3))
        logits[..., best[0]], logits[..., best[1]] = 30 + LN3, 30
        logits[..., -3:] = 40  # Padding rows of the table are no pieces.
        vectors = np.broadcast_to(np.arange(shape[1])[:, None], (*shape, 2))
        more = {"pooled_output": np.ones((1, 2)), "sentence_order_logits": np.array([[0, LN3]])}
        return {"masked_lm_logits": logits, "sequence_output": vectors, **more}

    (found,) = kind.find(tokenizer, run, [["[MASK] sat [MASK]"]])
    pieces = [{"piece": "▁the", "probability": 0.75}, {"piece": "▁met", "probability": 0.25}]
    assert kind.answer(found) == approx({"masks": [pieces] * 2})
    assert kind.said(kind.answer(found)) == "\n".join(["▁the 0.750, ▁met 0.250"] * 2)
    length = 4 + len(tokenizer.encode("sat"))
    assert found["mean"].tolist() == [(length - 1) / 2] * 2
    assert found["swapped"] == pytest.approx(0.75) and found["pooled"].tolist() == [1, 1]
    (nothing,) = kind.find(tokenizer, run, [["sat"]])
    assert kind.answer(nothing) == {"masks": []} and "no [MASK]" in kind.said({"masks": []})


def test_a_beam_is_answered_with_its_odds(tokenizer):
    kind = BeamSpan(max_seq_length=16, max_query_length=4, start_n_top=1, end_n_top=2)
    first = 2 + len(tokenizer.encode("who?", 4))

    def run(features):
        return {
            "start_top_index": np.array([[first]]),
            "start_top_log_probs": np.array([[-1.0]]),
            "end_top_index": np.array([[first, first + 1]]),
            "end_top_log_probs": np.array([[-2.0, LN3 - 2.0]]),
            "cls_logits": np.array([-0.5]),
        }

    (found,) = kind.find(tokenizer, run, [["who?", "the met"]])
    answers = [{"text": "the met", "probability": 0.75}, {"text": "the", "probability": 0.25}]
    expected = {"answer": "the met", "answers": answers, "null_odds": -0.5}
    assert kind.answer(found) == approx(expected)
    assert kind.said(kind.answer(found)) == "the met (0.750)"
    assert kind.said({**expected, "answer": ""}) == "no answer"
