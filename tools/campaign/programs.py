"""The scripts with tiny inputs, and the outputs that must be reproducible."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile
import time
from functools import partial
from typing import Any
from unittest import mock

from albert_tf.cli import create_pretraining_data, export
from albert_tf.training.progress import ProgressLog
from tests.kit import finetune_runs, tiny
from tests.kit import pretraining_runs as runs
from tools.campaign.processes import CONTEXT, Program

# --- pre-training -----------------------------------------------------------------------------


def _make_records(folder: pathlib.Path) -> None:
    runs.write_records(folder / "a.tfrecord", runs.examples(41, seed=1))
    runs.write_records(folder / "b.tfrecord", runs.examples(29, seed=2))
    runs.write_config(folder / "albert_config.json", hidden_dropout_prob=0.1)


def _make_compact_records(folder: pathlib.Path) -> None:
    for number, count in enumerate((41, 29)):
        rows = runs.compact_examples(count, seed=number)
        runs.write_records(folder / f"{number}.tfrecord", rows)
    runs.write_config(folder / "albert_config.json", hidden_dropout_prob=0.1)


def _pretraining(folder: pathlib.Path, out: pathlib.Path, **changes: Any) -> list[str]:
    sizes = {"num_train_steps": 24, "save_checkpoints_steps": 4, "keep_checkpoint_max": 2}
    return runs.command(folder, output_dir=out, **{**sizes, **changes})


def _pretrain(arguments: list[str]) -> None:
    """Rests after each step: a run of so small a model would be over before it can be killed."""
    report = ProgressLog.report

    def rest(*args: Any, **kwargs: Any) -> None:
        report(*args, **kwargs)
        time.sleep(0.05)

    with mock.patch.object(ProgressLog, "report", rest):
        runs.main(arguments)


def _pretrain_timed(arguments: list[str]) -> None:
    """Counts steps in place of seconds, so that all runs settle their decay at the same step."""
    with runs.clock_by_steps(2.0):
        _pretrain(arguments)


def _checkpoint(out: pathlib.Path, name: str) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in runs.tensors(out / name).items()}


# --- fine-tuning ------------------------------------------------------------------------------


def _make_finetuning(folder: pathlib.Path) -> None:
    finetune_runs.write_config(folder)


def finetuning_arguments(folder: pathlib.Path, out: pathlib.Path) -> list[str]:
    """Returns the command line of a run that trains, evaluates and predicts."""
    return finetune_runs.command(
        "mrpc",
        folder,
        albert_config_file=folder / "tiny.json",
        output_dir=out,
        cached_dir=out / "features",
        train_step=8,
        save_checkpoints_steps=2,
        keep_checkpoint_max=0,
        do_train=True,
        do_eval=True,
        do_predict=True,
    )


def _finetuned(out: pathlib.Path) -> dict[str, bytes]:
    names = ("test_results.tsv", "eval_results.jsonl", "eval_results.txt", "best_trial.txt")
    place = str(out).encode()
    return {
        **{name: (out / name).read_bytes().replace(place, b"") for name in names},
        **_checkpoint(out, "model.ckpt-best"),
        **_checkpoint(out, "model.ckpt-8"),
    }


# --- generation -------------------------------------------------------------------------------


def _make_text(folder: pathlib.Path) -> None:
    text = (finetune_runs.GOLDEN / "pretrain_data" / "text.txt").read_text()
    for number in range(2):
        (folder / f"{number}.txt").write_text((text + "\n") * 6)


def _generation(folder: pathlib.Path, out: pathlib.Path, num_processes: int = 1) -> list[str]:
    values = {
        "input_file": folder / "*.txt",
        "output_file": out / "records",
        "spm_model_file": finetune_runs.GOLDEN / "spm/en_small.model",
        "num_output_shards": 6,
        "max_seq_length": 128,
        "dupe_factor": 3,
        "num_processes": num_processes,
        "block_megabytes": 0.05,
    }
    return [f"--{name}={value}" for name, value in values.items()]


def _shards(out: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob("records-*-of-*"))}


# --- export -----------------------------------------------------------------------------------


def _make_trained(folder: pathlib.Path) -> None:
    """Writes a tiny pre-trained model and its vocabulary, with this process's TensorFlow."""
    process = CONTEXT.Process(target=_store_model, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == 0, "no model to export"


def _store_model(folder: pathlib.Path) -> None:
    import albert_tf

    config = tiny.config(vocab_size=6000, max_position_embeddings=32)
    tiny.store(folder, tiny.randomise(albert_tf.AlbertForPreTraining(config)))
    spm = finetune_runs.GOLDEN / "spm/en_small.model"
    (folder / "30k-clean.model").write_bytes(spm.read_bytes())


def _export(folder: pathlib.Path, out: pathlib.Path) -> list[str]:
    return [f"--model={folder}", "--task=fill_mask", f"--export_dir={out / 'model'}"]


def _exported(out: pathlib.Path) -> dict[str, bytes]:
    """Returns weights bit by bit; other files, whose order and times vary, only by name."""
    model = out / "model"
    files = {str(path.relative_to(model)): path for path in model.rglob("*") if path.is_file()}
    data = {name for name in files if name.startswith("variables/") and ".data-" in name}
    return {name: path.read_bytes() if name in data else b"" for name, path in files.items()}


def _pretrained(out: pathlib.Path) -> dict[str, Any]:
    return _checkpoint(out, "model.ckpt-24")


_SAVES = {"saved": "model.ckpt-[0-9]*.index", "saving": "model.ckpt-[0-9]*.meta"}
PRETRAINING = Program("pre-training", _pretrain, _make_records, _pretraining, _pretrained, **_SAVES)
_SHARD = "records-*.unfinished"
_generate, _export_main = (
    partial(tiny.run_main, main) for main in (create_pretraining_data.main, export.main)
)
GENERATION = Program("generation", _generate, _make_text, _generation, _shards, saved=_SHARD)
FINETUNING = Program(
    *("fine-tuning", finetune_runs.main, _make_finetuning, finetuning_arguments, _finetuned),
    **_SAVES,
)
EXPORT = Program("export", _export_main, _make_trained, _export, _exported, resumes=False)
PROGRAMS = (
    PRETRAINING,
    GENERATION,
    FINETUNING,
    EXPORT,
    dataclasses.replace(
        PRETRAINING,
        name="pre-training with a late decay",
        arguments=partial(_pretraining, schedule="wsd", decay_steps=10),
    ),
    dataclasses.replace(
        PRETRAINING,
        name="pre-training of some minutes",
        main=_pretrain_timed,
        # Two seconds a step, and as many to compile the decay: 24 steps in all.
        arguments=partial(
            _pretraining, num_train_steps=None, train_minutes=50 / 60, decay_steps=10
        ),
    ),
    dataclasses.replace(
        PRETRAINING,
        name="pre-training with dynamic masks",
        make=_make_compact_records,
        arguments=partial(_pretraining, masking="dynamic"),
    ),
    dataclasses.replace(
        PRETRAINING,
        name="pre-training on JAX",
        arguments=partial(_pretraining, backend="jax"),
        environment={
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            # Optimising the programs would take longer than running them.
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "JAX_COMPILATION_CACHE_DIR": os.path.join(tempfile.gettempdir(), "campaign-jax-cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        },
    ),
    dataclasses.replace(
        GENERATION,
        name="generation by two processes",
        arguments=partial(_generation, num_processes=2),
    ),
)
