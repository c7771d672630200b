"""run_finetune.py: its flags, what it writes, where a run starts and goes on.

RACE and SQuAD 2.0 are trained in test_release_commands.py.
`main` is called in this process. A kill is an exception here: what a killed process leaves on disk
is tested with the same Trainer in test_run_pretraining_processes.py.
"""

import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.cli import finetune
from albert_tf.cli.run_directory import RunDirectory
from albert_tf.config import AlbertConfig
from albert_tf.conversion import labels as labels_file
from albert_tf.conversion import named_weights
from albert_tf.storage import checkpoint, eval_results
from albert_tf.tasks import supervised
from albert_tf.tasks.glue import TextExample, read_glue
from albert_tf.training.evaluation import Trial
from albert_tf.training.progress import ProgressLog
from albert_tf.training.trainer import Trainer
from tests.kit import finetune_runs as runs
from tests.kit import pretraining_runs, tiny, tolerances
from tests.kit.files import refused


def test_what_a_run_on_glue_leaves_behind(mrpc):
    out = mrpc / "out"
    names = {path.name for path in out.iterdir()} - {path.name for path in out.glob("events*")}
    checkpoints = tiny.checkpoint_files(2, 4, "best")
    others = "MRPC.tsv albert_config.json best_trial.txt checkpoint dev_probabilities.json eval "
    others += "eval_results.jsonl eval_results.txt labels.jsonl run.json run.lock spiece.model "
    others += "tokenizer_config.json test_probabilities.json test_results.tsv"
    assert names == checkpoints | {*others.split()}
    rows = np.loadtxt(out / "test_results.tsv")
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-12)
    header, *lines = (out / "MRPC.tsv").read_text().splitlines()
    assert header == "index\tprediction"
    assert lines == [f"{i}\t{row.argmax()}" for i, row in enumerate(rows)]
    trial = Trial.read(str(out))
    accuracies = [each.metrics["eval_accuracy"] for each in eval_results.read_all(str(out))]
    assert trial.last_step == 4 and trial.best_value == max(accuracies)
    assert trial.best_step == (2, 4)[accuracies.index(max(accuracies))]
    best = checkpoint.read(str(out / f"model.ckpt-{trial.best_step}"))
    kept = checkpoint.read(str(out / "model.ckpt-best"))
    assert all(np.array_equal(kept[name], best[name]) for name in best)


@pytest.fixture(scope="module")
def exported(mrpc, tmp_path_factory) -> pathlib.Path:
    """A folder with a copy of the MRPC run's out, and an export of its best checkpoint."""
    folder = tmp_path_factory.mktemp("exported")
    out = shutil.copytree(mrpc / "out", folder / "out")
    command = runs.command("mrpc", mrpc, from_scratch=None, export_dir=folder / "exported")
    runs.main([*command, f"--output_dir={out}", "--threshold_to_export=0.5"])
    return folder


def test_export_answers_as_the_best_checkpoint_predicted(mrpc, exported):
    serve = tf.saved_model.load(str(exported / "exported")).signatures["serving_default"]
    examples = read_glue("mrpc", runs.GOLDEN / "features/glue_data", "test")
    texts = {name: [getattr(each, name) for each in examples] for name in ("text_a", "text_b")}
    answers = serve(**{name: tf.constant(each) for name, each in texts.items()})
    expected = np.loadtxt(mrpc / "out/test_results.tsv")
    np.testing.assert_allclose(answers["probabilities"], expected, rtol=0, atol=tolerances.SUBLAYER)
    labels = [b"1" if row[1] >= 0.5 else b"0" for row in expected]
    assert answers["label"].numpy().tolist() == labels
    np.testing.assert_array_equal(answers["threshold"], np.full(len(examples), 0.5, np.float32))


def test_a_finished_run_says_that_its_export_is_there(mrpc, exported, caplog):
    """A run that would train further, or finds something else there, doesn't replace it."""
    out, directory = exported / "out", exported / "exported"
    changes = {"do_train": True, "do_eval": True, "export_dir": directory}
    command = [*runs.command("mrpc", mrpc, **changes), f"--output_dir={out}"]
    before = (directory / "saved_model.pb").stat().st_mtime_ns
    with caplog.at_level("INFO", logger="absl"):
        runs.main(command)
    assert f"{directory} already contains an export, which is kept" in caplog.text
    for other in ("--train_step=5", f"--export_dir={mrpc}"):
        with refused("already exists", directory):
            runs.main([*command, other])
    assert (directory / "saved_model.pb").stat().st_mtime_ns == before


def test_a_run_that_was_stopped_neither_predicts_nor_exports(mrpc, tmp_path, monkeypatch):
    out, exported = shutil.copytree(mrpc / "out", tmp_path / "out"), tmp_path / "exported"
    (out / "test_results.tsv").unlink()
    monkeypatch.setattr(Trainer, "train", lambda *_, **__: False)
    changes = {"do_train": True, "do_eval": True, "do_predict": True, "export_dir": exported}
    runs.main(runs.command("mrpc", tmp_path, train_step=9, **changes))
    assert not (out / "test_results.tsv").exists() and not exported.exists()


@pytest.mark.parametrize("name", ["model.ckpt-6", "model.ckpt-best"])
def test_outputs_that_are_not_finite_are_no_predictions(mrpc, tmp_path, name):
    """NaN would be taken for the first class, and a key metric of such classes be a number."""
    out = shutil.copytree(mrpc / "out", tmp_path / "out")
    values = checkpoint.read(str(out / "model.ckpt-best"))
    values["bert/encoder/embedding_hidden_mapping_in/kernel"][:] = 3e38
    if name.endswith("6"):
        checkpoint.save(str(out), 6, {**values, "global_step": np.int64(6)}, 0)
    else:
        checkpoint.write(str(out / name), values)
    before = {path: path.read_bytes() for path in out.glob("*[!0-9].t*")}
    parts = {"do_eval": name.endswith("6"), "do_predict": name.endswith("best")}
    with refused(f"^error: the outputs of {out}/{name} are NaN"):
        runs.main(runs.command("mrpc", tmp_path, **parts))
    assert {path: path.read_bytes() for path in out.glob("*[!0-9].t*")} == before


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_bit(mrpc, tmp_path, monkeypatch):
    """Killed after step 3: the checkpoint of step 2 was evaluated already."""
    shutil.copytree(mrpc / "features", tmp_path / "features")
    command = runs.command("mrpc", tmp_path, do_train=True, do_eval=True, iterations_per_loop=1)
    report = ProgressLog.report

    class Killed(BaseException):
        """A BaseException, so that no handler catches it."""

    def killed(self, step, *args, **kwargs):
        report(self, step, *args, **kwargs)
        if step == 3:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(ProgressLog, "report", killed)
        runs.main(command)
    out = str(tmp_path / "out")
    assert Trial.read(out).last_step == 2
    runs.main(command)
    assert Trial.read(out) == Trial.read(str(mrpc / "out"))
    found, expected = ((at / "out/eval_results.txt").read_text() for at in (tmp_path, mrpc))
    assert found == expected.replace(str(mrpc), str(tmp_path))
    pretraining_runs.assert_same_bits(f"{out}/model.ckpt-4", mrpc / "out/model.ckpt-4")


@pytest.mark.usefixtures("counted")
def test_a_table_starts_from_another_tasks_weights(mrpc, tmp_path, caplog):
    """Three classes instead of two; they are found in the file to train on, and then remembered.

    The config is found beside the weights.
    """
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("text,label\na,pos\nb,neg\nc,odd\n")
    test.write_text("text\nd\ne\n")
    changes = {"data_dir": None, "train_file": train, "predict_file": test, "train_step": 1}
    changes |= {"from_scratch": None, "init_checkpoint": mrpc / "out", "albert_config_file": None}
    command = runs.command("classification", tmp_path, **changes)
    runs.main([*command, "--do_train"])
    assert "has the head of another task (output_weights [2, 6], output_bias [2])" in caplog.text
    # Classes keep their ids when the run goes on with another file, whose labels must be known.
    train.write_text("text,label\na,pos\nb,odd\nc,odd\n")
    more = ["--do_predict", "--train_step=2", "--accept_other_records"]
    runs.main([*command, "--do_train", *more])
    assert labels_file.read(str(tmp_path / "out")) == ("neg", "odd", "pos")
    lines = (tmp_path / "out/predictions.tsv").read_text().splitlines()[1:]
    ids, labels = zip(*(line.split("\t") for line in lines), strict=True)
    assert ids == ("2", "3") and set(labels) <= {"neg", "odd", "pos"}
    assert np.loadtxt(tmp_path / "out/test_results.tsv").shape == (2, 3)
    assert not (tmp_path / "out/eval_results.txt").exists()
    train.write_text("text,label\na,pos\nb,good\nc,odd\n")
    with refused("train.csv:3: label 'good' .*neg, odd, pos"):
        runs.main([*command, "--do_train", "--train_step=3"])


@pytest.mark.slow
@pytest.mark.usefixtures("counted")
def test_shared_layers_are_applied_as_often_as_one_says(mrpc, tmp_path):
    start = {"from_scratch": None, "init_checkpoint": mrpc / "out", "albert_config_file": None}
    changes = {**start, "num_hidden_layers": 3, "do_train": True}
    runs.main(runs.command("mrpc", tmp_path, **changes, train_step=2))
    deeper = AlbertConfig.from_json_file(tmp_path / "out" / "albert_config.json")
    assert deeper.num_hidden_layers == 3 != runs.CONFIG["num_hidden_layers"]
    # The run resumes with the same flag or without it; with another depth it doesn't.
    runs.main(runs.command("mrpc", tmp_path, **changes, train_step=3))
    runs.main(runs.command("mrpc", tmp_path, **start, do_train=True))
    assert checkpoint.latest(str(tmp_path / "out")).endswith("-4")
    with refused("num_hidden_layers 3 before, 2 now"):
        runs.main(runs.command("mrpc", tmp_path, **{**changes, "num_hidden_layers": 2}))
    # A config with another depth than the weights' is taken for a mistake.
    shallow = runs.write_config(tmp_path, num_hidden_layers=2)
    changes = {**start, "albert_config_file": shallow, "output_dir": tmp_path / "other"}
    with refused("num_hidden_layers 1 there, 2 here"):
        runs.main(runs.command("mrpc", tmp_path, **changes, do_train=True))


def test_without_training_the_best_checkpoint_of_the_directory_comes_first(mrpc, tmp_path):
    """Even if no file lists it, and --init_checkpoint names other weights."""
    out = tmp_path / "out"
    out.mkdir()
    held = {"global_step": np.int64(3), "weights": np.zeros(20_000, np.float32)}
    checkpoint.write(str(out / "model.ckpt-best"), held)
    runs.write_config(out, num_hidden_layers=7).rename(out / "albert_config.json")
    changes = {"from_scratch": None, "init_checkpoint": mrpc / "out", "albert_config_file": None}
    given = runs.parse(runs.command("mrpc", tmp_path, **changes, do_predict=True))
    directory, _, config = RunDirectory.open(given, finetune.find_initial_weights)
    assert directory == RunDirectory(str(out), None, f"{out}/model.ckpt-best")
    assert config.num_hidden_layers == 7


def test_the_vocabulary_beside_the_weights_is_found(tmp_path):
    weights = tmp_path / "albert-base-v2"
    weights.mkdir()
    (weights / "spiece.model").symlink_to(runs.GOLDEN / "spm/en_small.model")
    (weights / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    changes = {"from_scratch": None, "init_checkpoint": weights, "spm_model_file": None}

    def found(*flags: str) -> tuple[str, bool, bool]:
        given = runs.parse([*runs.command("mrpc", tmp_path, **changes), "--do_train", *flags])
        directory = RunDirectory(given.output_dir, None, given.init_checkpoint)
        words = finetune.find_vocabulary(given, directory, config)
        return words.path, *words.form

    config = AlbertConfig.from_json_file(runs.write_config(tmp_path))
    other = str(runs.GOLDEN / "spm/en_small.model")
    assert found() == (str(weights / "spiece.model"), False, False)
    assert found("--do_lower_case") == (str(weights / "spiece.model"), True, False)
    assert found("--keep_accents") == (str(weights / "spiece.model"), False, True)
    assert found(f"--spm_model_file={other}") == (other, False, False)
    # Without tokenizer_config.json beside the weights, the one beside the vocabulary counts.
    (tmp_path / "own").mkdir()
    (weights / "tokenizer_config.json").rename(tmp_path / "own" / "tokenizer_config.json")
    (tmp_path / "own" / "own.model").symlink_to(other)
    own = f"{tmp_path}/own/own.model"
    assert found(f"--spm_model_file={own}") == (own, False, False)
    with pytest.raises(ValueError, match="no vocabulary: set `spm_model_file`"):
        found(f"--init_checkpoint={tmp_path}/none/model.ckpt-best")


def test_an_ensemble_averages_probabilities_and_takes_the_classes_of_its_runs(tmp_path):
    def store(name: str, text: str, *row: float) -> None:
        example = TextExample("2", text, None, None)
        folder = str(tmp_path / name)
        supervised.write_probabilities(folder, "test", ["2"], [example], np.array([row]))

    (tmp_path / "test.csv").write_text("words\nd\n")
    for name, row in (("a", (0.125, 0.875)), ("b", (0.5, 0.5))):
        (tmp_path / name).mkdir()
        labels_file.write(str(tmp_path / name), ("neg", "pos"))
        store(name, "d", *row)
    changes = {"data_dir": None, "predict_file": tmp_path / "test.csv", "spm_model_file": None}
    command = [*runs.command("classification", tmp_path, **changes), "--do_predict"]
    command.append(f"--ensemble_dirs={tmp_path}/a,{tmp_path}/b")
    # The column's name comes from the first run's record.
    tiny.fine_tuned("classification", text_column="words").write(str(tmp_path / "a"))
    runs.main(command)
    assert (tmp_path / "out/predictions.tsv").read_text().splitlines()[1:] == ["2\tpos"]
    assert np.loadtxt(tmp_path / "out/test_results.tsv").tolist() == [0.3125, 0.6875]
    # Refused: the same line of another table, a missing file, other classes.
    store("b", "e", 0.5, 0.5)
    with refused("/b/test_probabilities.json has other examples"):
        runs.main(command)
    (tmp_path / "b/test_probabilities.json").unlink()
    with refused("/b/test_probabilities.json does not exist"):
        runs.main(command)
    labels_file.write(str(tmp_path / "b"), ("pos", "neg"))
    with refused("/a and .*/b .* classes .neg, pos; pos, "):
        runs.main(command)


def test_fine_tuned_weights_of_squad_v1_predict_without_training(tmp_path):
    config = albert_tf.AlbertConfig.from_json_file(runs.write_config(tmp_path))
    model = albert_tf.AlbertForQuestionAnswering(config)
    weights = str(tmp_path / "model.ckpt-best")
    named = {**named_weights(model), "global_step": np.int64(7)}
    # Hugging Face's weights for question answering have no pooler.
    without = {name: value for name, value in named.items() if not name.startswith("bert/pooler/")}
    checkpoint.write(weights, without)
    command = runs.command("squad_v1", tmp_path, from_scratch=None, init_checkpoint=weights)
    runs.main([*command, "--do_predict", "--do_eval=false"])
    runs.check_answers(tmp_path / "out", "v1")
    assert "exact_match = " in (tmp_path / "out/test_scores.txt").read_text()
    command = runs.command("squad_v2", tmp_path, from_scratch=None, init_checkpoint=weights)
    with refused("not fine-tuned for this task", tmp_path / "features"):
        runs.main([*command, "--do_predict", "--do_eval=false"])
