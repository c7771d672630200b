"""run_finetune.py says in one line what is wrong with its flags and files, before any training."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from albert_tf.storage import checkpoint
from albert_tf.training.evaluation import RowOutputs
from albert_tf.training.trainer import Trainer
from tests import finetune_runs as runs
from tests import goldens, tiny

VOCABULARY = ("spiece.model", "tokenizer_config.json")
NO_WEIGHTS = {"from_scratch": None}
START = {**NO_WEIGHTS, "init_checkpoint": "{tmp}/none"}
V2_DEV = str(runs.GOLDEN / "features/squad_v2_dev.json")
QUESTION = {"id": "a", "question": "Who?", "answers": []}
PARAGRAPHS = [{"context": "The cat sat.", "qas": [QUESTION]}]
FILES = {
    "text.json": "Who has a cat?",
    "unlabelled.json": json.dumps({"data": [{"paragraphs": PARAGRAPHS}]}),
    "MRPC/train.tsv": "Quality\t#1 String\n1\ta\n",
}
# Task, flags ({tmp} is a folder with FILES), and the error.
BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "no weights": ("mrpc", NO_WEIGHTS, "no weights to start from: .*set --init_checkpoint, or --f"),
    "noise": ("mrpc", {"do_train": None, "do_eval": True}, "--from_scratch without --do_train"),
    "both": ("mrpc", {"init_checkpoint": "{tmp}"}, "--from_scratch and --init_checkpoint exclude"),
    "two": ("mrpc", {**START, "albert_hub_module_handle": "b"}, "set one of them"),
    "no predict_file": ("squad_v1", {"do_eval": True, "predict_file": None}, "in --predict_file: "),
    "a beam without room": ("squad_v2", {"end_n_top": 62}, "at most 61 .--max_seq_length."),
    "an export that is there": ("mrpc", {"export_dir": "{tmp}/MRPC"}, "already exists: give a"),
    "an export that reads as a pattern": ("mrpc", {"export_dir": "{tmp}/a[1]"}, "for a pattern: g"),
    "an export elsewhere": ("mrpc", {"export_dir": "nowhere://b"}, "nowhere://b can't be written:"),
    "nothing to do": ("mrpc", {"do_train": None}, "nothing to do: set --do_train, --do_eval,"),
    "task": ("mrcp", {}, "--task_name must be one of cola, mnli, .*, not 'mrcp'"),
    "ax": ("ax", {"data_dir": "{tmp}"}, "task ax has no train split, only test"),
    "no data_dir": ("mrpc", {"data_dir": None}, "reads files in --data_dir: set that too"),
    "no train_file": ("squad_v1", {"train_file": None}, "is in --train_file: set that too"),
    "no config": ("mrpc", {"albert_config_file": None}, "no config: set --albert_config_file"),
    "no place for features": ("mrpc", {"cached_dir": "{tmp}/text.json/a"}, "not a directory$"),
    "no vocabulary": ("mrpc", {"spm_model_file": None}, "no vocabulary: set --spm_model_file"),
    "vocabulary": ("mrpc", {"albert_config_file": "{tmp}/small.json"}, "en_small.model has 6000"),
    "positions": ("mrpc", {"max_seq_length": 71}, "--max_seq_length must be from 4 to"),
    "init_checkpoint": ("mrpc", START, "there is no checkpoint .*none"),
    "another model": (
        "mrpc",
        {**NO_WEIGHTS, "init_checkpoint": goldens.checkpoint("base")},
        "has other shapes than the model",
    ),
    "too many steps": ("mrpc", {"train_step": 10**9}, "1000000000 steps of .* examples exceed .*"),
    "steps twice": ("mrpc", {"num_train_epochs": 2}, "--num_train_epochs and --train_step exclude"),
    "ensemble of itself": (
        "race",
        {"do_train": None, "do_predict": True, "output_dir": "x", "ensemble_dirs": "y,./x/"},
        "--output_dir is one of --ensemble_dirs, .*: give another directory",
    ),
    "levels": ("race", {"high_only": True, "middle_only": True}, "--high_only and --middle_only"),
    "fewer than a batch": ("mrpc", {"train_batch_size": 9}, "fewer than a batch of 9: lower"),
    "output_dir": ("mrpc", {"output_dir": "{tmp}/text.json"}, "--output_dir .* can't be written"),
    "column": ("mrpc", {"data_dir": "{tmp}"}, "MRPC/train.tsv:1: expected a header with"),
    "window": ("squad_v1", {"max_query_length": 60}, "max_query_length 60 leaves no room for the"),
    "no answers": (
        "squad_v2",
        {"predict_file": "{tmp}/unlabelled.json", "do_predict": True},
        "unlabelled.json has no answers to evaluate with: give another file with --eval_file",
    ),
    "no answer": ("squad_v1", {"train_file": V2_DEV}, "no answer, .*: set --task_name=squad_v2"),
    "a choice": ("choice", {"choice_columns": "a"}, "at least two columns, not only a"),
    "choices": ("choice", {"train_file": "x.csv"}, "--choice_columns names the columns of"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_before_any_training(tmp_path, case, monkeypatch):
    task, changes, message = BAD[case]
    for name, content in FILES.items():
        tiny.write(tmp_path / name, content)
    small = runs.write_config(tmp_path, vocab_size=53)
    small.rename(tmp_path / "small.json")
    monkeypatch.setattr(Trainer, "train", lambda *_, **__: pytest.fail("it trains"))
    monkeypatch.setattr(RowOutputs, "__call__", lambda *_: pytest.fail("it predicts"))
    filled = {
        name: value.format(tmp=tmp_path) if isinstance(value, str) else value
        for name, value in {"do_train": True, **changes}.items()
    }
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        runs.main(runs.command(task, tmp_path, **filled))
    out = pathlib.Path(filled.get("output_dir") or tmp_path / "out")
    left = {path.name for path in out.glob("*")}
    beside = {"albert_config.json", "labels.jsonl", "run.json", *VOCABULARY}
    assert left <= beside | {"checkpoint", "run.lock"}
    assert checkpoint.listed(str(out)) == []


@pytest.mark.parametrize("start", [{"init_checkpoint": "{out}"}, {"from_scratch": True}, {}])
@pytest.mark.parametrize("held", ["model.ckpt-best", "model.ckpt-7", "albert", "huggingface"])
def test_a_run_begins_in_no_directory_of_a_model(tmp_path, held, start):
    """As where the release was unpacked: checkpoints, and no file that lists them."""
    out = tmp_path / "out"
    out.mkdir()
    if held == "huggingface":
        (out / "config.json").write_text('{"model_type": "albert"}')
    else:
        checkpoint.write(str(out / held), {"global_step": np.int64(0)})
    (out / "albert_config.json").write_text("theirs")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    changes = {name: str(value).format(out=out) for name, value in start.items()}
    named = out if held in ("model.ckpt-best", "huggingface") else out / held
    with pytest.raises(SystemExit, match=f"give another directory, and --init_checkpoint={named} "):
        runs.main(runs.command("mrpc", tmp_path, do_train=True, **{**NO_WEIGHTS, **changes}))
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
