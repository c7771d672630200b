"""Shards: their names, and that a run which was stopped goes on to the same bytes.

Not tested here: files on remote stores; a loss of power, after which written data may be missing.
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

from albert_tf.generator import shards, workers
from albert_tf.generator.report import WrongVocabularyError
from albert_tf.generator.settings import GeneratorSettings
from albert_tf.storage import files
from tests.generator import runs
from tests.generator.record_statistics import read_records
from tests.kit.tiny import parse

NUM_SHARDS = 5
# Five shards of about two blocks each.
FLAGS = {"dupe_factor": 2, "num_output_shards": NUM_SHARDS, "block_megabytes": 0.06}


def names(num_shards=NUM_SHARDS):
    return [f"out.tfrecord-{i:05d}-of-{num_shards:05d}" for i in range(num_shards)]


FIRST = names()[0]
STATE = f"{FIRST}.unfinished.json"


def contents(folder):
    """All files but the report, which tells how long they took."""
    files = [p for p in folder.iterdir() if not p.name.endswith((".report.json", ".vocabulary"))]
    return {path.name: path.read_bytes() for path in files}


def run_in(folder, patch, **changes):
    patch.chdir(folder)
    runs.make(folder, **{"output_file": "out.tfrecord", **FLAGS, **changes})
    return contents(folder)


def before_parts(patch, action):
    make_part = workers.make_part

    def act_and_make(tokenizer_file, recipe, block):
        action(block)
        return make_part(tokenizer_file, recipe, block)

    patch.setattr(workers, "make_part", act_and_make)


def stop_in(folder, number, error=None, **changes):
    """Runs the script until SIGTERM or `error` at part `number`; returns the files left."""
    made = []

    def fail(block):
        made.append(block)
        if len(made) == number:
            if error:
                raise error
            signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        before_parts(patch, fail)
        with pytest.raises(SystemExit, match=str(error or "") or "interrupted"):
            run_in(folder, patch, **changes)
    return contents(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with the files of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        run_in(folder, patch)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder in which a run was stopped at its sixth part."""
    folder = tmp_path_factory.mktemp("stopped")
    assert f"{FIRST}.unfinished" in stop_in(folder, 6)
    return folder


@pytest.fixture(scope="module")
def expected(whole):
    return contents(whole)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def unfinished(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "unfinished")


@pytest.fixture
def run(monkeypatch):
    return lambda folder, **changes: run_in(folder, monkeypatch, **changes)


def test_shards_are_regions_of_the_text(whole, expected):
    assert sorted(expected) == names()
    sizes = [len(read_records([whole / name])["input_ids"]) for name in names()]
    assert max(sizes) < 1.5 * min(sizes)


def test_the_order_is_the_seeds_and_the_shards():
    """The literal numbers are those of SplitMix64 in Python's own integers, for a purpose of 2."""

    def order(seed, shard):
        settings = parse(GeneratorSettings, input_file="a", output_file="b", random_seed=seed)
        return tuple(shards.record_order(workers.Plan(None, None, settings, ["b"]), shard, 500))

    orders = {(seed, shard): order(seed, shard) for seed in (1, 2) for shard in (0, 1)}
    assert len({*orders.values()}) == 4 and orders[1, 0] == order(1, 0)
    assert all(sorted(each) == list(range(500)) for each in orders.values())
    # Another purpose would do as well, but would reorder the rest of an unfinished run.
    assert order(12345, 3)[:10] == (244, 275, 307, 417, 425, 292, 473, 185, 325, 233)


def test_names_may_be_listed_and_processes_make_no_difference(run, folder, tmp_path):
    (other := tmp_path / "other").mkdir()
    numbered = run(other, num_output_shards=2)
    listed = run(folder, output_file="b,a", num_output_shards=None, num_processes=2)
    first, second = (numbered[name] for name in names(2))
    assert listed == {"b": first, "a": second}


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (2, OSError("the disk is full")),
        (6, WrongVocabularyError("too much is unknown")),  # The user may yet allow that share.
        (9, None),
    ],
)
def test_a_stopped_run_goes_on_to_the_same_bytes(
    run, whole, expected, folder, monkeypatch, caplog, number, error
):
    caplog.set_level("INFO", logger="absl")
    left = stop_in(folder, number, error)
    done = [f"{name}.unfinished" for name in names() if f"{name}.unfinished" in left]
    assert (number > 2) == bool(done) and len(done) < NUM_SHARDS
    assert sorted(left) == sorted(done + [STATE] * bool(done))
    said = f"{len(done)} of 5 shards are complete: the same command continues"
    assert (said in caplog.text) == bool(done)
    for name in done:
        assert left[name] == expected[name.removesuffix(".unfinished")]

    made = []
    before_parts(monkeypatch, lambda block: made.append(block.shard))
    assert run(folder, max_unknown_share=0.9) == expected
    assert min(made) == len(done)
    assert runs.report(folder) == runs.report(whole)


def test_a_full_disk_leaves_no_partial_shard(run, folder, monkeypatch):
    class FullDisk(tf.io.gfile.GFile):
        def close(self):
            super().close()
            if self.name.endswith(".unfinished"):
                raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.io.gfile, "GFile", FullDisk)
    with pytest.raises(SystemExit, match="No space left"):
        run(folder)
    assert not contents(folder)


def test_every_folder_is_tested_before_the_work(run, folder, monkeypatch):
    def refuse(path):
        if path.startswith("b/"):
            raise tf.errors.PermissionDeniedError(None, None, f"{path}; Permission denied")

    monkeypatch.setattr(files, "try_to_write", refuse)
    monkeypatch.setattr(workers, "make_part", None)
    with pytest.raises(SystemExit, match="can't write .*b/a.write_test; Permission denied"):
        run(folder, output_file="a,b/c", num_output_shards=None)


@pytest.mark.parametrize("renames", [0, 1, NUM_SHARDS - 1])
def test_a_stop_between_the_last_renames_does_no_harm(run, expected, folder, monkeypatch, renames):
    rename, renamed = tf.io.gfile.rename, []

    def rename_or_stop(old, new, overwrite):
        if old.endswith("unfinished"):
            if len(renamed) == renames:
                raise KeyboardInterrupt
            renamed.append(new)
        rename(old, new, overwrite)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(tf.io.gfile, "rename", rename_or_stop)
        run(folder)
    assert run(folder) == expected


@pytest.mark.parametrize("damage", ["shorter", "an older run's"])
def test_a_shard_that_is_not_as_it_was_is_made_again(run, expected, unfinished, damage):
    first = unfinished / f"{FIRST}.unfinished"
    content = bytearray(first.read_bytes())
    if damage == "shorter":
        first.write_bytes(content[:-1])
    else:
        content[-1] ^= 1
        first.with_suffix("").write_bytes(content)
        first.unlink()
    assert run(unfinished) == expected


@pytest.mark.parametrize(
    ("old", "new", "changes", "message"),
    [
        ("", "", {"dupe_factor": 3}, "dupe_factor 2, not 3:"),
        ("", "", {"do_lower_case": False}, "do_lower_case true, not false"),
        ("", "", {"input_file": "copy"}, "input file 1 .*text.txt: .* bytes of .*, not .*copy"),
        ("", "", {"input_file": f"{runs.TEXT},copy"}, "input file 2 null, not"),
        # A damaged record of the run.
        ("{", "", {}, "is damaged"),
        ('"settings"', '"set"', {}, "is damaged"),
        ('"bytes"', '"by"', {}, "is damaged"),
        ('"bytes": ', '"bytes": 1e999', {}, "is damaged"),
    ],
)
def test_another_or_damaged_run_does_not_go_on(run, unfinished, old, new, changes, message):
    shutil.copy(runs.TEXT, unfinished / "copy")
    state = unfinished / STATE
    state.write_text(state.read_text().replace(old, new, 1))
    left = contents(unfinished)
    with pytest.raises(SystemExit, match=f"^error: --output_file: {STATE}.*{message}"):
        run(unfinished, **changes)
    assert contents(unfinished) == left
    # Other output names make another run.
    assert run(unfinished, num_output_shards=None).keys() - left.keys() == {"out.tfrecord"}


def test_other_text_does_not_go_on(run, folder):
    shutil.copy(runs.TEXT, folder / "text")
    stop_in(folder, 9, input_file=f"text,{runs.TEXT}")
    for given, message in (
        (f"{runs.TEXT},text", "input file 1 .*text: .*, not .*text.txt: "),
        ("text", "input file 2 .*text.txt: .*, not null"),
    ):
        with pytest.raises(SystemExit, match=message):
            run(folder, input_file=given)
    with open(folder / "text", "a") as file:
        file.write("More.\n")
    with pytest.raises(SystemExit, match="with input file 1 .*text: .* bytes of .*: give the"):
        run(folder, input_file=f"text,{runs.TEXT}")


def test_a_second_run_is_refused_and_does_no_harm(run, expected, folder, monkeypatch):
    refused = []

    def run_again(block):
        # A second run that got this far would make a part, too.
        with pytest.raises(SystemExit) as stop:
            run(folder)
        refused.append(str(stop.value))

    before_parts(monkeypatch, run_again)
    assert run(folder) == expected
    message = r"error: another run \(process .*\) is using .*-of-00005.unfinished.parts: wait .*"
    assert len(refused) > NUM_SHARDS
    assert all(re.fullmatch(message, line) for line in refused)


def test_a_shard_that_was_removed_during_the_run_is_missed(run, expected, folder, monkeypatch):
    def remove(block):
        if block.shard == NUM_SHARDS - 1:
            (folder / f"{names()[2]}.unfinished").unlink(missing_ok=True)

    with monkeypatch.context() as patch:
        before_parts(patch, remove)
        with pytest.raises(SystemExit, match="^error: --output_file: .*2-of-.* was removed or cha"):
            run(folder)
    assert not set(names()) & set(contents(folder))
    assert run(folder) == expected


def test_a_shard_without_records_is_found_once_its_text_ends(run, folder, tmp_path, monkeypatch):
    text = runs.TEXT.read_text()
    (tmp_path / "text.txt").write_text("the\n\n" * (len(text) // 10) + text)
    made = []
    before_parts(monkeypatch, lambda block: made.append(block.shard))
    with pytest.raises(SystemExit, match="the text gives no record for out.tfrecord-00000-of-0"):
        run(folder, input_file=tmp_path / "text.txt", single_segment="split")
    assert max(made) < 3
    assert not contents(folder)


def test_a_killed_process_goes_on(run, folder, tmp_path):
    """With two processes, then with one."""
    (other := tmp_path / "other").mkdir()
    expected = run(other, dupe_factor=4)
    script = pathlib.Path(__file__).parents[2] / "data" / "create_pretraining_data.py"
    flags = runs.flags(folder, **{**FLAGS, "dupe_factor": 4, "num_processes": 2})
    process = subprocess.Popen([sys.executable, str(script), *flags], env={})
    state = folder / STATE

    def whole_shards():
        return json.loads(state.read_text())["shards"] if state.exists() else []

    while process.poll() is None and len(whole_shards()) < 2:
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    # Only one report has frequencies: those of each shard would make the record large.
    reports = [shard["report"] for shard in whole_shards()]
    is_first = [number == 0 for number in range(len(reports))]
    assert [bool(report["piece_histogram"]) for report in reports] == is_first
    assert len(reports) >= 2
    assert run(folder, dupe_factor=4, output_file=folder / "out.tfrecord") == expected
