"""run_finetune.py --backend=jax: resumes TensorFlow's runs, and ends as they do.

Not tested here: GPUs and TPUs. The training loop is tested in test_run_pretraining_jax.py.
"""

import json
import pathlib
from typing import Any

import pytest

from albert_tf.storage import checkpoint, eval_results
from tests.cli import test_run_finetune_tokens as tokens
from tests.kit import finetune_runs as runs
from tests.kit import jax_process, pretraining_runs, tolerances

pytest.importorskip("jax")

STEPS = {"train_step": 4, "save_checkpoints_steps": 2, "iterations_per_loop": 1}
FILES = {"train_file": "train.conll", "eval_file": "dev.conll", "predict_file": "new.conll"}
ENDS = [("start", "dense", "bias"), ("end", "LayerNorm", "beta"), ("end", "dense_1", "bias")]
# A softmax over choices or positions doesn't depend on a bias that all their logits share.
UNSEEN_BIASES = {
    "race": ("output_bias",),
    "squad_v1": ("output_bias",),
    # A dense layer maps beta to one number, the same at all positions.
    "squad_v2": tuple(f"{a}_logits/{b}/{c}" for a, b, c in ENDS),
}
_STSB = runs.GOLDEN / "features/glue_data/STS-B"
# Pairs without scores, since no column is named label.
EMBEDDING = {"text_column": "sentence1", "text_pair_column": "sentence2"}
EMBEDDING |= {"matryoshka_dimensions": "5,3"}
EMBEDDING |= {"train_file": _STSB / "train.tsv", "eval_file": _STSB / "dev.tsv", "data_dir": None}
EMBEDDING |= {"predict_file": _STSB / "test.tsv", "max_seq_length": 23}
# In the first task, batches alternate between lengths.
TASKS: dict[str, dict[str, Any]] = {
    "cola": {"static_lengths": 2},
    "race": {"gradient_accumulation_steps": 3},
    "squad_v1": {},
    "squad_v2": {},
    "embedding": {**EMBEDDING, "gradient_accumulation_steps": 3},
    "token_classification": {**FILES, "data_dir": None, "max_seq_length": 19},
}


def as_script(command: str) -> None:
    runs.main_of_a_process(json.loads(command))


def run_on_both(task: str, folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Trains on TensorFlow, and from its step 2 on JAX; returns both folders, JAX's first."""
    for name in ("train", "dev", "new"):
        tokens.write(folder / f"{name}.conll", columns=1 if name == "new" else 2)
    config = runs.write_config(folder, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    both = {**STEPS, "albert_config_file": config, "dropout_prob": 0, **TASKS[task]}
    both |= {name: folder / both[name] for name in FILES if both.get(name) in FILES.values()}
    both |= {"do_train": True, "do_eval": True, "do_predict": True}
    out, other = folder / "jax", folder / "tensorflow"
    runs.main(runs.command(task, folder, output_dir=other, **both))
    out.mkdir()
    checkpoint.save(str(out), 2, checkpoint.read(str(other / "model.ckpt-2")), 1)
    command = json.dumps(runs.command(task, folder, output_dir=out, **both))
    jax_process.finish(jax_process.start(as_script, command))
    return out, other


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_same_as_on_tensorflow(tmp_path, task):
    out, other = run_on_both(task, tmp_path)
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
