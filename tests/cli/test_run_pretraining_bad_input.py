"""run_pretraining.py says in one line what is wrong with its input, before any work."""

import os
import pathlib
import types
from typing import Any

import numpy as np
import pytest

from albert_tf.cli import pretrain
from albert_tf.model.heads import AlbertForPreTraining
from albert_tf.storage import checkpoint, files
from tests.kit import goldens, tiny, two_workers
from tests.kit import pretraining_runs as runs
from tests.kit.files import refused

ANOTHER_MODEL = goldens.checkpoint("base")
# Flags that contradict themselves or each other, and the error.
BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"do_train": "false"}, "--do_train or --do_eval"),
    ({"masked_lm_budget": 0.1, "masking": "static"}, "--masked_lm_prob=0.1 .*--masking=static"),
    ({"masking": "dynamic", "use_tpu": "true", "tpu_name": "node-1"}, "--masking=dynamic .*node-1"),
    ({"output_dir": ""}, "--output_dir is empty"),
]
OUT_OF_BOUNDS = (
    *("num_train_steps=0", "num_warmup_steps=-1", "keep_checkpoint_max=-1", "random_seed=-1"),
    *("learning_rate=-1", "learning_rate=nan", "poly_power=0", "max_examples_per_row=0"),
    *(f"sentence_order_weight={value}" for value in ("-0.5", "nan", "inf")),
    *("masked_lm_prob=20", "ngram=0", "adam_beta1=1", "decay_steps=0", "train_minutes=0"),
    "vocab_size=0",
)
COMPACT = {"input_file": "{tmp}/compact", "masking": "dynamic"}
# Flags (formatted with a folder for this test) that contradict files, and the error.
BAD: list[tuple[dict[str, Any], str]] = [
    ({"input_file": "{tmp}/none"}, "none does not exist"),
    ({"input_file": "{tmp}/*.none"}, "no file matches"),
    ({"input_file": "{tmp}/empty"}, "empty is empty"),
    ({"input_file": "{tmp}/cut"}, "cut, record 30, is truncated"),
    ({"input_file": "{tmp}/flipped"}, "flipped, record 0, is truncated or corrupt"),
    ({"input_file": "{tmp}/text"}, "text, record 0, is truncated or corrupt"),
    ({"max_seq_length": 19}, "record 0 has 23 values of input_ids, .*--max_seq_length"),
    ({"input_file": "{tmp}/packed"}, "--max_examples_per_row=3$"),
    ({"max_examples_per_row": 3}, "expects 3: set --max_examples_per_row"),
    ({"input_file": "{tmp}/packed", "max_examples_per_row": 2}, "has 3 .*--max_examples_per_row"),
    ({"albert_config_file": "{tmp}/small.json"}, "record 0 has input_ids from 0 to .*0 to 6"),
    ({"vocab_size": 7}, "record 0 has input_ids from 0 to .*0 to 6: use the config .--vocab_size"),
    ({"albert_config_file": "{tmp}/few.json"}, "--max_seq_length .* to 19 "),
    ({"train_batch_size": 13, "gradient_accumulation_steps": 3}, "--train_batch_size 13 .* 3$"),
    ({"input_file": "{tmp}/compact"}, "--masking=dynamic"),
    ({"masking": "dynamic"}, "--masking=static, and leave out --masked_lm_prob"),
    ({**COMPACT, "mask_replace_prob": 0.95}, "--mask_replace_prob and --random_replace_prob, 0.95"),
    ({**COMPACT, "max_seq_length": 29}, "23 tokens: set --max_seq_length .*29"),
    ({**COMPACT, "albert_config_file": "{tmp}/fewer.json"}, "53 pieces and 2 token .* 52 and 2:"),
    ({**COMPACT, "vocab_size": 52}, "have 53 pieces .* the config 52 and 2: .*--vocab_size"),
    ({"max_predictions_per_seq": 29}, "--max_predictions_per_seq=5$"),
    # The file ends within the first record's length.
    ({"masking": "dynamic", "input_file": "{tmp}/begun"}, "begun holds no record"),
    # Found before the records are read.
    ({"init_checkpoint": "{tmp}/none", "input_file": "{tmp}/cut"}, "no checkpoint .*none"),
    ({"init_checkpoint": ANOTHER_MODEL, "input_file": "{tmp}/cut"}, "hidden_size 32 there, 15"),
    ({"init_checkpoint": "{tmp}/model.ckpt", "vocab_size": 52}, "vocab_size 53 there, 52 here"),
    ({"init_checkpoint": "{tmp}/model.ckpt", "vocab_size": 61}, "vocab_size 53 there, 61 here"),
    ({"output_dir": "~/out"}, "~/out begins with ~"),
    ({"output_dir": "{tmp}/text"}, "--output_dir .*text can't be written"),
    ({"output_dir": "{tmp}/text/out"}, "--output_dir .* can't be written"),
    ({"albert_config_file": "{tmp}/none"}, "ALBERT config .*none does not exist"),
    ({"input_file": "s3://b/x"}, "scheme 's3' not implemented"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_SETTINGS)
def test_bad_settings_are_one_line(changes, message, tmp_path):
    with refused(message):
        runs.parse(runs.command(tmp_path, **changes))


@pytest.mark.parametrize("flag", OUT_OF_BOUNDS)
def test_a_number_out_of_bounds_is_one_line(flag, tmp_path):
    name, value = flag.split("=")
    with refused(f"^error: flag --{flag}: .* is not a "):
        runs.parse(runs.command(tmp_path, **{name: value}))


@pytest.fixture(scope="module")
def bad_inputs(folder, tmp_path_factory) -> pathlib.Path:
    tmp, data = tmp_path_factory.mktemp("bad"), (folder / "a.tfrecord").read_bytes()
    (tmp / "empty").touch()
    (tmp / "begun").write_bytes(b"abc")
    (tmp / "text").write_text("Four score and seven years ago\n" * 11)
    (tmp / "cut").write_bytes(data[:-7])
    (tmp / "flipped").write_bytes(data[:90] + bytes([data[90] ^ 4]) + data[91:])
    runs.write_records(tmp / "packed", runs.packed(runs.examples(7), 3))
    runs.write_records(tmp / "compact", runs.compact_examples(5))
    runs.write_config(tmp / "small.json", vocab_size=7)
    runs.write_config(tmp / "fewer.json", vocab_size=52)
    runs.write_config(tmp / "few.json", max_position_embeddings=19)
    tiny.store(tmp, AlbertForPreTraining(tiny.config()), name="model.ckpt")
    return tmp


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_bad_input_is_one_line_at_once(folder, bad_inputs, tmp_path, changes, message, monkeypatch):
    monkeypatch.setattr(pretrain, "train", lambda *_: pytest.fail("it trains"))
    filled = {name: str(value).format(tmp=bad_inputs) for name, value in changes.items()}
    with refused(message, bad_inputs):
        runs.main(runs.command(folder, **{"output_dir": tmp_path / "out", **filled}))
    left = {path.name for path in (tmp_path / "out").glob("*")}
    assert left <= {"input_files.json", "run.lock"}


def test_evaluations_of_another_kind_and_of_several_workers(folder, tmp_path, monkeypatch):
    checkpoint.save(str(tmp_path), 3, {"global_step": np.int64(3)}, 1)
    command = runs.command(folder, output_dir=tmp_path, do_train=False, do_eval=True)
    with refused("^error: checkpoint .*ckpt-3 does not fit the model: it"):
        runs.main(command)
    # Several workers are refused before they connect.
    monkeypatch.setenv("TF_CONFIG", two_workers.environments()[0]["TF_CONFIG"])
    with refused("runs in a single process: unset TF_CONFIG"):
        runs.parse(command)


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


def test_workers_that_were_given_different_records_configs_or_flags(folder, tmp_path, monkeypatch):
    """Otherwise they would train different models, or wait for each other forever."""

    def compare(devices, parts):
        compared.append(parts)
        raise ValueError("compared")

    compared = []
    monkeypatch.setattr(pretrain.run_directory, "check_workers_agree", compare)
    runs.write_records(tmp_path / "a.tfrecord", runs.examples(7))
    other = runs.write_config(tmp_path / "other.json", num_hidden_layers=1, hidden_act="relu")
    records = {"input_file": tmp_path / "a.tfrecord"}
    for changes in ({}, {"random_seed": 3}, {"albert_config_file": other}, records):
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
