"""Small models of each kind, as they are served; texts for them, and how answers are compared."""

import pathlib
import types

import numpy as np
import pytest

from albert_tf.answers.choose import Choose
from albert_tf.answers.classify import Classify
from albert_tf.answers.embed import Embed
from albert_tf.answers.fill import Fill
from albert_tf.answers.span import BeamSpan, Span, SpanOrNone
from albert_tf.answers.tag import Tag
from albert_tf.conversion.stored_model import model_class
from albert_tf.serving import predict, served_tasks
from albert_tf.storage.run_record import RunRecord, TaskRecord
from tests.kit import goldens, tiny, tolerances
from tests.kit.tiny import randomise

# LONG spans several windows, and the random models find answers in it.
_SHIP = "In {} a ship number {} left the harbour of town {}."
LONG = " ".join(_SHIP.format(1900 + i, i, chr(65 + i)) for i in range(12))
_BEAM = {"max_seq_length": 32, "max_query_length": 12}
_QUESTIONS = f"who?\tThe Cat sat\nwhere?\t{LONG}\nwho?\t\n"
# Task -> a kind in which hardly any option has its default, and lines to answer.
TASKS = {
    "classify": (
        Classify(labels=("no", "yes"), pairs=True, threshold=0.25, max_seq_length=16),
        f"a cat\ta dog\none\t\n{LONG}\t{LONG}\n",
    ),
    "tag": (Tag(labels=("O", "B-PER", "I-PER"), max_seq_length=16), f"The Cat sat\n{LONG}\n"),
    "choose": (
        Choose(num_choices=3, max_qa_length=9, max_seq_length=47),
        "a story\tone\ttwo\na story\tone\ttwo\tthree\n",
    ),
    "answer_v1": (Span(**_BEAM, doc_stride=8), _QUESTIONS),
    "answer_v2": (BeamSpan(**_BEAM, null_threshold=0.5, start_n_top=3, end_n_top=4), _QUESTIONS),
    "fill_mask": (
        Fill(top_k=2, without=("swapped",), max_seq_length=64),
        "the [MASK] of [MASK].\nno gap\na cat\tthe dog\n",
    ),
    "embed": (
        Embed(
            pooling="max",
            dense_units=9,
            dimensions=7,
            normalize=True,
            query_prompt="find: ",
            default_prompt="query",
            max_seq_length=16,
        ),
        f"The Cat sat\na cat\ta dog\n{LONG}\n",
    ),
}

THREE = ("one", "two", "three")
# A name -> a kind: those of TASKS, and others that differ from them in more than a number.
KINDS = {
    **{task: kind for task, (kind, _) in TASKS.items()},
    "linear": SpanOrNone(max_seq_length=32, max_query_length=12, doc_stride=8, n_best_size=6),
    "wide": BeamSpan(max_seq_length=40, max_query_length=12, start_n_top=40),
    "vectors": Embed(pooling="mean_sqrt", similarity="euclidean", max_seq_length=64),
    "first": Embed(pooling="cls", dense_units=5, dense_activation="relu", max_seq_length=64),
    "words": Tag(labels=("ADJ", "NOUN", "X"), max_seq_length=16),
    "labels": Classify(labels=THREE, max_seq_length=32),
    "multilabel": Classify(labels=THREE, multilabel=True, max_seq_length=16),
    "least": Classify(labels=THREE, multilabel=True, threshold=0.3, max_seq_length=16),
    "regression": Classify(max_seq_length=16),
    "mean": Classify(labels=THREE, windows="mean", doc_stride=9, max_seq_length=16),
    "max": Classify(labels=THREE, multilabel=True, windows="max", doc_stride=5, max_seq_length=16),
    "mean_number": Classify(windows="mean", max_seq_length=16),
    "max_number": Classify(windows="max", doc_stride=7, max_seq_length=16),
}
# Accents, digits before commas, other scripts, white space, marks alone, nothing.
ODD = [
    *("In 1990, Zoë's café — 3,000 ℃ ﬁsh!", "  two\t spaces \n", "", "\u0301", "中文字 ΟΔΟΣ हिन्दी"),
    *("the [MASK]ing [MASK] of[MASK]", "[MASK]", "😀 emoji's a\u00a0b", "\0x\0"),
    *("[MASK]\u3000dog [MASK]\vdog", LONG.replace(" ", ""), LONG),
]


def rows_of(kind):
    """Returns rows of odd texts, each of as many texts as a kind takes."""
    count = len(kind.text_names) + 2 * kind.takes_many
    rows = [[ODD[(i + k * 3) % len(ODD)] for k in range(count)] for i in range(len(ODD))]
    if "question" not in kind.text_names:
        return rows
    # In the last but one the release finds no places.
    contexts = (LONG, f"😀 {LONG} " * 3, "  the" + " " * 300 + "bridge", "a cat")
    return rows + [["who?", context] for context in contexts]


def features(shape):
    """Returns random sequences of two parts, with padding; the first takes a third."""
    ids = np.random.default_rng(7).integers(5, 6000, shape, np.int32)
    places = np.broadcast_to(np.arange(shape[-1]), shape)
    ids[places == shape[-1] // 3] = 3  # [SEP]
    segments, mask = places > shape[-1] // 3, places < shape[-1] - 2
    return {"input_ids": ids, "input_mask": np.int32(mask), "segment_ids": np.int32(segments)}


def model(kind, config):
    """Returns a model of a kind with random weights."""
    return randomise(model_class(type(kind))(config, **kind.model_arguments))


def config_for(vocabulary, **changes):
    """Returns a small config, by default of one layer."""
    size = vocabulary.tokenizer.vocab_size
    return goldens.config("base", vocab_size=size, **{"num_hidden_layers": 1, **changes})


def make(kind, vocabulary, **changes):
    """Returns a served model with random weights, of a kind or of a name in KINDS."""
    kind = KINDS[kind] if isinstance(kind, str) else kind
    return served_tasks.in_graph(model(kind, config_for(vocabulary, **changes)), vocabulary, kind)


def store(folder, kind, vocabulary):
    """Writes a model of a kind as a run does, with all that lies beside it; returns the prefix."""
    stored = tiny.store(folder, model(kind, config_for(vocabulary)), getattr(kind, "labels", ()))
    (folder / "spm.model").write_bytes(pathlib.Path(vocabulary.path).read_bytes())
    RunRecord({}, {}, task=TaskRecord(kind.task_name, kind.to_json())).write(str(folder))
    return stored


def in_tensorflow(served):
    """Returns a predictor that answers raw texts with a SavedModel's operations, run eagerly."""
    served.read_texts()
    signatures = {"serving_default": lambda **texts: served.answer_texts(**texts)}
    exported = types.SimpleNamespace(signatures=signatures)
    return predict.Predictor(served.kind, predict.Signature(served.kind, exported))


def assert_same_outputs(found, expected):
    """Compares outputs row by row; those of a batch may be padded with "" and 0."""
    assert len(found) == len(expected)
    for row, right in zip(found, expected, strict=True):
        assert set(row) == set(right)
        for name, value in right.items():
            value, whole = np.asarray(value), np.asarray(row[name])
            places = (..., *map(slice, value.shape))
            part = whole[places]
            assert np.count_nonzero(part) == np.count_nonzero(whole), name
            if value.dtype.kind in "OU":
                assert part.tolist() == value.tolist(), name
            else:
                assert (part.shape, part.dtype) == (value.shape, value.dtype), name
                np.testing.assert_allclose(part, value, rtol=1e-5, atol=1e-5, err_msg=name)


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
