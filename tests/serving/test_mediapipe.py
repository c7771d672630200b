"""--format=mediapipe: what is refused, counted, read again; peers/test_mediapipe.py runs it."""

import logging

import numpy as np
import pytest

from albert_tf.answers.classify import Classify
from albert_tf.answers.embed import Embed
from albert_tf.cli import export as export_command
from albert_tf.serving import mediapipe, predict
from albert_tf.text.vocabulary import Vocabulary
from tests.kit import tolerances
from tests.kit.files import refused
from tests.kit.served_tasks import LONG, THREE, make, store
from tests.kit.tiny import run_main
from tests.text.vocabularies import trained

pytestmark = pytest.mark.usefixtures("eager")
TEXTS = ["The Cat sat, in 1,990", "", LONG]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("tag", "no task tag, only classify and embed"),
        ("classify", "not pairs"),
        ("regression", "no regression"),
        ("mean", "`windows`"),
        ("embed", "`default_prompt`"),
    ],
)
def test_what_mediapipe_lacks_is_refused(kind, fault, vocabulary, tmp_path):
    with refused(f"`format=mediapipe`.* {fault}", tmp_path, exception=ValueError):
        mediapipe.save(make(kind, vocabulary), tmp_path / "model")


def test_a_cased_or_deep_model_is_refused(vocabulary, tmp_path):
    cased = Vocabulary.read(vocabulary.path, is_word_piece=False, do_lower_case=False)
    for served, fault in (
        (make("labels", cased), "the model is cased"),
        (make("labels", vocabulary, num_hidden_layers=25), "can't run more than 24 layers"),
    ):
        with refused(fault, tmp_path, exception=ValueError):
            mediapipe.save(served, tmp_path / "model")
    served = make("labels", vocabulary, num_hidden_layers=2)
    served.depths = (1,)
    with refused("`depths`", tmp_path, exception=ValueError):
        mediapipe.save(served, tmp_path / "model")


@pytest.mark.parametrize("name", ["labels", "multilabel", "vectors"])
def test_a_file_answers_as_its_model(name, vocabulary, tmp_path):
    served = make(name, vocabulary)
    written = mediapipe.save(served, tmp_path / "model")
    assert written.drift.largest < tolerances.OUTPUT < written.drift.spread
    assert (written.texts, written.differing) == (5, [])
    found = predict.load_exported(tmp_path / "model").outputs([[text] for text in TEXTS])
    expected = predict.from_model(served).outputs([[text] for text in TEXTS])
    result = "embedding" if name == "vectors" else "probabilities"
    for ours, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours[result], right[result], atol=tolerances.OUTPUT)
        assert ours.get("label") == right.get("label")


def test_probabilities_that_round_to_0_and_1_are_read(vocabulary, tmp_path):
    served = make("multilabel", vocabulary)
    numbers = served.numbers
    served.numbers = lambda features: {"logits": 1e4 * numbers(features)["logits"]}
    mediapipe.save(served, tmp_path / "model")
    (answer,) = predict.load_exported(tmp_path / "model")(["a cat"])
    assert {round(share, 6) for share in answer["probabilities"].values()} <= {0, 1}


def test_the_log_counts_texts_whose_ids_differ(tmp_path, caplog):
    path = tmp_path / "spm.model"
    # Its pieces have the final sigma, which no table that maps single characters can produce.
    path.write_bytes(trained(["οδος του πλοιου, 0123456789"] * 99, vocab_size=60))
    words = Vocabulary.read(str(path), is_word_piece=False)
    stored = store(tmp_path / "model", Classify(labels=THREE, max_seq_length=16), words)
    dev = tmp_path / "dev.csv"
    dev.write_text("text,label\nΟΔΟΣ,one\nὁδός,two\nο σεισμός,three\n")
    options = {"task": "classify", "format": "mediapipe", "eval_file": dev}
    argv = [f"--{name}={value}" for name, value in options.items()]
    with caplog.at_level(logging.INFO, "absl"):
        run_main(
            export_command.main, [f"--model={stored}", f"--export_dir={tmp_path / 'x'}", *argv]
        )
    assert "ids differ from evaluation's for 1 of 8 texts, as for 'ΟΔΟΣ'" in caplog.text


def test_vectors_without_their_prompt_are_the_models(vocabulary, tmp_path):
    kind = Embed(query_prompt="find: ", max_seq_length=16)
    mediapipe.save(make(kind, vocabulary), tmp_path / "model")
    assert predict.load_exported(tmp_path / "model").kind == kind
