"""Small models of each task, as they are served, and lines for them to answer."""

import pytest

import albert_tf
from albert_tf import export
from tests import goldens, tolerances
from tests.tiny import randomise

# Of several windows; the random models find answers in it.
LONG = " ".join(
    f"In {1900 + i} a ship number {i} left the harbour of town {chr(65 + i)}." for i in range(12)
)
# A task -> its model, the class that serves it with options, and lines to answer.
TASKS = {
    "classify": (
        lambda config: albert_tf.AlbertForSequenceClassification(config, num_labels=2),
        lambda *model: export.Classifier(
            *model, ("no", "yes"), pairs=True, threshold=0.25, max_seq_length=16
        ),
        f"a cat\ta dog\none\t\n{LONG}\t{LONG}\n",
    ),
    "tag": (
        lambda config: albert_tf.AlbertForTokenClassification(config, num_labels=3),
        lambda *model: export.Tagger(*model, ("O", "B-PER", "I-PER"), max_seq_length=16),
        f"The Cat sat\n{LONG}\n",
    ),
    "choose": (
        albert_tf.AlbertForMultipleChoice,
        lambda *model: export.Chooser(*model, num_choices=3, max_qa_length=9),
        "a story\tone\ttwo\na story\tone\ttwo\tthree\n",
    ),
    "answer_v1": (
        albert_tf.AlbertForQuestionAnswering,
        lambda *model: export.QuestionAnswerer(
            *model, max_seq_length=32, max_query_length=12, doc_stride=8
        ),
        f"who?\tThe Cat sat\nwhere?\t{LONG}\nwho?\t\n",
    ),
    "answer_v2": (
        lambda config: albert_tf.AlbertForQuestionAnsweringV2(config, start_n_top=3, end_n_top=4),
        lambda *model: export.QuestionAnswerer(
            *model, max_seq_length=32, max_query_length=12, null_threshold=0.5
        ),
        f"who?\tThe Cat sat\nwhere?\t{LONG}\nwho?\t\n",
    ),
    "fill_mask": (
        albert_tf.AlbertForPreTraining,
        lambda *model: export.MaskFiller(*model, top_k=2, without=("swapped",)),
        "the [MASK] of [MASK].\nno gap\na cat\tthe dog\n",
    ),
}


def make(task, vocabulary):
    """Returns what serves a task, with random weights."""
    config = goldens.config("base", vocab_size=vocabulary.tokenizer.vocab_size, num_hidden_layers=1)
    model_class, serve, _ = TASKS[task]
    return serve(randomise(model_class(config)), vocabulary)


def assert_alike(found, expected):
    """Compares answers, their numbers within a tolerance."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for values in zip(found, expected, strict=True):
            assert_alike(*values)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=tolerances.OUTPUT)
    else:
        assert found == expected
