"""The files that fine-tuning leaves beside its checkpoints, and how later commands use them."""

import json
import pathlib
import re
import shlex
import shutil

import pytest

from albert_tf.answers.classify import Classify
from albert_tf.cli import finetune
from albert_tf.cli import predict as predict_command
from albert_tf.conversion.convert import convert
from albert_tf.storage import eval_results
from albert_tf.storage.run_record import find_run
from albert_tf.training.progress import four_digits
from tests.kit import finetune_runs as runs
from tests.kit.files import refused
from tests.kit.tiny import run_main

pytestmark = pytest.mark.usefixtures("counted")


@pytest.fixture
def copy(mrpc, tmp_path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(mrpc, tmp_path / "copy"))


@pytest.mark.parametrize("change", ["case", "pieces"])
def test_a_run_has_one_vocabulary(change, copy, tmp_path):
    changes = {"do_lower_case": False}
    if change == "pieces":
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(5995))]
        (tmp_path / "vocab.txt").write_text("\n".join(pieces))
        shutil.copy(tmp_path / "vocab.txt", copy / "out")
        (tmp_path / "vocab.txt").write_text("\n".join(pieces[::-1]))
        changes = {"spm_model_file": None, "vocab_file": tmp_path / "vocab.txt"}
    with refused("another vocabulary than .*--output_dir"):
        runs.main(runs.command("mrpc", copy, do_train=True, **changes))


def test_a_model_card_says_what_the_run_was(mrpc, tmp_path):
    convert(str(mrpc / "out" / "model.ckpt-best"), "huggingface", str(tmp_path / "there"))
    config = json.loads((tmp_path / "there" / "config.json").read_text())
    assert config["problem_type"] == "single_label_classification"
    names = {path.name for path in (tmp_path / "there").iterdir()}
    assert {"spiece.model", "tokenizer_config.json", "model.safetensors"} < names
    card = (tmp_path / "there" / "README.md").read_text()
    header, rest = card.split("---\n")[1:]
    header = dict(line.split(": ", 1) for line in header.splitlines())
    header = {name: json.loads(value) for name, value in header.items()}
    assert header["library_name"] == "transformers" and "license" not in header
    assert header["pipeline_tag"] == "text-classification" and "base_model" not in header
    assert header["datasets"] == ["nyu-mll/glue"] and header["metrics"][0] == "accuracy"
    (result,) = header["model-index"][0]["results"]
    dataset = {"type": "nyu-mll/glue", "name": "nyu-mll/glue", "config": "mrpc"}
    assert result["dataset"] == {**dataset, "split": "validation"}
    scores = {each["name"]: each["value"] for each in result["metrics"]}
    assert scores == eval_results.of_checkpoint(str(mrpc / "out" / "model.ckpt-best"))
    record = json.loads((mrpc / "out" / "run.json").read_text())
    kind = Classify(labels=("0", "1"), pairs=True, max_seq_length=23)
    assert record["task"]["name"] == "mrpc" and record["command"] in rest
    assert record["task"]["kind"] == kind.to_json()
    assert "from random initialisation" in rest and "Classes: `0`, `1`." in rest
    best = (mrpc / "out" / "best_trial.txt").read_text().split(":")
    assert f"| eval_accuracy | {float(best[2]):.4f} |" in rest
    assert "| best |" not in rest


def test_a_card_without_a_run_claims_nothing(mrpc, tmp_path):
    source = shutil.copytree(mrpc / "out", tmp_path / "bare")
    for name in ("run.json", "eval_results.jsonl"):
        (source / name).unlink()
    convert(str(source), "huggingface", str(tmp_path / "there"))
    card = (tmp_path / "there" / "README.md").read_text()
    assert "datasets" not in card and "model-index" not in card
    assert "# ALBERT\n" in card and "Training" not in card and "Scores" not in card
    (source / "run.json").write_text('{"settings": {}, "config": {}, "task": {"name": 3}}')
    with pytest.raises(ValueError, match=r"run.json: .*'name'"):
        convert(str(source), "huggingface", str(tmp_path / "other"))


@pytest.mark.parametrize("flag", ["high_only", "middle_only"])
def test_a_level_of_race(flag, tmp_path):
    settings = runs.parse(runs.command("race", tmp_path, do_train=False, **{flag: True}))
    task = finetune.make_task(settings)
    examples = finetune.read_examples(settings, task)["dev"]
    assert {f"{example.level}_only" for example in examples} == {flag}
    # Endings are read as training cuts them.
    assert task.kind.max_qa_length == 13


def test_another_task_does_not_go_on_with_a_run(copy):
    """MRPC's weights would fit: training would find no step left, and all files would be MRPC's."""
    with refused(f"{copy}/out/model.ckpt-4 .*mrpc, .*rte, .*--task_name=mrpc", copy / "out"):
        runs.main(runs.command("rte", copy, do_train=True, do_predict=True))
    # Another task doesn't predict with the run either, unlike mismnli with MNLI's.
    with refused(f"{copy}/out/model.ckpt-4 was trained for another", copy / "out"):
        runs.main(runs.command("wnli", copy, do_predict=True, from_scratch=None))


def test_training_on_without_evaluation_predicts_with_the_newest(copy, saved, caplog):
    changes = {"train_step": 6, "do_predict": True, "export_dir": copy / "exported"}
    runs.main(runs.command("mrpc", copy, do_train=True, **changes))
    out = copy / "out"
    assert f"exported {out / 'model.ckpt-6'} to {copy / 'exported'}" in caplog.text
    assert len(saved) == 1 and (out / "best_trial.txt").exists()
    assert f"predictions of {out / 'model.ckpt-6'}" in caplog.text
    runs.main(runs.command("mrpc", copy, do_predict=True))
    assert f"predictions of {out / 'model.ckpt-best'}" in caplog.text


@pytest.mark.slow
def test_a_borrowed_run_is_evaluated_without_choosing_its_best(tmp_path, caplog):
    """As MNLI's run is by mismnli, which also leaves MNLI's predictions as they are."""
    runs.main(runs.command("mnli", tmp_path, do_train=True))
    runs.main(runs.command("mismnli", tmp_path, do_eval=True, from_scratch=None))
    out = tmp_path / "out"
    assert f"predictions of {out / 'model.ckpt-4'} for " in caplog.text
    assert not list(out.glob("model.ckpt-best*")) and not (out / "best_trial.txt").exists()
    results = (out / "eval_results.txt").read_text()
    assert "\neval_loss = " in results and "global_step" not in results
    # The run's own task must still compare the checkpoints.
    again = {"do_eval": True, "do_predict": True, "from_scratch": None}
    runs.main(runs.command("mnli", tmp_path, **again))
    assert (out / "eval_results.txt").read_text().count("global_step = ") == 2
    assert (out / "best_trial.txt").exists()
    names = ("test_probabilities.json", "dev_probabilities.json", "test_results.tsv")
    before = [(out / name).read_bytes() for name in names]
    runs.main(runs.command("mismnli", tmp_path, **again))
    assert [(out / name).read_bytes() for name in names] == before
    assert all((out / f"mismnli_{name}").exists() for name in names)
    assert (out / "MNLI-mm.tsv").exists()


def test_another_file_chooses_no_best(copy, caplog):
    """The run was stopped before it evaluated the second checkpoint."""
    out = copy / "out"
    first = (out / "eval_results.jsonl").read_text().splitlines(keepends=True)[0]
    (out / "eval_results.jsonl").write_text(first)
    data = shutil.copytree(runs.GOLDEN / "features" / "glue_data", copy / "data")
    dev = data / "MRPC" / "dev.tsv"
    dev.write_text(dev.read_text(encoding="utf-8").replace("the", "thy"), encoding="utf-8")
    before = (out / "model.ckpt-best.index").stat().st_mtime_ns
    again = {"do_eval": True, "from_scratch": None}
    runs.main(runs.command("mrpc", copy, data_dir=data, **again))
    assert f"predictions of {out / 'model.ckpt-best'} for " in caplog.text
    assert (out / "eval_results.jsonl").read_text() == first
    assert (out / "model.ckpt-best.index").stat().st_mtime_ns == before
    # With its own file, the best checkpoint is chosen.
    runs.main(runs.command("mrpc", copy, **again))
    assert eval_results.Trial.read(str(out)).last_step == 4


def test_a_run_ends_with_what_to_use_and_a_command_that_works(copy, caplog, capsys):
    runs.main(runs.command("mrpc", copy, do_train=True, do_eval=True))
    trial = eval_results.Trial.read(str(copy / "out"))
    best = copy / "out" / "model.ckpt-best"
    said, following = caplog.messages[-2:]
    score = f"eval_accuracy {four_digits(trial.best_value)}"
    assert said == f"checkpoint to use: {best}, of step {trial.best_step} | {score}"
    label, program, *arguments = shlex.split(following)
    assert label == "next:" and program.endswith("albert-predict")
    (copy / "texts.txt").write_text("the heaven\tthe earth\n")
    run_main(predict_command.main, [*arguments, f"--input_file={copy}/texts.txt"])
    assert re.match(r"[01] \(0 0\.\d{3}, 1 0\.\d{3}\)\n", capsys.readouterr().out)


def test_flags_given_at_a_resume_hold_for_later_commands(copy, caplog):
    before = find_run(str(copy / "out"))
    changes = {"train_step": 5, "learning_rate": 0.5, "train_batch_size": None}
    runs.main(runs.command("mrpc", copy, do_train=True, **changes))
    after = find_run(str(copy / "out"))
    names = ("learning_rate", "train_batch_size")
    assert [before.settings[name] for name in names] == [0.01, 3]
    assert [after.settings[name] for name in names] == [0.5, 3]
    # This command read no examples to evaluate on, so the record of them stays.
    assert after.data == before.data and set(after.data) == {"train", "dev"}
    assert after.task == before.task
