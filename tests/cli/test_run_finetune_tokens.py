"""run_finetune.py --task_name=token_classification, on a few sentences learned by heart.

Killed runs: test_run_finetune.py; resumed ones of this task: test_run_finetune_jax.py.
"""

import importlib.util
import json
import pathlib
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities

from albert_tf.conversion import labels as labels_file
from albert_tf.training.evaluation import Trial
from tests.kit import finetune_runs as runs
from tests.kit.files import refused

CLASSES = ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")
SENTENCES = (
    "Anna B-PER|Smith I-PER|lives O|in O|New B-LOC|York I-LOC|. O",
    "in O|York B-LOC|lives O|Smith B-PER|. O",
    # Longer than `max_seq_length`, so that it takes several windows.
    "|".join(["The O|House O|of O|Anna B-PER|Smith I-PER|and O"] * 9),
    "Smith B-PER|\x01 O|of O|York B-LOC",
    "the O|Capital O|of O|New B-LOC|York I-LOC",
)


def write(path: pathlib.Path, sentences=SENTENCES, columns: int = 2) -> pathlib.Path:
    rows = [[word.split(" ") for word in each.split("|")] for each in sentences]
    text = "\n".join("".join(" ".join(row[:columns]) + "\n" for row in each) for each in rows)
    path.write_text(text)
    return path


def command(folder: pathlib.Path, **changes) -> list[str]:
    names = {"train_file": "train", "eval_file": "dev", "predict_file": "new"}
    files = {flag: folder / f"{name}.conll" for flag, name in names.items()}
    defaults = {"data_dir": None, "max_seq_length": 19, "learning_rate": 0.03, "dropout_prob": 0}
    defaults |= {"train_step": 60, "warmup_step": 5, "save_checkpoints_steps": 30}
    return runs.command("token_classification", folder, **defaults, **files, **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> pathlib.Path:
    """A finished run; its folder is not to be written to."""
    folder = tmp_path_factory.mktemp("tokens")
    for name, columns in (("train", 2), ("dev", 2), ("new", 1)):
        write(folder / f"{name}.conll", columns=columns)
    runs.main(command(folder, do_train=True, do_eval=True, do_predict=True))
    return folder


def columns(path: pathlib.Path) -> list[list[list[str]]]:
    return [
        [line.split("\t") for line in block.splitlines()]
        for block in path.read_text().rstrip("\n").split("\n\n")
    ]


def test_it_learns_and_writes_what_it_predicts(trained):
    out = trained / "out"
    assert labels_file.read(str(out)) == CLASSES
    dev = columns(out / "dev_predictions.conll")
    words = [[word.split(" ") for word in each.split("|")] for each in SENTENCES]
    assert [[cells[:2] for cells in each] for each in dev] == words
    expected, predicted = ([[cells[i] for cells in each] for each in dev] for i in (1, 2))
    trial = Trial.read(str(out))
    assert trial.best_value == f1_score(expected, predicted) > 0.5
    new = columns(out / "predictions.conll")
    first = [[[cells[0] for cells in each] for each in table] for table in (new, dev)]
    assert first[0] == first[1], "no word is lost"
    assert [[cells[1] for cells in each] for each in new] == predicted
    assert not (out / "test_scores.txt").exists()


def test_scores_of_types_and_confusions(trained):
    out = trained / "out"
    dev = [word for each in columns(out / "dev_predictions.conll") for word in each]
    ((header, *rows),) = columns(out / "dev_confusion.tsv")
    assert header == ["", *CLASSES] and [row[0] for row in rows] == list(CLASSES)
    counts = {(row[0], tag): int(row[i + 1]) for row in rows for i, tag in enumerate(CLASSES)}
    assert sum(counts.values()) == len(dev)
    for (true, found), count in counts.items():
        assert count == sum(cells[1:] == [true, found] for cells in dev)
    ((header, *rows),) = columns(out / "dev_scores_by_type.tsv")
    assert header == ["type", "precision", "recall", "f1-score", "support"]
    starts = [cells[1] for cells in dev]
    expected = {kind: starts.count(f"B-{kind}") for kind in ("LOC", "PER")}
    assert {row[0]: int(row[4]) for row in rows} == expected
    assert "\nf1 = " in (out / "eval_results.txt").read_text()


def test_an_ensemble_averages_and_scores_a_labelled_file(trained, tmp_path):
    """The members are a run, and a model that takes each word for the opposite one."""
    other = tmp_path / "other"
    other.mkdir()
    labels_file.write(str(other), CLASSES)
    stored = json.loads((trained / "out/dev_probabilities.json").read_text())
    mine = np.array(stored["probabilities"])
    theirs = mine[::-1]
    found_by = [each.argmax(axis=1).tolist() for each in (mine, theirs, mine + theirs)]
    assert found_by[2] not in found_by[:2]
    stored["probabilities"] = theirs.tolist()
    (other / "test_probabilities.json").write_text(json.dumps(stored))
    shutil.copytree(trained / "out", tmp_path / "mine")
    shutil.copy(trained / "out/dev_probabilities.json", tmp_path / "mine/test_probabilities.json")
    args = command(tmp_path, do_predict=True, spm_model_file=None)
    args += [f"--predict_file={trained}/dev.conll"]
    runs.main([*args, f"--ensemble_dirs={tmp_path}/mine,{other}"])
    found = [c[2] for each in columns(tmp_path / "out/predictions.conll") for c in each]
    assert found == [CLASSES[i] for i in (mine + theirs).argmax(axis=1)]
    assert "\nf1 = " in (tmp_path / "out/test_scores.txt").read_text()
    assert (tmp_path / "out/confusion.tsv").exists()


def test_bad_input_ends_before_training(tmp_path):
    write(tmp_path / "train.conll")
    write(tmp_path / "dev.conll", ("in O|York B-CITY",))
    with refused("dev.conll:2: label 'B-CITY' is not one of .*: O,", tmp_path / "out"):
        runs.main(command(tmp_path, do_train=True, do_eval=True))


@pytest.fixture
def without_seqeval(monkeypatch):
    find_spec = importlib.util.find_spec
    found = {"seqeval": None}
    monkeypatch.setattr(importlib.util, "find_spec", lambda x, *_: found.get(x, find_spec(x)))
    monkeypatch.setitem(sys.modules, "seqeval.metrics", None)


def test_without_seqeval_a_run_that_would_need_it_does_not_begin(tmp_path, without_seqeval):
    write(tmp_path / "train.conll")
    write(tmp_path / "dev.conll")
    with refused("the package 'seqeval'", tmp_path / "out"):
        runs.main(command(tmp_path, do_train=True, do_eval=True))


@pytest.mark.slow
@pytest.mark.usefixtures("counted")
def test_a_student_learns_without_seqeval(trained, tmp_path, without_seqeval):
    """The teacher's predictions of the training set are not scored."""
    write(tmp_path / "train.conll")
    runs.main([*command(tmp_path, do_train=True, teacher=trained / "out"), "--train_step=2"])
    assert (tmp_path / "out" / "model.ckpt-2.index").exists()


@pytest.mark.slow
def test_its_export_answers_as_it_predicted(trained, saved, tmp_path):
    """Raw text is split into the words of the file, and tagged alike. Nothing is written here."""
    shutil.copytree(trained / "out", tmp_path / "out")
    args = command(trained, from_scratch=None, export_dir=tmp_path / "exported")
    runs.main([*args, f"--output_dir={tmp_path}/out"])
    sentences = columns(trained / "out/dev_predictions.conll")
    texts = [" ".join(cells[0] for cells in each) for each in sentences]
    saved[0].read_texts()
    answers = saved[0].answer_texts(text=tf.constant(texts))
    for row, each in enumerate(sentences):
        expected = [
            (" ".join(cells[0] for cells in each[first : last + 1]), kind)
            for kind, first, last in get_entities([cells[2] for cells in each])
        ]
        found = zip(answers["entities"][row].numpy(), answers["types"][row].numpy(), strict=True)
        assert [(a.decode(), b.decode()) for a, b in found if a] == expected
    assert tf.math.count_nonzero(answers["types"] != "") > 10
