"""Files: replaced whole or not at all, on a disk and elsewhere."""

import errno
import io
import os
import pathlib

import pytest
import tensorflow as tf

from albert_tf.cli import create_pretraining_data
from albert_tf.cli import predict as predict_command
from albert_tf.config import AlbertConfig
from albert_tf.generator import lines
from albert_tf.generator.settings import GeneratorSettings
from albert_tf.records import input_files
from albert_tf.storage import files, text_files
from albert_tf.tasks import race, squad_text, table
from albert_tf.text.tokenization import Tokenizer
from tests.kit import finetune_runs as runs
from tests.kit import tiny
from tests.kit.files import refused
from tests.kit.tiny import parse, run_main

READERS = {
    "config": AlbertConfig.from_json_file,
    "records": input_files.find_files,
    "task's data": lambda path: list(text_files.utf8_lines(path)),
    "text": lambda path: lines.TextFile(path, "strict"),
}


@pytest.mark.parametrize("reader", READERS)
def test_pipes_and_devices_are_refused(tmp_path, reader):
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero"):
        with pytest.raises(ValueError, match=f"{path} is a pipe, a device or a socket: name a reg"):
            READERS[reader](path)


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path, monkeypatch):
    path = str(tmp_path / "file")
    files.replace(path, b"one")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match=f"No space .*: '{path}'"):
        patch.setattr(os, "replace", fail)
        files.replace(path, b"two")
    assert os.listdir(tmp_path) == ["file"] and files.read_bytes(path) == b"one"
    files.replace(path, b"two")
    assert os.listdir(tmp_path) == ["file"] and files.read_bytes(path) == b"two"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a full device")
def test_a_full_disk_is_named(tmp_path):
    path = str(tmp_path / "new")
    is_named = pytest.raises(OSError, match=f"No space left on device: '{path}'")
    with is_named, files.whole_directory(path), open("/dev/full", "wb", 0) as file:
        file.write(b"one")
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_taken_is_refused_before_the_work(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    with (
        refused("already exists", tmp_path, exception=ValueError),
        files.whole_directory(str(tmp_path / "out")),
    ):
        pytest.fail("the work has begun")


def test_a_file_may_be_a_link_and_has_at_most_so_many_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert files.read_bytes(tmp_path / "link", 5) == files.read_bytes(tmp_path / "file") == b"12345"
    with pytest.raises(ValueError, match="file has more than 4 bytes, too many for such a file"):
        files.read_bytes(tmp_path / "file", 4)
    with pytest.raises(IsADirectoryError, match="is a directory"):
        files.check_file(tmp_path)
    (tmp_path / "file").unlink()
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "link")


LIKE_PATTERNS = ("c[1]", "c*", "c?", "[c]/d[!a]")


@pytest.mark.parametrize(
    ("names", "patterns", "expected"),
    [
        (("b2", "b1", "a.txt", "b3/x"), "b*, a.txt,,b1", ["b1", "b2", "a.txt"]),
        # A name may look like a pattern.
        (("a[1].txt", "a1.txt"), "a[1].txt", ["a[1].txt"]),
        (("a1.txt",), "a[1].txt", ["a1.txt"]),
        (("c [2]/x.txt", "c 2/x.txt"), "c [2]/x.txt", ["c [2]/x.txt"]),
        *(
            ((f"{name}/a.txt", "c1/a.txt", "c/a.txt", "c/da/a.txt"), f"{name}/*.t?t", None)
            for name in LIKE_PATTERNS
        ),
    ],
)
def test_patterns_name_files_in_order_and_once(names, patterns, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in names:
        tiny.write(tmp_path / name, "x")
    assert files.list_files(patterns) == (expected or [names[0]])


@pytest.mark.parametrize(
    ("patterns", "exception", "message"),
    [
        ("a.txt,c*.txt", FileNotFoundError, r"c\*.txt does not exist"),
        ("a.txt,c.txt", FileNotFoundError, "c.txt does not exist"),
        ("a.txt,texts", ValueError, r"texts is a directory: give texts/\*"),
        ("c[1]", ValueError, r"c\[1\] is a directory: give c\[1\]/\*"),
        (",", ValueError, "no input file"),
    ],
)
def test_a_pattern_without_files_is_an_error(patterns, exception, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "texts/a.txt", "c[1]/a.txt"):
        tiny.write(tmp_path / name, "x")
    with pytest.raises(exception, match=message):
        files.list_files(patterns)


FEATURES, TABLE = runs.GOLDEN / "features", (table.TableSettings(), ("a", "b"))


def put(source: pathlib.Path, target: str) -> str:
    if source.is_dir():
        for path in source.iterdir():
            put(path, os.path.join(target, path.name))
    else:
        tf.io.gfile.makedirs(os.path.dirname(target))
        tf.io.gfile.copy(str(source), target, overwrite=True)
    return target


def contents(root: str) -> dict[str, bytes]:
    """Returns the contents of all files by path below `root`, except those that record times."""
    found = {}
    for folder, _, names in tf.io.gfile.walk(root):
        for name in names:
            # The graph of a SavedModel differs from run to run: see its weights and its answers.
            # Only a directory that can be locked has a lock file.
            if "tfevents" in name or name.endswith((".pb", ".report.json", ".lock")):
                continue
            path = os.path.join(folder, name)
            # ram:// also lists paths that merely begin with a folder's name, as if inside it.
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
        **{"max_seq_length": 64, "dupe_factor": 1, "block_megabytes": 0.2},
        **{"num_output_shards": 2, "num_processes": 2},
    }
    create_pretraining_data.main(parse(GeneratorSettings, **given))
    return vocabulary


def fine_tune(root: str, vocabulary: str, folder: pathlib.Path) -> None:
    """Trains, evaluates, predicts and exports, all in `root`; `folder` is local, for the config."""
    paths = {"output_dir": "out", "cached_dir": "features", "export_dir": "exported/model"}
    own = {name: f"{root}/{path}" for name, path in paths.items()}
    own["data_dir"] = put(FEATURES / "glue_data/RTE", f"{root}/glue/RTE").removesuffix("/RTE")
    own["albert_config_file"] = put(runs.write_config(folder), f"{root}/tiny.json")
    command = runs.command("rte", folder, spm_model_file=vocabulary, train_step=2, **own)
    runs.main([*command, "--do_train", "--do_eval", "--do_predict"])


@pytest.mark.slow
def test_all_paths_may_have_a_scheme(tmp_path, monkeypatch, capsys, eager):
    found, answers = {}, {}
    for root in (str(tmp_path / "local"), "ram://everything"):
        fine_tune(root, prepare(root), tmp_path)
        found[root] = contents(root)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"A cat sat.\tA cat.\n")))
        capsys.readouterr()
        run_main(predict_command.main, ["--model", f"{root}/exported/model", "--json"])
        answers[root] = capsys.readouterr().out
    local, remote = found.values()
    assert sorted(local) == sorted(remote)
    assert [path for path in local if local[path] != remote[path]] == []
    names = {"/records/all.tfrecord-00001-of-00002", "/out/RTE.tsv", "/out/test_results.tsv"}
    assert names <= remote.keys()
    local, remote = answers.values()
    assert local == remote and "entailment" in local


@pytest.mark.parametrize(
    ("read", "source"),
    [
        (lambda root: race.read_race(root, "train", preprocess=str), "race_data"),
        (lambda root: squad_text.read_squad(f"{root}/squad_v2_dev.json"), "squad_v2_dev.json"),
        (lambda root: Tokenizer(vocab_file=f"{root}/vocab.txt").digest, "vocab.txt"),
        (lambda root: table.read_texts(f"{root}/t.tsv", *TABLE), "t.tsv"),
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
