"""MediaPipe's TextClassifier and TextEmbedder answer raw texts from our files as evaluation does.

Not tested here: MediaPipe's packages for Android and iOS, which read the same files.
"""

import sys

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.serving import mediapipe, other_formats, predict
from albert_tf.text import folder_ids
from albert_tf.text.sentence_piece import without_digit_commas
from albert_tf.text.vocabulary import Vocabulary
from tests.kit import tolerances
from tests.kit.served_tasks import ODD, make
from tests.serving.test_other_runtimes import program_of, run
from tests.serving.test_web_page import SCRIPTS, of_script, trained

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("eager")]
# C strings end at NUL.
TEXTS = [text.replace("\0", "") for text in ODD] + ["word " * 600]
LENGTH = 64


@pytest.fixture(scope="module")
def tasks():
    return pytest.importorskip("mediapipe.tasks.python.text")


@pytest.fixture(scope="module", params=[False, True], ids=["strips accents", "keeps accents"])
def words(request, tmp_path_factory):
    """Returns a vocabulary of ten scripts."""
    path = tmp_path_factory.mktemp("words") / "spiece.model"
    path.write_bytes(without_digit_commas(trained()))
    return Vocabulary.read(str(path), is_word_piece=False, keep_accents=request.param)


def embedded(tasks, path, texts):
    with tasks.TextEmbedder.create_from_model_path(str(path)) as model:
        return np.stack([model.embed(text).embeddings[0].embedding for text in texts])


@pytest.mark.parametrize("name", ["labels", "multilabel", "vectors"])
def test_answers(name, vocabulary, tasks, tmp_path):
    served = make(name, vocabulary, num_hidden_layers=2)
    mediapipe.save(served, tmp_path / "model")
    path = tmp_path / "model" / mediapipe.MEDIAPIPE_FILE
    texts = TEXTS + [text for script in SCRIPTS for text in of_script(script, 30)]
    expected = predict.from_model(served).outputs([[text] for text in texts])
    if name == "vectors":
        found, right = embedded(tasks, path, texts), [each["embedding"] for each in expected]
    else:
        with tasks.TextClassifier.create_from_model_path(str(path)) as model:
            heads = [model.classify(text).classifications for text in texts]
        shares = [{each.category_name: each.score for each in head.categories} for (head,) in heads]
        found = [[share[label] for label in served.kind.labels] for share in shares]
        right = [each["probabilities"] for each in expected]
    same = np.abs(np.array(found) - right).max(axis=1) < tolerances.OUTPUT
    differing = mediapipe._differing(served, folder_ids.standing_alone(vocabulary.tokenizer), texts)
    assert [text for text, is_same in zip(texts, same, strict=True) if not is_same] == differing
    assert differing == []


def test_ids_of_ten_scripts(words, tasks, tmp_path):
    """A model that returns its inputs shows MediaPipe's ids, mask and segments."""
    served = make("vectors", words)
    specs = {name: tf.TensorSpec([1, LENGTH], tf.int32, name) for name in mediapipe._INPUTS}
    function = tf.function(
        lambda **features: {"fed": tf.cast(tf.concat([*features.values()], 1), tf.float32)},
        autograph=False,
    ).get_concrete_function(**specs)
    model = folder_ids.standing_alone(words.tokenizer)
    content = other_formats.to_tflite(function, is_int8=False)
    path = tmp_path / "fed.tflite"
    path.write_bytes(mediapipe._described(content, {mediapipe._TOKENIZER_FILE: model}))
    texts = TEXTS + [text for script in SCRIPTS for text in of_script(script, 100)]
    differing, ties = [], []
    counted = mediapipe._differing(served, model, texts)
    for text, fed in zip(texts, embedded(tasks, path, texts), strict=True):
        (row,) = served.kind.rows(words.tokenizer, text)
        padded = [np.pad(row[name], (0, LENGTH - len(row[name]))) for name in mediapipe._INPUTS]
        if not np.array_equal(fed, np.concatenate(padded)):
            is_tie = text not in counted and np.array_equal(sorted(fed), sorted(np.hstack(padded)))
            (ties if is_tie else differing).append(text)
    # MediaPipe may take the other of two splits with equal scores, as of three equal letters.
    assert differing == counted and len(ties) <= 2
    # Marks that stay are joined to their letter only where they are one character with it.
    others = [text for text in differing if "Σ" not in text]
    assert len(differing) <= 20 and len(others) <= 10 * words.tokenizer.keep_accents


def test_the_program_of_the_docs(vocabulary, tasks, tmp_path):
    served = make("labels", vocabulary)
    mediapipe.save(served, tmp_path / "model")
    said = run(sys.executable, "-c", program_of("MediaPipe", tmp_path / "model"))
    found = dict(line.split(": ") for line in said.splitlines())
    (answer,) = predict.load_exported(tmp_path / "model")(["A warm film"])
    assert {name: float(share) for name, share in found.items()} == pytest.approx(
        answer["probabilities"], abs=tolerances.OUTPUT
    )
