"""run_pretraining.py as processes: workers, killed runs, an evaluation beside the training.

Not tested here: several GPUs, several machines, a machine that loses power.
"""

import os
import pathlib
import re
import signal

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records import input_files, input_pipeline
from albert_tf.records.spec import pretraining_spec
from albert_tf.storage import checkpoint
from tests.kit import pretraining_runs as runs
from tests.kit import two_workers
from tests.kit.museum import Museum, exhibit

KILLED = -signal.SIGKILL
REPORT = "albert_tf.training.progress.ProgressLog.report"
LISTING = "albert_tf.storage.checkpoint.write_list"


@exhibit
def two_files(folder: pathlib.Path, museum: Museum) -> None:
    """Two files of records, fewer than six batches of 12, and a config."""
    runs.write_records(folder / "a.tfrecord", runs.examples(41, seed=1))
    runs.write_records(folder / "b.tfrecord", runs.examples(29, seed=2))
    runs.write_config(folder / "albert_config.json", num_hidden_layers=1)


@exhibit
def one_process(folder: pathlib.Path, museum: Museum) -> None:
    """Ten updates on the records of `two_files`, and an evaluation."""
    runs.main(runs.command(museum("two_files"), output_dir=folder, do_eval=True))


@pytest.fixture(scope="module")
def folder(museum) -> pathlib.Path:
    return museum("two_files")


def test_replicas_share_the_masked_pieces_unevenly(folder):
    """Otherwise the tests below could not tell a mean from a mean of means."""
    files = [str(folder / "a.tfrecord"), str(folder / "b.tfrecord")]
    spec = pretraining_spec(runs.LENGTH, runs.PREDICTIONS)
    context = tf.distribute.InputContext(1, 0, 2)
    indexes = input_files.index_records(files)
    dataset = input_pipeline.training_dataset(files, indexes, spec, 12, 12345, 0, context)
    masked = [float(tf.reduce_sum(b["masked_lm_weights"])) for b in dataset.take(20)]
    shares = np.reshape(masked, (10, 2))
    assert np.sum(shares[:, 0] != shares[:, 1]) >= 7
    assert np.max(np.abs(shares[:, 0] - shares[:, 1])) >= 5


def assert_same_as_one(museum: Museum, out: pathlib.Path) -> None:
    one = museum("one_process")
    stats = runs.assert_same_run(out, one)
    runs.assert_close(out / "model.ckpt-10", one / "model.ckpt-10")
    assert list(stats) == list(range(1, 11))
    assert stats[10]["loss"] < stats[1]["loss"] - 0.1


@pytest.mark.slow
def test_two_replicas_change_nothing(museum, folder, tmp_path):
    """With all options that split a batch or recompute activations."""
    parts = {"gradient_accumulation_steps": 3, "jit_compile": True, "recompute": True}
    flags = runs.command(folder, output_dir=tmp_path / "out", do_eval=True, **parts)
    run = runs.start(flags, tmp_path / "log", cpus=2)
    assert run.wait() == 0, run.log
    assert "MirroredStrategy with 2 replica(s)" in run.log
    assert_same_as_one(museum, tmp_path / "out")


@pytest.mark.slow
def test_two_workers_change_nothing(museum, folder, tmp_path):
    out = tmp_path / "out"
    flags = runs.command(folder, output_dir=out, do_eval=True, save_checkpoints_steps=3)
    logs = [tmp_path / "worker0.log", tmp_path / "worker1.log"]
    environments = zip(logs, two_workers.environments(), strict=True)
    workers = [runs.start(flags, log, env=environment) for log, environment in environments]
    for run in workers:
        assert run.wait() == 0, run.log
    assert "CollectiveAllReduceStrategy with 2 replica(s)" in workers[1].log
    assert "saved" in workers[0].log and "saved" not in workers[1].log
    assert_same_as_one(museum, out)


def flags_of(folder: pathlib.Path, out: pathlib.Path, **changes) -> list[str]:
    """Flags for twelve updates over more than two epochs, with a checkpoint every four."""
    own = {"num_train_steps": 12, "save_checkpoints_steps": 4, "iterations_per_loop": 5}
    return runs.command(folder, output_dir=out, **{**own, **changes})


def start(flags: list[str], log: pathlib.Path, **how) -> runs.Run:
    """Starts the script with `counted_steps`: here it only matters which steps run, and when.

    Killed runs with real steps are in tests/cli/test_run_finetune.py and ..._jax.py.
    """
    return runs.start(flags, log, main=runs.main_of_counted_steps, **how)


@exhibit
def evaluated_beside(folder: pathlib.Path, museum: Museum) -> None:
    """One step a loop; training waits until another process has evaluated its first checkpoint."""
    out = folder / "straight"
    records = museum("two_files")
    flags = flags_of(records, out, iterations_per_loop=1, keep_checkpoint_max=1)
    evaluating = runs.start([*flags, "--do_train=false", "--do_eval"], folder / "eval.log")
    evaluating.wait_until(lambda: "waiting for the first checkpoint" in evaluating.log)
    training = start(flags, folder / "train.log", hold=(REPORT, 8))
    evaluating.wait_until((out / "eval_results.txt").exists)
    training.release()
    for run in (training, evaluating):
        assert run.wait() == 0, run.log


@pytest.fixture(scope="module")
def straight(museum) -> pathlib.Path:
    return museum("evaluated_beside") / "straight"


@pytest.mark.slow
def test_evaluation_follows_a_training_run(straight):
    results = (straight / "eval_results.txt").read_text()
    assert re.findall("^global_step = (.*)", results, re.MULTILINE) == ["4", "12"]
    ends = ("meta", "data-00000-of-00001", "index")
    lines = [f"saved {straight}/model.ckpt-4.{e} to {straight}/model.ckpt-best.{e}" for e in ends]
    assert results.splitlines()[7:10] == lines
    best = runs.tensors(straight / "model.ckpt-best")
    assert best["global_step"] in (4, 12)
    assert {path.stem for path in straight.glob("*.index")} == {"model.ckpt-12", "model.ckpt-best"}


def kill(run: runs.Run) -> None:
    run.process.kill()
    assert run.wait() == KILLED


def kill_three_times(flags: list[str], out: pathlib.Path, logs: pathlib.Path) -> None:
    """Before a step, while the first checkpoint is written, and before the second is listed."""
    run = start(flags, logs / "1.log", hold=("albert_tf.training.trainer.Trainer.train", 1))
    run.wait_until_held()
    kill(run)
    assert not list(out.glob("model.ckpt*"))

    # The first listing is the run's claim; the second is held, in case the kill comes late.
    run = start(flags, logs / "2.log", hold=(LISTING, 2))
    run.wait_until(lambda: any("ckpt-4" in name for name in os.listdir(out)), pause=0)
    kill(run)
    assert "random initialisation: " in run.log

    run = start(flags, logs / "3.log", hold=(LISTING, 3))
    run.wait_until_held()
    kill(run)
    complete = {str(path).removesuffix(".index") for path in out.glob("*.index")}
    assert len(complete - set(checkpoint.listed(str(out)))) == 1


def stop(flags: list[str], out: pathlib.Path, log: pathlib.Path) -> int:
    run = start([*flags, "--do_eval", "--iterations_per_loop=1"], log, hold=(REPORT, 2))
    run.wait_until_held()
    os.kill(run.process.pid, signal.SIGTERM)
    run.release()
    assert run.wait() == 0, run.log
    stopped = int(run.log.partition("stopped at step ")[2].partition(":")[0])
    assert f"stopped at step {stopped}: the same command resumes from there" in run.log
    assert 4 < stopped < 12
    assert (out / f"model.ckpt-{stopped}.index").exists()
    assert not (out / "eval_results.txt").exists()
    return stopped


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(folder, straight, tmp_path):
    """In loops of several steps."""
    out = tmp_path / "killed"
    flags = flags_of(folder, out)
    kill_three_times(flags, out, tmp_path)
    stopped = stop(flags, out, tmp_path / "4.log")
    run = start(flags, tmp_path / "5.log")
    assert run.wait() == 0, run.log
    assert f"resume: step {stopped} of {out}/model.ckpt-{stopped}" in run.log
    runs.assert_same_bits(out / "model.ckpt-12", straight / "model.ckpt-12")
    listed = checkpoint.listed(str(out))
    assert listed[-1] == str(out / "model.ckpt-12")
    for path in listed:
        runs.tensors(path)
    assert not list(out.glob("*.tempstate*"))


@pytest.mark.slow
def test_no_tpu_here(folder, tmp_path):
    """In its own process: the search empties TensorFlow's caches, slowly if they are full."""
    out = tmp_path / "out"
    run = runs.start(runs.command(folder, output_dir=out, use_tpu=True), tmp_path / "log")
    assert run.wait() == 1
    (line,) = [line for line in run.log.splitlines() if line.startswith("error")]
    assert line.startswith("error: TPU 'local' can't be used (TPUs not found in the cluster")
    assert line.endswith("leave --use_tpu out to train on CPU or GPU")
    assert "node" not in line and len(line) < 300
    assert not out.exists()
