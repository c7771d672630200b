"""run_pretraining.py --backend=jax: compared with TensorFlow, on several devices, and killed.

Not tested here: GPUs, TPUs, and several hosts with them.
"""

import contextlib
import errno
import json
import os
import pathlib
import re
import signal
import time
from typing import Any

import keras
import pytest

from albert_tf import AlbertForPreTraining
from albert_tf.cli import pretrain
from albert_tf.console import tf_config
from albert_tf.storage import checkpoint
from albert_tf.training.progress import ProgressLog
from tests.cli import test_run_pretraining_packed as packed
from tests.kit import jax_process, tiny, tolerances, two_workers
from tests.kit import pretraining_runs as runs
from tests.kit.museum import Museum, exhibit

pytest.importorskip("jax")
pytestmark = pytest.mark.slow

DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
# Runs compared with TensorFlow's, from the same weights; the first also on several devices.
SAME = {
    "static": {"train_batch_size": 24, "save_checkpoints_steps": 5}
    | {"eval_batch_size": 24, "do_eval": True},
    "packed": {"albert_config_file": "two_layers.json", "input_file": "packed_rows"}
    | {"max_seq_length": packed.WIDTH, "max_predictions_per_seq": packed.PREDICTIONS}
    | {"max_examples_per_row": packed.SLOTS, "gradient_accumulation_steps": 3}
    | {"train_batch_size": 6, "num_train_steps": 4, "recompute": True}
    | {"optimizer": "adamw", "sentence_order_weight": 0, "elastic_depths": "1"},
    "dynamic": {"input_file": "compact_rows", "masking": "dynamic"}
    | {"precision": "bfloat16", "num_train_steps": 4},
}
# A step has 24 examples: eight devices take one each, three times; two processes are two devices.
SHARDED = {**SAME["static"], "shard_optimizer_state": True}
EIGHT = {**SHARDED, "gradient_accumulation_steps": 3}


def as_script(command: str, step: str = "0", number: str = "0") -> None:
    """Runs the script, which sends itself a signal when that step is reported."""
    report = ProgressLog.report

    def signalled(self: ProgressLog, at: int, *args: Any, **kwargs: Any) -> None:
        if at == int(step):
            os.kill(os.getpid(), int(number))
            time.sleep(0.3)  # Time for the listening thread to notice.
        report(self, at, *args, **kwargs)

    ProgressLog.report = signalled
    runs.main_of_a_process(json.loads(command))


def without_records(command: str) -> None:
    """Runs the script; the first worker can't read its records when training begins."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if tf_config.index() == 0:
        pretrain.input_pipeline.training_dataset = fail
    as_script(command)


def read_and_save(command: str) -> None:
    with contextlib.ExitStack() as held:
        _, trainer, *_ = pretrain.prepare(runs.parse(json.loads(command)), held)
        trainer.save(0)
        trainer.wait_until_saved()


def unknown_platform() -> None:
    import jax

    from albert_tf.training import jax_devices

    os.environ["JAX_PLATFORMS"] = "nowhere"
    jax.config.update("jax_platforms", "nowhere")
    jax_devices.connect()


@exhibit
def on_both_backends(folder: pathlib.Path, museum: Museum) -> None:
    """Records of three kinds, initial weights, and the first run on JAX and on TensorFlow."""
    runs.write_records(folder / "a.tfrecord", runs.examples(70, seed=1))
    runs.write_records(folder / "compact_rows", runs.compact_examples(50))
    runs.write_records(folder / "packed_rows", runs.packed(packed.short_examples(), packed.SLOTS))
    runs.write_config(folder / "albert_config.json", num_hidden_layers=1)
    runs.write_config(folder / "two_layers.json")
    runs.write_config(folder / "with_dropout.json", num_hidden_layers=1, **DROPOUT)
    keras.utils.set_random_seed(11)
    model = AlbertForPreTraining(tiny.config(num_hidden_layers=1))
    (folder / "weights").mkdir()  # Without a config beside them.
    checkpoint.write(str(folder / "weights/initial"), tiny.weights(model))
    run_on_both(folder, folder, "static")


@pytest.fixture(scope="module")
def folder(museum) -> pathlib.Path:
    return museum("on_both_backends")


def flags(folder: pathlib.Path, out: pathlib.Path, **changes: Any) -> list[str]:
    files = ("albert_config_file", "input_file")
    changes |= {flag: folder / changes[flag] for flag in files if flag in changes}
    return runs.command(folder, output_dir=out, **changes)


def from_initial(folder: pathlib.Path, out: pathlib.Path, **changes: Any) -> list[str]:
    return flags(folder, out, init_checkpoint=folder / "weights/initial", **changes)


def with_dropout(folder: pathlib.Path, out: pathlib.Path, **changes: Any) -> list[str]:
    own = {"num_train_steps": 12, "save_checkpoints_steps": 4, "iterations_per_loop": 3}
    return flags(folder, out, albert_config_file="with_dropout.json", **{**own, **changes})


def start(command: list[str], *arguments: Any, **how: Any) -> jax_process.Process:
    return jax_process.start(as_script, json.dumps(command), *arguments, **how)


def run_on_both(folder: pathlib.Path, out: pathlib.Path, name: str) -> None:
    process = start(from_initial(folder, out / name, **SAME[name]))
    runs.main(from_initial(folder, out / f"{name}_tensorflow", **SAME[name]))
    jax_process.finish(process)


def copy(prefix: pathlib.Path, folder: pathlib.Path) -> None:
    folder.mkdir()
    checkpoint.save(str(folder), int(prefix.name[-1]), checkpoint.read(str(prefix)), 1)


@pytest.mark.parametrize("name", SAME)
def test_the_same_as_on_tensorflow(folder, tmp_path, name):
    where = folder if name == "static" else tmp_path
    if name != "static":
        run_on_both(folder, where, name)
    is_rounded = "precision" in SAME[name]
    limit = tolerances.BFLOAT16_LOSS if is_rounded else tolerances.TRAJECTORY_LOSS
    stats = runs.assert_same_run(where / name, where / f"{name}_tensorflow", limit)
    if not is_rounded:
        last = f"model.ckpt-{max(stats)}"
        runs.assert_close(where / name / last, where / f"{name}_tensorflow" / last)


def assert_same_as_alone(folder: pathlib.Path, out: pathlib.Path) -> None:
    runs.assert_same_run(out, folder / "static")
    runs.assert_close(out / "model.ckpt-10", folder / "static/model.ckpt-10")


def test_eight_devices_change_nothing(folder, tmp_path):
    jax_process.finish(start(from_initial(folder, tmp_path / "out", **EIGHT), devices=8))
    assert_same_as_alone(folder, tmp_path / "out")


def test_two_workers_change_nothing(folder, tmp_path):
    command = from_initial(folder, tmp_path / "out", **SHARDED)
    workers = [start(command, **environment) for environment in two_workers.environments()]
    assert "saved" in jax_process.finish(workers[0])
    assert "saved" not in jax_process.finish(workers[1])
    assert_same_as_alone(folder, tmp_path / "out")


def test_an_error_of_one_worker_ends_all(folder, tmp_path):
    command = json.dumps(with_dropout(folder, tmp_path / "out", train_batch_size=24))
    workers = [
        jax_process.start(without_records, command, **environment)
        for environment in two_workers.environments()
    ]
    first = jax_process.finish(workers[0], 1)
    assert "connecting with the other workers: localhost:" in first
    assert first.splitlines()[-1].endswith("error: [Errno 5] Input/output error")
    second, _ = workers[1].communicate(timeout=60)
    # JAX may notice before the step fails, and end the process itself.
    ours = "error: another worker was lost .*: see its log, and start the same command again"
    assert workers[1].returncode and re.search(f"{ours}|another task died", second)


def test_a_stopped_and_killed_run_ends_with_the_same_bits(folder, tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    jax_process.finish(start(with_dropout(folder, straight)))
    one_by_one = with_dropout(folder, killed, iterations_per_loop=1)
    jax_process.finish(start(one_by_one, 5, signal.SIGTERM.value))
    steps = [str(killed / f"model.ckpt-{step}") for step in (4, 6)]
    assert checkpoint.listed(str(killed)) == steps
    jax_process.finish(start(one_by_one, 9, signal.SIGKILL.value), -signal.SIGKILL)
    written = jax_process.finish(start(with_dropout(folder, killed)))
    # The checkpoint of step 8 may not have been complete.
    assert re.search(r"resume: step [68] of", written)
    runs.assert_same_bits(killed / "model.ckpt-12", straight / "model.ckpt-12")


def test_a_checkpoint_of_tensorflow_is_read_and_written_bit_by_bit(folder, tmp_path):
    expected, found = folder / "static_tensorflow/model.ckpt-5", tmp_path / "out/model.ckpt-5"
    copy(expected, found.parent)
    before = pathlib.Path(f"{found}.index").stat().st_mtime_ns
    command = json.dumps(flags(folder, found.parent, **SAME["static"]))
    jax_process.finish(jax_process.start(read_and_save, command))
    assert pathlib.Path(f"{found}.index").stat().st_mtime_ns > before
    runs.assert_same_bits(found, expected)


def test_tensorflow_goes_on_from_a_checkpoint_of_jax(folder, tmp_path, eager):
    copy(folder / "static/model.ckpt-5", tmp_path / "out")
    runs.main(flags(folder, tmp_path / "out", **{**SAME["static"], "do_eval": False}))
    runs.assert_close(tmp_path / "out/model.ckpt-10", folder / "static_tensorflow/model.ckpt-10")


def test_jax_without_a_tpu_is_one_line(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("keras.config.backend", lambda: "jax")
    message = "JAX finds no TPU here, only cpu: .* or leave --use_tpu out to train"
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        runs.main(flags(folder, tmp_path / "none", use_tpu=True))
    assert not (tmp_path / "none").exists()


def test_a_platform_that_is_not_there_is_named():
    written = jax_process.finish(jax_process.start(unknown_platform), 1)
    assert "ValueError: JAX finds no device of JAX_PLATFORMS=nowhere (" in written
