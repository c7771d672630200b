"""Shards: their names, and that a run which was stopped goes on to the same bytes.

Can't see: files on remote stores; a loss of power, after which a disk may lack what was written.
"""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf
from record_statistics import read_records

from albert_tf.cli import create_pretraining_data
from albert_tf.generator import shards, workers
from albert_tf.generator.report import WrongVocabularyError
from albert_tf.generator.settings import GeneratorSettings
from albert_tf.storage import files
from tests.tiny import parse

ROOT = pathlib.Path(__file__).parents[2]
NUM_SHARDS = 5


def _arguments(golden, folder, **changes):
    """Returns a command line that writes five shards of about two blocks each."""
    given = {
        "input_file": golden / "pretrain_data" / "text.txt",
        "output_file": folder / "out.tfrecord",
        "spm_model_file": golden / "spm" / "en_small.model",
        "max_seq_length": 128,
        "dupe_factor": 2,
        "num_output_shards": NUM_SHARDS,
        "num_processes": 1,
        "block_megabytes": 0.06,
    } | changes
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


def _run(golden, folder, **changes):
    create_pretraining_data.main(parse(GeneratorSettings, *_arguments(golden, folder, **changes)))
    return _contents(folder)


@pytest.fixture
def run(golden, tmp_path):
    """Runs the script and returns the content of the folder that it wrote."""
    return lambda name="run", **changes: _run(golden, tmp_path / name, **changes)


@pytest.fixture(scope="module")
def expected(golden, tmp_path_factory):
    """What a run writes that nothing stops."""
    return _run(golden, tmp_path_factory.mktemp("expected"))


def _contents(folder):
    """All files but the report, which tells how long they took."""
    files = [p for p in folder.iterdir() if not p.name.endswith((".report.json", ".vocabulary"))]
    return {path.name: path.read_bytes() for path in files}


def _names(num_shards=NUM_SHARDS):
    return [f"out.tfrecord-{i:05d}-of-{num_shards:05d}" for i in range(num_shards)]


def _before_parts(monkeypatch, action):
    """Calls `action` with each block before its part is made."""
    make_part = workers.make_part

    def act_and_make(tokenizer_file, recipe, block):
        action(block)
        return make_part(tokenizer_file, recipe, block)

    monkeypatch.setattr(workers, "make_part", act_and_make)


@pytest.fixture
def stop(run, monkeypatch):
    """Runs the script until the part with a number fails."""

    def stop_at(number, error=None, match=None, **changes):
        made = []

        def fail(block):
            made.append(block)
            if len(made) == number:
                raise error or KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(SystemExit, match=match):
            _before_parts(patch, fail)
            run(**changes)

    return stop_at


def test_shards_are_regions_of_the_text(run, tmp_path):
    contents = run()
    assert sorted(contents) == _names()
    sizes = [len(read_records([tmp_path / "run" / name])["input_ids"]) for name in _names()]
    assert max(sizes) < 1.5 * min(sizes)


def test_the_order_is_the_seeds_and_the_shards():
    def order(seed, shard):
        settings = parse(GeneratorSettings, input_file="a", output_file="b", random_seed=seed)
        return tuple(shards.record_order(workers.Plan(None, None, settings, ["b"]), shard, 500))

    orders = {(seed, shard): order(seed, shard) for seed in (1, 2) for shard in (0, 1)}
    assert len({*orders.values()}) == 4 and orders[1, 0] == order(1, 0)
    assert all(sorted(each) == list(range(500)) for each in orders.values())


def test_names_may_be_listed(run, tmp_path):
    listed = [tmp_path / "run" / name for name in ("b", "a")]
    contents = run(output_file=",".join(map(str, listed)), num_output_shards=None)
    numbered = run("other", num_output_shards=2)
    first, second = (numbered[name] for name in _names(2))
    assert contents == {"b": first, "a": second}


def test_number_of_processes_makes_no_difference(run, expected):
    assert run("two", num_processes=2) == expected


@pytest.mark.parametrize(
    ("number", "error"),
    [
        *((1, KeyboardInterrupt()), (2, OSError("the disk is full"))),
        *((6, OSError("the disk is full")), (9, KeyboardInterrupt())),
    ],
)
def test_a_stopped_run_goes_on_to_the_same_bytes(
    run, expected, tmp_path, monkeypatch, stop, number, error
):
    stop(number, error, "interrupted|disk is")
    left = _contents(tmp_path / "run")
    whole = [f"{name}.unfinished" for name in _names() if f"{name}.unfinished" in left]
    assert len(whole) < NUM_SHARDS
    state = [f"{_names()[0]}.unfinished.json"] if whole else []
    assert sorted(left) == sorted(whole + state)
    for name in whole:
        assert left[name] == expected[name.removesuffix(".unfinished")]

    made = []
    _before_parts(monkeypatch, lambda block: made.append(block.shard))
    assert run() == expected
    assert min(made) == len(whole)


def test_a_full_disk_leaves_no_partial_shard(run, tmp_path, monkeypatch):
    class FullDisk(tf.io.gfile.GFile):
        def close(self):
            super().close()
            if self.name.endswith(".unfinished"):
                raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="No space left"):
        patch.setattr(tf.io.gfile, "GFile", FullDisk)
        run()
    assert not _contents(tmp_path / "run")


def test_every_folder_is_tested_before_the_work(run, tmp_path, monkeypatch):
    def refuse(path):
        if "/b/" in path:
            raise tf.errors.PermissionDeniedError(None, None, f"{path}; Permission denied")

    monkeypatch.setattr(files, "try_to_write", refuse)
    monkeypatch.setattr(workers, "make_part", None)
    listed = [tmp_path / "run" / "a", tmp_path / "run" / "b" / "c"]
    with pytest.raises(SystemExit, match="can't write .*run/b/a.write_test; Permission denied"):
        run(output_file=",".join(map(str, listed)), num_output_shards=None)


def test_whole_shards_outlive_a_share_of_unknown_pieces_that_may_yet_be_allowed(
    run, expected, tmp_path, stop
):
    stop(6, WrongVocabularyError("wrong vocabulary"), "wrong vocabulary")
    left = _contents(tmp_path / "run")
    assert f"{_names()[0]}.unfinished" in left
    assert left[f"{_names()[0]}.unfinished"] == expected[_names()[0]]
    assert run(max_unknown_share=0.9) == expected


def test_the_report_tells_of_the_whole_run(run, stop, caplog):
    caplog.set_level("INFO", logger="absl")
    run("expected")
    expected = re.findall("read .*|wrote .*|label .*", caplog.text)
    stop(6)
    assert re.search(r"[1-4] of 5 shards are complete: the same command continues", caplog.text)
    caplog.clear()
    run()
    assert re.findall("read .*|wrote .*|label .*", caplog.text) == expected


@pytest.mark.parametrize("renames", [0, 1, NUM_SHARDS - 1])
def test_a_stop_between_the_last_renames_does_no_harm(run, expected, monkeypatch, renames):
    rename, renamed = tf.io.gfile.rename, []

    def rename_or_stop(old, new, overwrite):
        if old.endswith("unfinished"):
            if len(renamed) == renames:
                raise KeyboardInterrupt
            renamed.append(new)
        rename(old, new, overwrite)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(tf.io.gfile, "rename", rename_or_stop)
        run()
    assert run() == expected


@pytest.mark.parametrize("damage", ["shorter", "an older run's"])
def test_a_shard_that_is_not_as_it_was_is_made_again(run, expected, tmp_path, stop, damage):
    stop(8)
    whole = tmp_path / "run" / f"{_names()[0]}.unfinished"
    content = bytearray(whole.read_bytes())
    if damage == "shorter":
        whole.write_bytes(content[:-1])
    else:
        content[-1] ^= 1
        whole.with_suffix("").write_bytes(content)
        whole.unlink()
    assert run() == expected


@pytest.mark.parametrize(
    ("then", "now", "difference"),
    [
        ({}, {"dupe_factor": 3}, "with dupe_factor 2, not 3: give the same flags"),
        ({}, {"do_lower_case": False}, "with do_lower_case true, not false"),
        *(
            (
                {"input_file": then},
                {"input_file": now},
                f"with input file {number} .*, not .*: give",
            )
            for then, now, number in [("a,b", "b,a", 1), ("a,b", "a", 2), ("a", "a,b", 2)]
        ),
    ],
)
def test_other_settings_do_not_go_on(
    run, tmp_path, golden, stop, monkeypatch, then, now, difference
):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        shutil.copy(golden / "pretrain_data" / "text.txt", name)
    stop(6, **then)
    left = _contents(tmp_path / "run")
    with pytest.raises(SystemExit, match=f"error: --output_file: .*{difference}"):
        run(**now)
    assert _contents(tmp_path / "run") == left


def test_other_text_does_not_go_on(run, tmp_path, golden, stop):
    text = shutil.copy(golden / "pretrain_data" / "text.txt", tmp_path)
    stop(6, input_file=text)
    with open(text, "a") as file:
        file.write("More.\n")
    with pytest.raises(SystemExit, match="with input file 1 .*text.txt: .* bytes of .*: give the"):
        run(input_file=text)


def test_other_names_are_another_run(run, tmp_path, stop):
    stop(6)
    left = _contents(tmp_path / "run")
    assert run(num_output_shards=None).keys() - left.keys() == {"out.tfrecord"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("{", "["),
        ('"settings"', '"set"'),
        ('"bytes"', '"by"'),
        ('"bytes": ', '"bytes": 1e999'),
    ],
    ids=["empty", "no JSON", "a name", "a shard's name", "infinity"],
)
def test_a_damaged_state_is_refused(run, tmp_path, stop, old, new):
    stop(6)
    state = tmp_path / "run" / f"{_names()[0]}.unfinished.json"
    state.write_text(state.read_text().replace(old, new, 1) if old else "")
    left = _contents(tmp_path / "run")
    with pytest.raises(SystemExit, match="^error: --output_file: .*.unfinished.json, .* is"):
        run()
    assert _contents(tmp_path / "run") == left


def test_a_second_run_is_refused_and_does_no_harm(run, expected, monkeypatch):
    refused = []

    def run_again(block):
        # A run that got as far would make a part, too.
        with pytest.raises(SystemExit) as stop:
            run()
        refused.append(str(stop.value))

    _before_parts(monkeypatch, run_again)
    assert run() == expected
    message = r"error: another run \(process .*\) is using .*-of-00005.unfinished.parts: wait .*"
    assert len(refused) > NUM_SHARDS
    assert all(re.fullmatch(message, line) for line in refused)


def test_a_shard_that_was_removed_during_the_run_is_missed(run, expected, tmp_path, monkeypatch):
    def remove(block):
        if block.shard == NUM_SHARDS - 1:
            (tmp_path / "run" / f"{_names()[2]}.unfinished").unlink(missing_ok=True)

    with monkeypatch.context() as patch:
        _before_parts(patch, remove)
        with pytest.raises(SystemExit, match="^error: --output_file: .*2-of-.* was removed or cha"):
            run()
    assert not set(_names()) & set(_contents(tmp_path / "run"))
    assert run() == expected


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("the\n\nthe\n", {"single_segment": "split"}, "the text gives no record for .*out.tf"),
        ("\u0301\n", {}, "the files contain no text$"),
    ],
)
def test_text_without_any_record_leaves_nothing(run, tmp_path, text, changes, message):
    (tmp_path / "text.txt").write_text(text)
    with pytest.raises(SystemExit, match=f"^error: --input_file: {message}"):
        run(input_file=tmp_path / "text.txt", num_output_shards=1, **changes)
    assert not _contents(tmp_path / "run")


def test_a_shard_without_records_is_found_once_its_text_ends(run, tmp_path, golden, monkeypatch):
    text = (golden / "pretrain_data" / "text.txt").read_text()
    (tmp_path / "text.txt").write_text("the\n\n" * (len(text) // 10) + text)
    shards = []
    _before_parts(monkeypatch, lambda block: shards.append(block.shard))
    with pytest.raises(SystemExit, match="the text gives no record for .*out.tfrecord-00000-of-0"):
        run(input_file=tmp_path / "text.txt", single_segment="split")
    assert max(shards) < 3
    assert not _contents(tmp_path / "run")


def test_text_for_fewer_shards_leaves_nothing(run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("One sentence.\nAnd another.\n\n" * 3)
    with pytest.raises(SystemExit, match="error: --input_file: the text fills 3 of 5 output files"):
        run(input_file=text)
    assert not _contents(tmp_path / "run")


def test_a_stopped_process_goes_on(run, golden, tmp_path):
    """SIGTERM, then SIGKILL, then to the end, with two processes and one."""
    expected = run("expected", dupe_factor=8)
    folder = tmp_path / "run"
    command = [sys.executable, str(ROOT / "data" / "create_pretraining_data.py")]
    command += _arguments(golden, folder, dupe_factor=8, num_processes=2)
    state = folder / f"{_names()[0]}.unfinished.json"
    for number_whole, stop in ((1, signal.SIGTERM), (2, signal.SIGKILL)):
        process = subprocess.Popen(command, env={}, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and _count_whole(state) < number_whole:
            time.sleep(0.005)
        process.send_signal(stop)
        messages = process.communicate()[1]
        assert _count_whole(state) >= number_whole, messages
        shards = [shard["report"] for shard in json.loads(state.read_text())["shards"]]
        # Frequencies of each would make it large.
        assert [bool(report["piece_histogram"]) for report in shards] == [
            number == 0 for number in range(len(shards))
        ]
        if stop == signal.SIGTERM:
            assert process.returncode == 1
            assert messages.rstrip().endswith("error: interrupted")
        else:
            assert process.returncode == -stop
    assert run(dupe_factor=8) == expected


def _count_whole(state):
    return len(json.loads(state.read_text())["shards"]) if state.exists() else 0
