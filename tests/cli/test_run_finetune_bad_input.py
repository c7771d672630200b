"""run_finetune.py says in one line what is wrong with its flags and files, before any training."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from albert_tf.storage import checkpoint
from albert_tf.training.evaluation import RowOutputs
from albert_tf.training.trainer import Trainer
from tests.kit import finetune_runs as runs
from tests.kit import goldens, tiny
from tests.kit.files import refused

VOCABULARY = ("spiece.model", "tokenizer_config.json")
NO_WEIGHTS = {"from_scratch": None}
START = {**NO_WEIGHTS, "init_checkpoint": "{tmp}/none"}
ANOTHER_MODEL = goldens.checkpoint("base")
OF_ITSELF = {"do_predict": True, "output_dir": "x", "ensemble_dirs": "y,./x/"}
V2_DEV = str(runs.GOLDEN / "features/squad_v2_dev.json")
QUESTION = {"id": "a", "question": "Who?", "answers": []}
PARAGRAPHS = [{"context": "The cat sat.", "qas": [QUESTION]}]
FILES = {
    "text.json": "Who has a cat?",
    "no.json": json.dumps({"data": [{"paragraphs": PARAGRAPHS}]}),
    "MRPC/train.tsv": "Quality\t#1 String\n1\ta\n",
}
# Task, flags ({tmp} is a folder with FILES), and the error.
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("mrpc", NO_WEIGHTS, "set --init_checkpoint, or --from_scratch"),
    ("mrpc", {"do_train": None, "do_eval": True}, "--from_scratch without --do_train"),
    ("mrpc", {"init_checkpoint": "{tmp}"}, "--from_scratch and --init_checkpoint exclude"),
    ("mrpc", {**START, "albert_hub_module_handle": "b"}, "set one of them"),
    ("mrpc", START, "there is no checkpoint .*none"),
    ("mrpc", {**NO_WEIGHTS, "init_checkpoint": ANOTHER_MODEL}, "other shapes than the model"),
    ("squad_v1", {"do_eval": True, "predict_file": None}, "in --predict_file: "),
    ("squad_v2", {"end_n_top": 62}, "at most 61 .--max_seq_length."),
    ("mrpc", {"export_dir": "{tmp}/MRPC"}, "already exists: give a"),
    ("mrpc", {"export_dir": "{tmp}/a[1]"}, "a.1.: .* pattern"),
    ("mrpc", {"export_dir": "nowhere://b"}, "nowhere://b can't be written:"),
    ("mrpc", {"do_train": None}, "set --do_train, --do_eval,"),
    ("mrcp", {}, "--task_name must be one of cola, mnli, .*, not 'mrcp'"),
    ("ax", {"data_dir": "{tmp}"}, "task ax has no train split, only test"),
    ("mrpc", {"data_dir": None}, "files in --data_dir"),
    ("squad_v1", {"train_file": None}, "in --train_file"),
    ("mrpc", {"albert_config_file": None}, "no config: set --albert_config_file"),
    ("mrpc", {"cached_dir": "{tmp}/text.json/a"}, "not a directory$"),
    ("mrpc", {"spm_model_file": None}, "no vocabulary: set --spm_model_file"),
    ("mrpc", {"albert_config_file": "{tmp}/small.json"}, "en_small.model has 6000"),
    ("mrpc", {"max_seq_length": 71}, "--max_seq_length must be from 4 to"),
    ("mrpc", {"train_step": 10**9}, "1000000000 steps of .* examples exceed .*"),
    ("mrpc", {"num_train_epochs": 2}, "--num_train_epochs and --train_step exclude"),
    ("race", {**OF_ITSELF, "do_train": None}, "--output_dir is one of --ensemble_dirs"),
    ("race", {"high_only": True, "middle_only": True}, "--high_only and --middle_only"),
    ("mrpc", {"train_batch_size": 9}, "fewer than a batch of 9"),
    ("mrpc", {"output_dir": "{tmp}/text.json"}, "--output_dir .* can't be written"),
    ("mrpc", {"data_dir": "{tmp}"}, "MRPC/train.tsv:1: expected a header with"),
    ("squad_v1", {"max_query_length": 60}, "max_query_length 60 leaves no room for the"),
    ("squad_v2", {"predict_file": "{tmp}/no.json", "do_predict": True}, "no.json .*--eval_file"),
    ("squad_v1", {"train_file": V2_DEV}, "no answer, .*: set --task_name=squad_v2"),
    ("choice", {"choice_columns": "a"}, "two columns, not only a"),
    ("choice", {"train_file": "x.csv"}, "--choice_columns names the columns"),
]


@pytest.mark.parametrize(("task", "changes", "message"), BAD)
def test_bad_input_is_one_line_before_any_training(tmp_path, task, changes, message, monkeypatch):
    for name, content in FILES.items():
        tiny.write(tmp_path / name, content)
    runs.write_config(tmp_path, vocab_size=53).rename(tmp_path / "small.json")
    monkeypatch.setattr(Trainer, "train", lambda *_, **__: pytest.fail("it trains"))
    monkeypatch.setattr(RowOutputs, "__call__", lambda *_: pytest.fail("it predicts"))
    filled = {
        name: value.format(tmp=tmp_path) if isinstance(value, str) else value
        for name, value in {"do_train": True, **changes}.items()
    }
    out = pathlib.Path(filled.get("output_dir") or tmp_path / "out")
    with refused(message):
        runs.main(runs.command(task, tmp_path, **filled))
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
    changes = {name: str(value).format(out=out) for name, value in start.items()}
    named = out if held in ("model.ckpt-best", "huggingface") else out / held
    with refused(f"give another directory, and --init_checkpoint={named} ", out):
        runs.main(runs.command("mrpc", tmp_path, do_train=True, **{**NO_WEIGHTS, **changes}))
