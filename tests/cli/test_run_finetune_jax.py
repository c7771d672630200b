"""run_finetune.py --backend=jax: goes on with TensorFlow's runs, and ends as they do.

Can't see: a GPU, a TPU. What the loop does is in test_run_pretraining_jax.py.
"""

import json
import pathlib
from typing import Any

import pytest

from albert_tf.storage import checkpoint, eval_results
from tests import finetune_runs as runs
from tests import jax_process, pretraining_runs, tolerances
from tests.cli import test_run_finetune_tokens as tokens

pytest.importorskip("jax")

STEPS = {"train_step": 4, "save_checkpoints_steps": 2, "iterations_per_loop": 1}
FILES = {"train_file": "train.conll", "eval_file": "dev.conll", "predict_file": "new.conll"}
# A softmax over choices or positions does not see the bias of their logits.
UNSEEN_BIASES = {
    "race": ("output_bias",),
    "squad_v1": ("output_bias",),
    "squad_v2": (
        "start_logits/dense/bias",
        # Its dense layer makes one number of it, the same at all positions.
        "end_logits/LayerNorm/beta",
        "end_logits/dense_1/bias",
    ),
}
# Lengths of batches alternate in the first.
TASKS: dict[str, dict[str, Any]] = {
    "cola": {"static_lengths": 2},
    "race": {"gradient_accumulation_steps": 3},
    "squad_v1": {},
    "squad_v2": {},
    "token_classification": {**FILES, "data_dir": None, "max_seq_length": 19},
}


def run_all(file: str) -> None:
    """In a process on JAX: runs commands."""
    for command in json.loads(pathlib.Path(file).read_text()):
        runs.main(command)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """All tasks on TensorFlow; on JAX from its second step on."""
    folder = tmp_path_factory.mktemp("finetuning")
    for name in ("train", "dev", "new"):
        tokens.write(folder / f"{name}.conll", columns=1 if name == "new" else 2)
    config = runs.write_config(folder, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    on_jax = []
    for task, changes in TASKS.items():
        both = {**STEPS, "albert_config_file": config, "dropout_prob": 0, **changes}
        both |= {name: folder / both[name] for name in FILES if both.get(name) in FILES.values()}
        both |= {"do_train": True, "do_eval": True, "do_predict": True}
        runs.main(runs.command(task, folder, output_dir=folder / f"{task}_tensorflow", **both))
        out = folder / task
        out.mkdir()
        second = checkpoint.read(str(folder / f"{task}_tensorflow/model.ckpt-2"))
        checkpoint.save(str(out), 2, second, 1)
        on_jax.append(runs.command(task, folder, output_dir=out, **both))
    file = folder / "commands.json"
    file.write_text(json.dumps(on_jax))
    jax_process.finish(jax_process.start(run_all, file))
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_the_same_as_on_tensorflow(folder, task):
    out, other = folder / task, folder / f"{task}_tensorflow"
    stats, expected = pretraining_runs.scalars(out), pretraining_runs.scalars(other)
    assert sorted(stats) == [3, 4]
    for step, found in stats.items():
        for name in ("loss", "learning_rate", "grad_norm"):
            limit = tolerances.TRAJECTORY_LOSS * max(1, abs(expected[step][name]))
            assert abs(found[name] - expected[step][name]) <= limit, (step, name)
    noise = ("self/key/bias", *UNSEEN_BIASES.get(task, ()))
    pretraining_runs.assert_close(out / "model.ckpt-4", other / "model.ckpt-4", noise)
    mine, theirs = map(eval_results.read_all, (out, other))
    assert [each.step for each in mine] == [each.step for each in theirs] == [2, 4]
    for one, another in zip(mine, theirs, strict=True):
        assert one.metrics == pytest.approx(another.metrics, 1e-7, tolerances.TRAJECTORY_LOSS)
    written = {path.name for path in other.iterdir() if path.is_file()}
    events = {name for name in written if name.startswith("events.")}
    assert written - events <= {path.name for path in out.iterdir()}
