"""run_pretraining.py says in one line what is wrong with its input, before any work."""

import os
import pathlib
import types
from typing import Any

import numpy as np
import pytest

from albert_tf.cli import pretrain
from albert_tf.storage import checkpoint, files
from tests import goldens, two_workers
from tests import pretraining_runs as runs

# Flags that contradict themselves or each other, and the error.
BAD_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing to do": ({"do_train": "false"}, "nothing to do: set --do_train or --do_eval"),
    "budget of static masks": (
        {"masked_lm_budget": 0.1, "masking": "static"},
        "--masked_lm_prob=0.1 draws masks during training, --masking=static .*: leave one of",
    ),
    "masks far from a TPU": (
        {"masking": "dynamic", "use_tpu": "true", "tpu_name": "node-1"},
        "--masking=dynamic draws masks in this process, which the remote TPU .node-1. can.t call",
    ),
    "no output_dir": ({"output_dir": ""}, "--output_dir is empty"),
}
OUT_OF_BOUNDS = (
    *("num_train_steps=0", "num_warmup_steps=-1", "keep_checkpoint_max=-1", "random_seed=-1"),
    *("learning_rate=-1", "learning_rate=nan", "poly_power=0", "max_examples_per_row=0"),
    *(f"sentence_order_weight={value}" for value in ("-0.5", "nan", "inf")),
    *("masked_lm_prob=20", "ngram=0", "adam_beta1=1", "decay_steps=0", "train_minutes=0"),
)
COMPACT = {"input_file": "{tmp}/compact", "masking": "dynamic"}
# Flags (formatted with a folder for this test) that contradict files, and the error.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "missing file": ({"input_file": "{tmp}/none"}, "input file .*none does not exist"),
    "no match": ({"input_file": "{tmp}/*.none"}, "does not exist: no file matches it"),
    "empty file": ({"input_file": "{tmp}/empty"}, "empty is empty: generate it again"),
    "cut file": ({"input_file": "{tmp}/cut"}, "cut, record 30, is truncated or corrupt"),
    "flipped bit": ({"input_file": "{tmp}/flipped"}, "flipped, record 0, is truncated or corrupt"),
    "text file": ({"input_file": "{tmp}/text"}, "text, record 0, is truncated or corrupt"),
    "other length": ({"max_seq_length": 19}, "record 0 has 23 values of input_ids, .*--max_seq_"),
    "packed": ({"input_file": "{tmp}/packed"}, "expects 1: set --max_examples_per_row=3$"),
    "not packed": ({"max_examples_per_row": 3}, "expects 3: set --max_examples"),
    "packed in another way": (
        {"input_file": "{tmp}/packed", "max_examples_per_row": 2},
        "record 0 has 3 values of next_sentence_labels, this run expects 2: set --max_examples",
    ),
    "small vocabulary": (
        {"albert_config_file": "{tmp}/small.json"},
        "record 0 has input_ids from 0 to .*, expected 0 to 6: use the config",
    ),
    "few positions": ({"albert_config_file": "{tmp}/few.json"}, "--max_seq_length .* to 19 "),
    "batch": (
        {"train_batch_size": 13, "gradient_accumulation_steps": 3},
        "--train_batch_size 13 can't be split evenly over 1 .* with 3 .*: make it a multiple of 3",
    ),
    "static masks": ({"input_file": "{tmp}/compact"}, "has no masks: set --masking=dynamic"),
    "dynamic masks": ({"masking": "dynamic"}, "--masking=static, and leave out --masked_lm_prob"),
    "shares of masks": (
        {**COMPACT, "mask_replace_prob": 0.95},
        "--mask_replace_prob and --random_replace_prob, 0.95 and 0.1, must not exceed 1 together",
    ),
    "compact records of another length": (
        {**COMPACT, "max_seq_length": 29},
        "the records have rows of 23 tokens: set --max_seq_length to that, not 29",
    ),
    "compact records of more pieces": (
        {**COMPACT, "albert_config_file": "{tmp}/fewer.json"},
        "the records have 53 pieces and 2 token types, but the config 52 and 2: use the con",
    ),
    "predictions": ({"max_predictions_per_seq": 29}, "set --max_predictions_per_seq=5$"),
    "compact records cut in the first length": (
        {"masking": "dynamic", "input_file": "{tmp}/begun"},
        "begun holds no record: generate it again",
    ),
    "no init_checkpoint, found before the records are read": (
        {"init_checkpoint": "{tmp}/none", "input_file": "{tmp}/cut"},
        "there is no checkpoint .*none",
    ),
    "init_checkpoint of another model, found before the records are read": (
        {"init_checkpoint": goldens.checkpoint("base"), "input_file": "{tmp}/cut"},
        "the config beside the weights .* contradicts the model's .*hidden_size 32 there, 15",
    ),
    "output_dir in ~": ({"output_dir": "~/out"}, "~/out begins with ~, which the shell did not"),
    "output_dir is a file": ({"output_dir": "{tmp}/text"}, "--output_dir .*text can't be written"),
    "output_dir under a file": ({"output_dir": "{tmp}/text/out"}, "--output_dir .* can't be wri"),
    "no config": ({"albert_config_file": "{tmp}/none"}, "ALBERT config .*none does not exist"),
    "another file system": ({"input_file": "s3://b/x"}, "scheme 's3' not implemented"),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_settings_are_one_line(case, tmp_path):
    changes, message = BAD_SETTINGS[case]
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        runs.parse(runs.command(tmp_path, **changes))


@pytest.mark.parametrize("flag", OUT_OF_BOUNDS)
def test_a_number_out_of_bounds_is_one_line(flag, tmp_path):
    name, value = flag.split("=")
    with pytest.raises(SystemExit, match=f"^error: flag --{flag}: .* is not a "):
        runs.parse(runs.command(tmp_path, **{name: value}))


def write_bad_inputs(folder: pathlib.Path, tmp: pathlib.Path) -> None:
    data = (folder / "a.tfrecord").read_bytes()
    (tmp / "empty").touch()
    (tmp / "begun").write_bytes(b"abc")
    (tmp / "text").write_text("Four score and seven years ago\n" * 11)
    (tmp / "cut").write_bytes(data[:-7])
    (tmp / "flipped").write_bytes(data[:90] + bytes([data[90] ^ 4]) + data[91:])
    runs.write_records(tmp / "packed", runs.packed(runs.examples(7), 3))
    runs.write_config(tmp / "small.json", vocab_size=7)
    runs.write_config(tmp / "fewer.json", vocab_size=52)
    runs.write_records(tmp / "compact", runs.compact_examples(5))
    runs.write_config(tmp / "few.json", max_position_embeddings=19)


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_before_any_work(folder, tmp_path, case, monkeypatch):
    changes, message = BAD[case]
    write_bad_inputs(folder, tmp_path)
    monkeypatch.setattr(pretrain, "train", lambda *_: pytest.fail("it trains"))
    filled = {
        name: value.format(tmp=tmp_path) if isinstance(value, str) else value
        for name, value in changes.items()
    }
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        runs.main(runs.command(folder, **{"output_dir": tmp_path / "out", **filled}))
    left = {path.name for path in (tmp_path / "out").glob("*")}
    assert left <= {"input_files.json", "run.lock"}


def test_an_evaluation_of_another_kind_of_run_is_one_line(folder, tmp_path):
    checkpoint.save(str(tmp_path), 3, {"global_step": np.int64(3)}, 1)
    command = runs.command(folder, output_dir=tmp_path, do_train=False, do_eval=True)
    with pytest.raises(SystemExit, match="^error: checkpoint .*ckpt-3 does not fit the model: it"):
        runs.main(command)


TWO_WORKERS = types.SimpleNamespace(num_replicas=2, num_processes=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_batch_size": 9, "gradient_accumulation_steps": 3}, "`train_batch_size` 9 can't"),
        ({"eval_batch_size": 7, "do_eval": True}, "`eval_batch_size` 7 can't be split evenly over"),
    ],
)
def test_what_two_workers_cannot_do(folder, changes, message):
    settings = runs.parse(runs.command(folder, **changes))
    with pytest.raises(ValueError, match=message):
        settings.check_batch_sizes(TWO_WORKERS, eval_batch_size=settings.do_eval)


def test_several_workers_that_only_evaluate_are_refused_before_they_connect(folder, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", two_workers.environments()[0]["TF_CONFIG"])
    with pytest.raises(SystemExit, match="runs in a single process: unset TF_CONFIG"):
        runs.parse(runs.command(folder, do_train=False, do_eval=True))


def test_workers_that_were_given_different_records_configs_or_flags(folder, tmp_path, monkeypatch):
    """Else they would train different models, or wait for each other for ever."""

    def compare(devices, parts):
        compared.append(parts)
        raise ValueError("compared")

    compared = []
    monkeypatch.setattr(pretrain.run_directory, "check_workers_agree", compare)
    runs.write_records(tmp_path / "a.tfrecord", runs.examples(7))
    other = runs.write_config(tmp_path / "other.json", num_hidden_layers=1, hidden_act="relu")
    for changes in (
        {},
        {"random_seed": 3},
        {"albert_config_file": other},
        {"input_file": tmp_path / "a.tfrecord"},
    ):
        with pytest.raises(SystemExit, match="compared"):
            runs.main(runs.command(folder, output_dir=tmp_path, **changes))
    alike, *different = compared
    for parts, name in zip(different, ("random_seed", "config", "records"), strict=True):
        assert parts[name] != alike[name]


@pytest.mark.parametrize("work", ["run", "evaluation"])
def test_a_directory_in_which_another_run_is_at_work(folder, tmp_path, work):
    with (
        files.hold(str(tmp_path), work),
        pytest.raises(SystemExit, match=rf"another run \(process {os.getpid()} on .*is using"),
    ):
        runs.main(runs.command(folder, output_dir=tmp_path, do_eval=True))
    assert not list(tmp_path.glob("model.ckpt*"))
