"""run_pretraining.py --backend=jax beside itself on TensorFlow, on more devices, and killed.

Can't see: a GPU, a TPU, several hosts of them.
"""

import errno
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import keras
import pytest

from albert_tf import AlbertForPreTraining
from albert_tf.cli import pretrain
from albert_tf.cli.training_settings import TrainingSettings
from albert_tf.console import tf_config
from albert_tf.storage import checkpoint
from albert_tf.training.progress import ProgressLog
from tests import jax_process, tiny, tolerances, two_workers
from tests import pretraining_runs as runs
from tests.cli import test_run_pretraining_packed as packed

pytest.importorskip("jax")

DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
# Beside TensorFlow, from its initial weights. The first is then split over devices.
SAME = {
    "static": {
        "train_batch_size": 24,
        "eval_batch_size": 24,
        "save_checkpoints_steps": 5,
        "do_eval": True,
    },
    "packed": {
        "albert_config_file": "two_layers.json",
        "input_file": "packed_rows",
        "max_seq_length": packed.WIDTH,
        "max_predictions_per_seq": packed.PREDICTIONS,
        "max_examples_per_row": packed.SLOTS,
        "train_batch_size": 6,
        "gradient_accumulation_steps": 3,
        "optimizer": "adamw",
        "sentence_order_weight": 0,
        "recompute": True,
        "num_train_steps": 4,
    },
    "dynamic": {
        "input_file": "compact_rows",
        "masking": "dynamic",
        "precision": "bfloat16",
        "num_train_steps": 4,
    },
}
# Of 24 examples, eight devices take one at a time; two processes are two devices.
EIGHT = {"gradient_accumulation_steps": 3, "shard_optimizer_state": True}


# --- in processes ---------------------------------------------------------------------------


def run_all(commands: str) -> None:
    """Runs commands; each names its number of devices, and at which report it is sent a signal."""
    import jax

    from albert_tf.training.jax_devices import JaxDevices

    report = ProgressLog.report
    for command, devices, at, number in json.loads(pathlib.Path(commands).read_text()):
        shard = runs.parse(command).shard_optimizer_state
        here = JaxDevices(jax.devices()[:devices], shard)
        TrainingSettings.create_devices = lambda self, here=here: here
        ProgressLog.report = _signalled(report, at, number) if number else report
        runs.main(command)


def _signalled(report: Callable[..., None], at: int, number: int) -> Callable[..., None]:
    def signalled(self: ProgressLog, step: int, *args: Any, **kwargs: Any) -> None:
        if step == at:
            os.kill(os.getpid(), number)
        report(self, step, *args, **kwargs)

    return signalled


def as_script(command: str) -> None:
    runs.main_of_a_process(json.loads(command))


def without_records(command: str) -> None:
    """Runs the script; the first worker can't read its records when training begins."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if tf_config.index() == 0:
        pretrain.input_pipeline.training_dataset = fail
    as_script(command)


def go_on(command: str, to_save: str) -> None:
    """Resumes a run as the script does; writes another run's checkpoint as it was read."""
    import contextlib

    with contextlib.ExitStack() as held:
        _, trainer, *_ = pretrain.prepare(runs.parse(json.loads(to_save)), held)
        trainer.save(0)
        trainer.wait_until_saved()
    as_script(command)


# --- all runs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Records of three kinds, and initial weights."""
    folder = tmp_path_factory.mktemp("pretraining")
    rows = runs.examples(70, seed=1)
    runs.write_records(folder / "a.tfrecord", rows)
    runs.write_records(folder / "compact_rows", runs.compact_examples(50))
    runs.write_records(folder / "packed_rows", runs.packed(packed.short_examples(), packed.SLOTS))
    runs.write_config(folder / "albert_config.json", num_hidden_layers=1)
    runs.write_config(folder / "two_layers.json")
    runs.write_config(folder / "with_dropout.json", num_hidden_layers=1, **DROPOUT)
    return folder


def flags(folder: pathlib.Path, name: str, **changes: Any) -> list[str]:
    files = {
        flag: folder / changes[flag]
        for flag in ("albert_config_file", "input_file")
        if flag in changes
    }
    return runs.command(folder, output_dir=folder / name, **{**changes, **files})


def with_dropout(folder: pathlib.Path, name: str, **changes: Any) -> list[str]:
    own = {"num_train_steps": 12, "save_checkpoints_steps": 4, "iterations_per_loop": 3}
    return flags(folder, name, albert_config_file="with_dropout.json", **{**own, **changes})


@pytest.fixture(scope="module")
def outputs(folder) -> pathlib.Path:
    """All runs: those on JAX in a process that the last of them kills; the killed one resumed."""
    keras.utils.set_random_seed(11)
    model = AlbertForPreTraining(tiny.config(num_hidden_layers=1))
    (folder / "weights").mkdir()  # Without a config beside them.
    checkpoint.write(str(folder / "weights/initial"), tiny.weights(model))
    start = {"init_checkpoint": folder / "weights/initial"}
    commands = [
        (flags(folder, name, **start, **changes), 1, 0, 0) for name, changes in SAME.items()
    ]
    one_by_one = {"iterations_per_loop": 1}
    commands += [
        (flags(folder, "eight", **start, **SAME["static"], **EIGHT), 8, 0, 0),
        (with_dropout(folder, "straight"), 1, 0, 0),
        (with_dropout(folder, "stopped", **one_by_one), 1, 5, signal.SIGTERM),
        (with_dropout(folder, "killed", **one_by_one), 1, 9, signal.SIGKILL),
    ]
    file = folder / "commands.json"
    file.write_text(json.dumps(commands))
    process = jax_process.start(run_all, file, devices=8)
    for name, changes in SAME.items():
        runs.main(flags(folder, f"{name}_tensorflow", **start, **changes))
    jax_process.finish(process, -signal.SIGKILL)
    copy(folder / "static_tensorflow/model.ckpt-5", folder / "read")
    resumed = with_dropout(folder, "killed"), flags(folder, "read", **SAME["static"])
    written = jax_process.finish(jax_process.start(go_on, *map(json.dumps, resumed)))
    # The second checkpoint, of step 8, may have been under way.
    assert re.search(r"resume: step [48] of", written)
    changes = {**start, **SAME["static"], "shard_optimizer_state": True}
    command = json.dumps(flags(folder, "workers", **changes))
    workers = [
        jax_process.start(as_script, command, **environment)
        for environment in two_workers.environments()
    ]
    assert "saved" in jax_process.finish(workers[0])
    assert "saved" not in jax_process.finish(workers[1])
    return folder


def copy(prefix: pathlib.Path, folder: pathlib.Path) -> None:
    """Makes a folder whose only checkpoint is a copy."""
    folder.mkdir()
    checkpoint.save(str(folder), int(prefix.name[-1]), checkpoint.read(str(prefix)), 1)


# --- tests ----------------------------------------------------------------------------------


def test_an_error_of_one_worker_ends_all(folder):
    command = with_dropout(folder, "lost", train_batch_size=24)
    workers = [
        jax_process.start(without_records, json.dumps(command), **environment)
        for environment in two_workers.environments()
    ]
    first = jax_process.finish(workers[0], 1)
    assert "connecting with the other workers: localhost:" in first
    assert first.splitlines()[-1].endswith("error: [Errno 5] Input/output error")
    second, _ = workers[1].communicate(timeout=60)
    # JAX may notice before the step fails, and ends the process itself.
    ours = "error: another worker was lost .*: see its log, and start the same command again"
    assert workers[1].returncode and re.search(f"{ours}|another task died", second)


@pytest.mark.parametrize("name", SAME)
def test_the_same_as_on_tensorflow(outputs, name):
    is_rounded = "precision" in SAME[name]
    limit = tolerances.BFLOAT16_LOSS if is_rounded else tolerances.TRAJECTORY_LOSS
    stats = runs.assert_same_run(outputs / name, outputs / f"{name}_tensorflow", limit)
    if not is_rounded:
        last = f"model.ckpt-{max(stats)}"
        runs.assert_close(outputs / name / last, outputs / f"{name}_tensorflow" / last)


@pytest.mark.parametrize("name", ["eight", "workers"])
def test_replicas_change_nothing(outputs, name):
    runs.assert_same_run(outputs / name, outputs / "static")
    runs.assert_close(outputs / name / "model.ckpt-10", outputs / "static/model.ckpt-10")


def test_a_killed_run_ends_with_the_same_bits(outputs):
    runs.assert_same_bits(outputs / "killed/model.ckpt-12", outputs / "straight/model.ckpt-12")


def test_a_checkpoint_of_tensorflow_is_read_and_written_bit_by_bit(outputs):
    runs.assert_same_bits(outputs / "read/model.ckpt-5", outputs / "static_tensorflow/model.ckpt-5")


def test_tensorflow_goes_on_from_a_checkpoint_of_jax(outputs):
    out = outputs / "back"
    copy(outputs / "static/model.ckpt-5", out)
    runs.main(flags(outputs, "back", **{**SAME["static"], "do_eval": False}))
    runs.assert_close(out / "model.ckpt-10", outputs / "static_tensorflow/model.ckpt-10")


def test_a_signal_saves(outputs):
    out = outputs / "stopped"
    assert checkpoint.listed(str(out)) == [str(out / f"model.ckpt-{step}") for step in (4, 6)]


def test_jax_without_a_tpu_is_one_line(folder, monkeypatch):
    monkeypatch.setattr("keras.config.backend", lambda: "jax")
    message = "JAX finds no TPU here, only cpu: .* or leave --use_tpu out to train"
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        runs.main(flags(folder, "none", use_tpu=True))
    assert not (folder / "none").exists()


def test_a_platform_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("JAX_PLATFORMS", "nowhere")
    code = "from albert_tf.training import jax_devices; jax_devices.connect()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1].startswith(
        "ValueError: JAX finds no device of JAX_PLATFORMS=nowhere ("
    )
