"""--teacher: a student learns the probabilities of a fine-tuned model of another vocabulary."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import albert_tf
from albert_tf.config import AlbertConfig
from albert_tf.conversion import bundles, named_weights
from albert_tf.storage import bundle
from albert_tf.storage.run_record import RunRecord, TaskRecord
from albert_tf.tasks.conll import TokenExample
from albert_tf.tasks.distillation import Teacher
from albert_tf.tasks.feature_table import FeatureTable
from albert_tf.tasks.losses import Distillation, classification_loss
from albert_tf.tasks.supervised import ModelOptions
from albert_tf.training.length_buckets import evaluation_batches
from albert_tf.training.tensorflow_devices import TensorFlowDevices
from tests.kit import finetune_runs as runs
from tests.kit import tiny
from tests.kit.files import refused

pytestmark = pytest.mark.usefixtures("counted")


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def test_the_loss_is_hintons():
    rng = np.random.default_rng(3)
    ours, theirs = (rng.normal(size=(7, 4)).astype("float32") for _ in range(2))
    labels = rng.integers(0, 4, 7)
    hard = np.asarray(classification_loss(labels, ours))
    found = Distillation(0.3, 2.5).mix(hard, softmax(theirs), ours)
    soft = -(softmax(theirs / 2.5) * np.log(softmax(ours / 2.5))).sum(axis=-1)
    np.testing.assert_allclose(found, 0.7 * hard + 0.3 * 2.5**2 * soft, rtol=2e-6)
    # Even with a teacher's probabilities of 0 and 1, losses are finite.
    sure = Distillation(1.0, 1.0).mix(hard, np.eye(4, dtype="float32")[labels], ours)
    np.testing.assert_allclose(sure, hard, rtol=2e-6)
    mixed = Distillation(0.0, 1.0).mix(hard, softmax(theirs), ours)
    assert ops.convert_to_numpy(mixed) == pytest.approx(hard)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> pathlib.Path:
    """A run on MRPC, with a WordPiece vocabulary and a larger model."""
    folder = tmp_path_factory.mktemp("teacher")
    words = ["the", "of", "a", "to", "in", "and", "said", "was", "on", "that"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *map(chr, range(97, 123))]
    pieces += [f"##{chr(i)}" for i in range(97, 123)]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)))
    size = len(dict.fromkeys(pieces))
    config = runs.write_config(folder, vocab_size=size, hidden_size=8)
    changes = {"spm_model_file": None, "vocab_file": folder / "vocab.txt", "do_train": True}
    runs.main(runs.command("mrpc", folder, do_eval=True, albert_config_file=config, **changes))
    return folder / "out"


def weights(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return bundle.read(str(folder / "out" / "model.ckpt-4"))


@pytest.mark.slow
def test_a_student_learns_from_stored_probabilities(teacher, tmp_path, monkeypatch):
    changes = {"do_train": True, "teacher": teacher, "distillation_weight": 0.9}
    first, again = tmp_path / "first", tmp_path / "again"
    for folder in (first, again):
        folder.mkdir()
    runs.main(runs.command("mrpc", first, **changes))
    (stored,) = (first / "features").glob("teacher-*/train_probabilities.json")
    rows = json.loads(stored.read_text())["probabilities"]
    np.testing.assert_allclose(np.sum(rows, axis=1), 1, atol=1e-6)
    # Stored probabilities are read, not recomputed: others make another student.
    shutil.copytree(first / "features", again / "features")
    runs.main(runs.command("mrpc", again, **changes))
    for name, value in weights(first).items():
        np.testing.assert_array_equal(weights(again)[name], value)
    shutil.rmtree(again / "out")
    content = json.loads(stored.read_text())
    content["probabilities"] = [row[::-1] for row in rows]
    (again / "features" / stored.parent.name / stored.name).write_text(json.dumps(content))
    runs.main(runs.command("mrpc", again, **changes))
    kernel = "bert/embeddings/word_embeddings"
    assert np.abs(weights(again)[kernel] - weights(first)[kernel]).max() > 0
    # If one of two workers doesn't see the file, both compute them again; they do see the run.
    answers = iter([True, False])
    monkeypatch.setattr(TensorFlowDevices, "any_process", lambda *_: next(answers))
    shutil.rmtree(again / "out")
    runs.main(runs.command("mrpc", again, **changes))
    np.testing.assert_array_equal(weights(again)[kernel], weights(first)[kernel])


OWN = {"task": "classify", "labels": ["0", "1"]}


@pytest.mark.parametrize(
    ("task", "changes", "record", "message"),
    [
        ("mrpc", {"teacher": "nowhere"}, None, "there is no checkpoint nowhere"),
        ("squad_v1", {}, None, "--teacher applies only"),
        ("sts-b", {}, None, "--teacher applies only"),
        # Both tasks have the classes 0 and 1.
        ("wnli", {}, None, "trained for mrpc"),
        ("mnli", {}, None, "trained for mrpc"),
        # The head would fit, but was trained for several labels per text, or for tags.
        ("mrpc", {}, ("multilabel", {**OWN, "multilabel": True}), "trained for multilabel"),
        ("mrpc", {}, ("token_classification", {"task": "tag"}), "trained for token_classification"),
        # mnli and mismnli count as one task: only the classes differ here.
        ("mnli", {}, ("mismnli", OWN), "the classes 0, 1, but"),
    ],
)
def test_what_can_not_be_learned_is_one_line(task, changes, record, message, teacher, tmp_path):
    if record:
        teacher = shutil.copytree(teacher, tmp_path / "other")
        RunRecord({}, {}, task=TaskRecord(*record)).write(str(teacher))
    with refused(message):
        runs.main(runs.command(task, tmp_path, do_train=True, **{"teacher": teacher, **changes}))


def test_a_teacher_must_have_learned_the_task(teacher, tmp_path):
    bare = shutil.copytree(teacher, tmp_path / "bare")
    (bare / "vocab.txt").unlink()
    config = AlbertConfig.from_json_file(teacher / "albert_config.json")
    weights = named_weights(albert_tf.AlbertForPreTraining(config))
    bundles.write(str(tmp_path), config, {name: np.array(w) for name, w in weights.items()})
    for path, message in ((bare, "has no vocabulary beside it"), (tmp_path, "fine-tune it first")):
        with refused(f"--teacher .*{message}"):
            runs.main(runs.command("mrpc", tmp_path, do_train=True, teacher=path))


def test_a_teacher_reads_texts_as_in_its_own_run(teacher, tmp_path):
    """It keeps its own maximum length and windows, whatever the student's are."""
    own = shutil.copytree(teacher, tmp_path / "own")
    record = json.loads((own / "run.json").read_text())
    config = AlbertConfig.from_json_file(own / "albert_config.json")
    for reading in ({"max_seq_length": 13}, {"max_seq_length": 11, "windows": "max"}):
        known = {"task": "classify", "labels": ["0", "1"], **reading, "doc_stride": 3}
        record["task"]["kind"] = known
        (own / "run.json").write_text(json.dumps(record))
        task = tiny.task("classification", None, "01", ModelOptions(config), max_seq_length=9)
        before = task.kind
        made = Teacher(str(own), task, Distillation(0.5, 2.0), 4, "mrpc")
        assert made._task.kind == before.replace(**reading, doc_stride=3)
        assert task.kind == before
    # Without a record, it reads them as the student does.
    (own / "run.json").unlink()
    made = Teacher(str(own), task, Distillation(0.5, 2.0), 4, "mrpc")
    assert made._task.kind == task.kind


def test_words_get_their_teachers_probabilities(golden):
    tokenizer = albert_tf.Tokenizer(golden / "spm" / "en_small.model")
    task = tiny.task("token_classification", tokenizer, ("O", "A", "B"), max_seq_length=9)
    task.distillation = Distillation(0.6, 1.5)
    sentences = [("heavens", "and", "\x01", "the", "earth", "were"), ("void", "darkness")]
    examples = [
        TokenExample(str(i), words, tuple(j % 3 for j in range(len(words))))
        for i, words in enumerate(sentences)
    ]
    rng = np.random.default_rng(2)
    theirs = softmax(rng.normal(size=(8, 3)))
    features = FeatureTable.from_rows(task.rows(examples, True))
    features = task.with_probabilities(examples, features, theirs)
    plan = evaluation_batches(features.lengths, len(features.lengths), (9,))
    (make,) = features.evaluation_inputs(plan)
    batch = next(iter(make(tf.distribute.InputContext(1, 0, 1))))
    logits = rng.normal(size=(*batch["input_ids"].shape, 3)).astype("float32")
    found = task.example_losses(logits, batch)["classification_loss"].numpy()
    firsts = [0, len(sentences[0])]
    words_read = 0
    for row, index in enumerate(batch["example_index"].numpy()):
        expected = 0.0
        for position, number in enumerate(batch["word_numbers"].numpy()[row]):
            if number:
                word, ours = firsts[index] + number - 1, logits[row, position]
                soft = softmax(np.log(theirs[word]) / 1.5) @ np.log(softmax(ours / 1.5))
                hard = np.log(softmax(ours))[examples[index].labels[number - 1]]
                expected -= 0.4 * hard + 0.6 * 1.5**2 * soft
                words_read += 1
        assert found[row] == pytest.approx(expected, rel=1e-5)
    assert words_read == 7  # All but the one without pieces.
