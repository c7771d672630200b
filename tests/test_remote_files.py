"""All paths may be where TensorFlow reads and writes, as gs://: here ram://, in memory.

Can't see: what a real bucket does otherwise: late listings, writes that fail, many machines.
"""

from __future__ import annotations

import io
import os
import pathlib

import pytest
import tensorflow as tf

from albert_tf.generator import create
from albert_tf.generator import flags as generator_flags
from albert_tf.serving import predict
from albert_tf.tasks import race, squad_text, table
from albert_tf.text.tokenization import Tokenizer
from tests import finetune_runs as runs
from tests.tiny import parse

FEATURES = runs.GOLDEN / "features"


def put(source: pathlib.Path, target: str) -> str:
    """Copies a file, or a folder of files and folders; returns where."""
    if source.is_dir():
        for path in source.iterdir():
            put(path, os.path.join(target, path.name))
    else:
        tf.io.gfile.makedirs(os.path.dirname(target))
        tf.io.gfile.copy(str(source), target, overwrite=True)
    return target


def contents(root: str) -> dict[str, bytes]:
    """Returns what all files hold, by path without `root`, but for those that tell the time."""
    found = {}
    for folder, _, names in tf.io.gfile.walk(root):
        for name in names:
            # The graph of a SavedModel differs from run to run: see its weights and its answers.
            # Only a directory that can be locked keeps the file of its lock.
            if "tfevents" in name or name.endswith((".pb", ".report.json", ".lock")):
                continue
            path = os.path.join(folder, name)
            # ram:// also lists, as in a folder, what only begins with the folder's name.
            if not tf.io.gfile.exists(path):
                continue
            with tf.io.gfile.GFile(path, "rb") as file:
                found[path.removeprefix(root)] = file.read().replace(root.encode(), b"")
    return found


def prepare(root: str) -> str:
    """Makes records from text, all in `root`, with two processes; returns the vocabulary."""
    vocabulary = put(runs.GOLDEN / "spm/en_small.model", f"{root}/vocab/spm.model")
    put(runs.GOLDEN / "pretrain_data/text.txt", f"{root}/text/a.txt")
    given = {
        "input_file": f"{root}/text/*.txt",
        "output_file": f"{root}/records/all.tfrecord",
        "spm_model_file": vocabulary,
        "max_seq_length": 64,
        "dupe_factor": 1,
        "num_output_shards": 2,
        "num_processes": 2,
        "block_megabytes": 0.2,
    }
    create.main(parse(generator_flags.define_flags, **given))
    return vocabulary


def fine_tune(root: str, vocabulary: str, folder: pathlib.Path) -> None:
    """Trains, evaluates, predicts and exports, all in `root`; `folder` is local, for the config."""
    command = runs.command(
        "rte",
        folder,
        albert_config_file=put(runs.write_config(folder), f"{root}/tiny.json"),
        spm_model_file=vocabulary,
        data_dir=put(FEATURES / "glue_data/RTE", f"{root}/glue/RTE").removesuffix("/RTE"),
        output_dir=f"{root}/out",
        cached_dir=f"{root}/features",
        export_dir=f"{root}/exported/model",
        train_step=2,
    )
    runs.main([*command, "--do_train", "--do_eval", "--do_predict"])


def test_all_paths_may_have_a_scheme(tmp_path, monkeypatch, capsys):
    found, answers = {}, {}
    for root in (str(tmp_path / "local"), "ram://everything"):
        fine_tune(root, prepare(root), tmp_path)
        found[root] = contents(root)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"A cat sat.\tA cat.\n")))
        capsys.readouterr()
        predict.main(["--model", f"{root}/exported/model", "--json"])
        answers[root] = capsys.readouterr().out
    local, remote = found.values()
    assert sorted(local) == sorted(remote)
    assert [path for path in local if local[path] != remote[path]] == []
    assert {"/records/all.tfrecord-00001-of-00002", "/out/RTE.tsv", "/out/test_results.tsv"} <= {
        *remote
    }
    local, remote = answers.values()
    assert local == remote and "entailment" in local


@pytest.mark.parametrize(
    ("read", "source"),
    [
        (lambda root: race.read_race(root, "train", preprocess=str), "race_data"),
        (lambda root: squad_text.read_squad(f"{root}/squad_v2_dev.json"), "squad_v2_dev.json"),
        (lambda root: Tokenizer(vocab_file=f"{root}/vocab.txt").digest, "vocab.txt"),
        (lambda root: table.read_texts(f"{root}/t.tsv", table.TableColumns(), ("a", "b")), "t.tsv"),
    ],
)
def test_readers_take_a_scheme(tmp_path, read, source):
    (tmp_path / "t.tsv").write_text("text\tlabel\nx\ta\ny\tb\n")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    local = FEATURES if (FEATURES / source).exists() else tmp_path
    is_folder = (local / source).is_dir()
    put(local / source, "ram://readers" if is_folder else f"ram://readers/{source}")
    assert read("ram://readers") == read(str(local / source if is_folder else local))
    with pytest.raises(FileNotFoundError):
        read("ram://nowhere")
