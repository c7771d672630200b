"""run_finetune.py in processes of its own. Not tested here: several machines."""

import concurrent.futures
import importlib
import pathlib
import sys

import numpy as np
import pytest

from albert_tf.cli import finetune
from tests.kit import finetune_runs as runs
from tests.kit import pretraining_runs, tolerances, two_workers


def flags(folder: pathlib.Path) -> list[str]:
    """Flags to train without dropout, evaluate two checkpoints and predict with the better one."""
    folder.mkdir()
    config = runs.write_config(folder, hidden_dropout_prob=0.0)
    changes = {"albert_config_file": config, "dropout_prob": 0.0, "train_batch_size": 4}
    return [*runs.command("mrpc", folder, do_train=True, **changes), "--do_eval", "--do_predict"]


@pytest.mark.slow
def test_two_workers_change_nothing(tmp_path):
    together = flags(tmp_path / "together")
    main = runs.main_of_a_process
    workers = [
        pretraining_runs.start(together, tmp_path / f"worker{i}.log", main=main, env=environment)
        for i, environment in enumerate(two_workers.environments())
    ]
    runs.main(flags(tmp_path / "alone"))
    for worker in workers:
        assert worker.wait() == 0, worker.log
    assert "CollectiveAllReduceStrategy with 2 replica(s)" in workers[1].log

    alone, together = (
        np.loadtxt(tmp_path / folder / "out/test_results.tsv") for folder in ("alone", "together")
    )
    np.testing.assert_allclose(together, alone, rtol=0, atol=tolerances.TRAJECTORY_LOSS)


@pytest.mark.slow
def test_workers_that_see_different_examples(tmp_path):
    """Each has its own table and seed: no collective operation would notice the difference."""
    workers = []
    for i, environment in enumerate(two_workers.environments()):
        table = tmp_path / f"train{i}.csv"
        table.write_text("text,label\nthe cat,a\nthe dog,b\n".replace("a\n", "ay"[i] + "\n"))
        own = {"data_dir": None, "train_file": table, "random_seed": i, "train_batch_size": 2}
        command = runs.command("classification", tmp_path, do_train=True, **own)
        log, main = tmp_path / f"worker{i}.log", runs.main_of_a_process
        workers.append(pretraining_runs.start(command, log, main=main, env=environment))
    for worker in workers:
        assert worker.wait() == 1
        message = "error: the workers differ in --train_file, --random_seed, `classes`, `train`"
        assert message in worker.log and "Traceback" not in worker.log
    assert not (tmp_path / "out").exists()


def test_what_workers_must_have_in_common(tmp_path, monkeypatch):
    def compare(devices, parts):
        compared.append({name: repr(part) for name, part in parts.items()})
        raise ValueError("compared")

    compared = []
    monkeypatch.setattr(finetune.run_directory, "check_workers_agree", compare)
    train = tmp_path / "train.csv"
    train.write_text("text,label\nthe cat,a\na dog,b\n")
    others = tmp_path / "others.csv"
    others.write_text("text,label\nthe cat,b\na dog,a\n")
    changes = {
        "train_file": (others, {"train"}),
        "eval_file": (others, {"dev"}),
        "hidden_dropout_prob": (0.5, {"config"}),
        **dict.fromkeys(("random_seed", "train_step", "save_checkpoints_steps"), (3, set())),
    }
    for flag, (value, others_too) in {"train_batch_size": (3, set()), **changes}.items():
        given = {"data_dir": None, "train_file": train, "eval_file": train, flag: value}
        command = runs.command("classification", tmp_path, **given)
        with pytest.raises(SystemExit, match="compared"):
            runs.main([*command, "--do_train", "--do_eval"])
        different = {name for name, part in compared[-1].items() if part != compared[0][name]}
        assert different == ({flag} | others_too if len(compared) > 1 else set())


def errors_without_tensorflow_text(*commands: list[str]) -> list[str]:
    # Importing this file has imported the script.
    assert "tensorflow_text" not in sys.modules
    sys.modules["tensorflow_text"] = None
    importlib.import_module("albert_tf.serving.other_formats")
    errors = []
    for command in commands:
        try:
            runs.main(command)
        except SystemExit as ended:
            errors.append(ended.code)
    return errors


@pytest.mark.slow
def test_only_an_export_needs_tensorflow_text(tmp_path):
    """It is missing beside TensorFlow for TPUs. Without an export, the script gets to its data."""
    with_export = runs.command("mrpc", tmp_path, do_train=True, export_dir=tmp_path / "exported")
    without = runs.command("mrpc", tmp_path, do_train=True, data_dir=tmp_path)
    with concurrent.futures.ProcessPoolExecutor(1, pretraining_runs.FORK_SERVER) as executor:
        found = executor.submit(errors_without_tensorflow_text, with_export, without).result()
    export_error, file_error = found
    assert export_error.startswith("error: a SavedModel takes raw texts by tensorflow-text, which")
    assert "MRPC/train.tsv does not exist" in file_error
    assert not (tmp_path / "out").exists()
