"""run_finetune.py on weights that are already fine-tuned: their classes, and in which order."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.answers.classify import MULTI_LABEL
from albert_tf.conversion import labels as labels_file
from albert_tf.conversion.convert import convert
from albert_tf.storage import checkpoint
from albert_tf.tasks.glue import GLUE_TASKS, read_glue
from tests.kit import finetune_runs as runs
from tests.kit import tiny, tolerances
from tests.kit.files import refused
from tests.kit.tiny import randomise

CLASSES = GLUE_TASKS["mnli"].labels
# For each row of the head, the index of its class in CLASSES.
ORDER = (1, 2, 0)
NAMED = tuple(CLASSES[i] for i in ORDER)
OTHERS = ("entailment", "neutral", "refutation")
HEAD = ("output_weights", "output_bias")


def write(folder: pathlib.Path, labels: tuple[str, ...], order=ORDER) -> pathlib.Path:
    """Writes a classifier, its head's rows in this order, with its classes' names beside it."""
    folder.mkdir(parents=True)
    config = albert_tf.AlbertConfig.from_json_file(runs.write_config(folder))
    model = randomise(albert_tf.AlbertForSequenceClassification(config, num_labels=3))
    weights = tiny.weights(model)
    weights |= {name: weights[name][list(order)] for name in HEAD}
    checkpoint.write(str(folder / "model.ckpt-best"), {**weights, "global_step": np.int64(7)})
    (folder / "tiny.json").rename(folder / "albert_config.json")
    if labels:
        labels_file.write(str(folder), labels)
    return folder


def command(task: str, folder: pathlib.Path, weights: pathlib.Path | None, **changes) -> list[str]:
    folder.mkdir(exist_ok=True)
    given = {"from_scratch": None, "init_checkpoint": weights, "albert_config_file": None}
    return runs.command(task, folder, **given, **changes)


def results(folder: pathlib.Path) -> tuple[np.ndarray, str, str]:
    out = folder / "out"
    scores = (out / "eval_results.txt").read_text().split("\n", 1)[1]
    return np.loadtxt(out / "test_results.tsv"), (out / "MNLI-m.tsv").read_text(), scores


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> pathlib.Path:
    """Predictions of weights in the task's own order, with no names of classes beside them."""
    folder = tmp_path_factory.mktemp("expected")
    weights = write(folder / "weights", (), range(3))
    runs.main(command("mnli", folder, weights, do_eval=True, do_predict=True))
    return folder


@pytest.mark.parametrize(
    ("where", "labels", "order"),
    [
        ("weights", NAMED, ORDER),
        ("out", NAMED, ORDER),
        ("huggingface", NAMED, ORDER),
        ("huggingface", (), range(3)),  # Default names like LABEL_0 say nothing.
    ],
)
def test_classes_in_another_order_predict_the_same(where, labels, order, expected, tmp_path):
    weights = write(tmp_path / ("ours" if where == "huggingface" else where), labels, order)
    if where == "huggingface":
        convert(str(weights), where, str(tmp_path / where))
        assert ("LABEL_0" in (tmp_path / where / "config.json").read_text()) == (not labels)
    start = None if where == "out" else tmp_path / where
    runs.main(command("mnli", tmp_path, start, do_eval=True, do_predict=True))
    (mine, answers, scores), (theirs, *others) = results(tmp_path), results(expected)
    assert np.abs(theirs - theirs[:, ORDER]).max() > 0.1, "the order matters"
    np.testing.assert_allclose(mine, theirs, atol=tolerances.OUTPUT)
    assert answers == others[0]
    assert scores.splitlines()[:2] == others[1].splitlines()[:2]


@pytest.mark.slow
def test_an_export_has_the_tasks_order_and_reads_text_as_given(expected, saved, tmp_path):
    weights = write(tmp_path / "weights", NAMED)
    runs.main(command("mnli", tmp_path, weights, export_dir=tmp_path / "exported"))
    saved[0].read_texts()
    examples = read_glue("mnli", runs.GOLDEN / "features/glue_data", "test")
    texts = {name: [getattr(each, name) for each in examples] for name in ("text_a", "text_b")}
    answers = saved[0].answer_texts(**{name: tf.constant(each) for name, each in texts.items()})
    assert answers["labels"].numpy()[0].tolist() == [name.encode() for name in CLASSES]
    probabilities = results(expected)[0]
    np.testing.assert_allclose(answers["probabilities"], probabilities, atol=tolerances.SUBLAYER)
    form = {"do_lower_case": False, "keep_accents": True}
    runs.main(command("mnli", tmp_path, weights, export_dir=tmp_path / "exported", **form))
    _, served = saved
    assert served.vocabulary.form == (False, True) and served.kind.labels == CLASSES


@pytest.mark.slow
def test_a_student_learns_from_its_teachers_best_whatever_the_order_of_its_classes(tmp_path, eager):
    """The order is a cycle of three classes, so that its inverse is a different order."""
    learned = []
    for name, labels, order in (("own", CLASSES, range(3)), ("other", NAMED, ORDER)):
        teacher = write(tmp_path / name, labels, order)
        shutil.copy(runs.GOLDEN / "spm/en_small.model", teacher / "spiece.model")
        if name == "other":
            best = checkpoint.read(str(teacher / "model.ckpt-best"))
            checkpoint.save(str(teacher), 9, {key: 0 * value for key, value in best.items()}, 0)
        (tmp_path / f"{name}_student").mkdir()
        changes = {"do_train": True, "train_step": 1, "warmup_step": None, "teacher": teacher}
        changes |= {"distillation_weight": 1.0, "output_dir": tmp_path / name / "out"}
        runs.main(runs.command("mnli", tmp_path / f"{name}_student", **changes))
        learned.append(checkpoint.read(str(tmp_path / name / "out" / "model.ckpt-1")))
    for name, value in learned[0].items():
        np.testing.assert_allclose(learned[1][name], value, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("step", ["do_eval", "do_predict", "export_dir"])
def test_other_classes_are_one_line_without_training(step, tmp_path):
    weights = write(tmp_path / "weights", OTHERS)
    value = tmp_path / "exported" if step == "export_dir" else True
    with refused(f"{', '.join(OTHERS)}, .*{', '.join(CLASSES)}: .*--do_train.*labels.jsonl"):
        runs.main(command("mnli", tmp_path, weights, **{step: value}))


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("labels", [(), OTHERS, NAMED])
def test_training_starts_from_the_head_of_these_classes(labels, tmp_path, caplog):
    """With a learning rate of almost nothing the weights stay as they are."""
    weights = write(tmp_path / "weights", labels)
    changes = {"do_train": True, "train_step": 1, "learning_rate": 1e-12}
    runs.main(command("mnli", tmp_path, weights, **changes))
    begun = checkpoint.read(str(tmp_path / "out" / "model.ckpt-1"))
    stored = checkpoint.read(str(weights / "model.ckpt-best"))
    ids = [NAMED.index(name) for name in CLASSES] if labels == NAMED else list(range(3))
    for name in HEAD:
        assert np.allclose(begun[name], stored[name][ids], atol=1e-6) == (labels != OTHERS)
    said = f"has the head of another task (classes {', '.join(OTHERS)}), which is not loaded"
    assert (said in caplog.text) == (labels == OTHERS)


def write_files(task: str, folder: pathlib.Path) -> dict[str, pathlib.Path | None]:
    files = {name: folder / f"{name}.csv" for name in ("train", "test")}
    if task == "token_classification":
        files = {name: folder / f"{name}.conll" for name in files}
        files["train"].write_text("the x\ncat y\nsat z\n")
        files["test"].write_text("a\ncat\nsat\n")
    else:
        files["train"].write_text("text,label\nthe cat,x\na dog,y\nthe end,z\n")
        files["test"].write_text("text\na cat\nthe dog\n")
    return {"data_dir": None, "train_file": files["train"], "predict_file": files["test"]}


def probabilities(folder: pathlib.Path) -> list[list[float]]:
    return json.loads((folder / "out" / "test_probabilities.json").read_text())["probabilities"]


@pytest.mark.slow
@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("task", ["multilabel", "token_classification"])
def test_classes_are_found_beside_the_weights(task, tmp_path):
    files = write_files(task, tmp_path)
    first, again, swapped = (tmp_path / name for name in ("first", "again", "swapped"))
    first.mkdir()
    swapped.mkdir()
    changes = {"do_train": True, "train_step": 1, "train_batch_size": 1, "learning_rate": 0.1}
    runs.main(runs.command(task, first, **files, **changes, do_predict=True))
    expected = probabilities(first)
    weights = first / "out" / "model.ckpt-1"
    runs.main(command(task, again, weights, **files, do_predict=True))
    np.testing.assert_allclose(probabilities(again), expected, atol=tolerances.OUTPUT)
    # The names in output_dir come first, and the weights are put into their order.
    stored = checkpoint.read(str(weights))
    stored |= {name: stored[name][[2, 0, 1]] for name in HEAD}
    checkpoint.write(str(swapped / "model.ckpt-best"), stored)
    labels_file.write(str(swapped), ("z", "x", "y"))
    shutil.copy(first / "out" / "albert_config.json", swapped)
    labels_file.write(str(again / "out"), ("x", "y", "z"))
    runs.main(command(task, again, swapped, **files, do_predict=True))
    np.testing.assert_allclose(probabilities(again), expected, atol=tolerances.OUTPUT)


@pytest.mark.parametrize("trained", ["multilabel", "token_classification"])
def test_a_head_that_means_something_else_is_one_line(trained, tmp_path):
    """Its weights would fit, and predict nonsense."""
    there = tmp_path / "there"
    write(there / "out", ("x", "y", "z"))
    kind = "" if trained == "token_classification" else MULTI_LABEL
    tiny.fine_tuned(trained, kind).write(str(there / "out"))
    files = write_files("classification", tmp_path) | {"do_predict": True}
    # Without names of the classes anywhere, the error asks for them.
    weights = write(tmp_path / "weights", ())
    with refused("out/labels.jsonl does not exist"):
        runs.main(command("classification", tmp_path, weights, **files))
    message = f"there/out.* was trained for another task .{trained}.* before, classif"
    with refused(message):
        runs.main(runs.command("classification", there, **files, from_scratch=None))
    with refused(message):
        runs.main(command("classification", tmp_path, there / "out", **files))
