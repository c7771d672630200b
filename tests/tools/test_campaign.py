"""The campaign detects what it looks for: each of its outcomes is provoked once.

Not tested here: what the campaign itself finds; `make campaign` runs it, in minutes.
"""

import argparse
import os
import random
import re
import signal
import time
import types

import pytest

from albert_tf.storage.run_record import RunRecord
from tools.campaign import __main__ as campaign
from tools.campaign import (
    file_types,
    flags,
    kills,
    mutations,
    mutators,
    outcomes,
    processes,
    record_files,
    requests,
)
from tools.campaign.file_types import Bench, Evidence, FileType
from tools.campaign.outcomes import Outcome, Tally

TEXT = b"first 1\nsecond 2\nthird 3\n"


def file_type(read, judge=file_types.same, name="a file") -> FileType:
    def make(folder):
        (folder / "file.txt").write_bytes(TEXT)

    return FileType(name, make, mutators.TEXT, read, judge, "*.txt")


def refuse(message):
    """Returns a reader that refuses everything except the intact file."""

    def read(folder):
        path = folder / "file.txt"
        if path.read_bytes() != TEXT:
            raise ValueError(message.format(path))

    return read


def content(folder):
    return (folder / "file.txt").read_bytes()


def unless_whole(act):
    return lambda folder: None if content(folder) == TEXT else act()


def break_down():
    raise KeyError("x")


@pytest.mark.parametrize(
    ("read", "judge", "expected"),
    [
        (refuse("{} is damaged"), file_types.same, outcomes.REFUSED),
        (refuse("it is damaged"), file_types.same, outcomes.NAMELESS),
        (unless_whole(break_down), file_types.same, outcomes.TRACEBACK),
        (lambda folder: 3, file_types.same, outcomes.ACCEPTED),
        (content, file_types.same, outcomes.WRONG),
        (lambda folder: [content(folder)], file_types.part, outcomes.WRONG),
        (content, lambda evidence: None, outcomes.ACCEPTED),
    ],
)
def test_each_outcome_of_a_reader(read, judge, expected, tmp_path):
    bench = Bench(file_type(read, judge), tmp_path, seed=1)
    for number in range(3):
        assert bench.attempt(number)[1].what == expected


@pytest.mark.parametrize("message", ["error: a\nb", "error: a\x1b[2J", "no such file", "2"])
def test_refusals_are_one_printable_line(message):
    assert file_types.refusal(message).what == outcomes.TRACEBACK


def test_memory_is_counted(tmp_path, monkeypatch):
    bench = Bench(file_type(lambda folder: 3), tmp_path, seed=1)
    monkeypatch.setattr(file_types, "_MOST_BYTES", -1)
    assert bench.attempt(0)[1].what == outcomes.MEMORY


@pytest.mark.parametrize(
    ("path", "status", "content", "rows", "expected"),
    [
        ("/invocations", 200, b'{"predictions":[1,2]}', 2, outcomes.ACCEPTED),
        ("/invocations", 200, b'{"predictions":[1,2]}', 3, outcomes.WRONG),
        ("/invocations", 200, b'{"predictions":[NaN]}', None, outcomes.WRONG),
        ("/invocations", 400, b"", None, outcomes.REFUSED),
        ("/invocations", 400, b"", 2, outcomes.WRONG),
        ("/invocations", 422, b"", None, outcomes.WRONG),
        ("/embed", 422, b"", None, outcomes.REFUSED),
        ("/embed", 400, b"", None, outcomes.WRONG),
        ("/embed", 500, b"", None, outcomes.WRONG),
    ],
)
def test_each_outcome_of_a_request(path, status, content, rows, expected):
    assert requests._judge(path, status, content, rows).what == expected


@pytest.mark.parametrize(
    ("what", "detail", "value", "expected"),
    [
        (outcomes.REFUSED, "error: --ngram is 2", 2, outcomes.REFUSED),
        (outcomes.REFUSED, "error: --ngrams is 2", 2, outcomes.NAMELESS),
        (outcomes.FINISHED, "", 2, outcomes.FINISHED),
        (outcomes.FINISHED, "", 3, outcomes.WRONG),
        # A run that diverges has followed its flags.
        (outcomes.REFUSED, "error: the loss of step 5 is not finite", 2, outcomes.FINISHED),
        (outcomes.REFUSED, "error: the loss of step 5 is not finite", 3, outcomes.WRONG),
    ],
)
def test_each_outcome_of_other_flags(what, detail, value, expected, tmp_path):
    RunRecord({"ngram": value}, {}).write(str(tmp_path))
    arguments = ["--input_file=x", "--output_dir=y", "--ngram=2"]
    outcome = flags._judge(Outcome(what, detail), arguments, {"ngram": "2"}, tmp_path)
    assert outcome.what == expected


# The watched process looks these up by name.
FILE_TYPES = {
    "reads": file_type(lambda folder: 3, name="reads"),
    "hangs": file_type(unless_whole(lambda: time.sleep(60)), name="hangs"),
    "dies": file_type(unless_whole(os.abort), name="dies"),
}


@pytest.mark.slow
def test_hangs_and_crashes_are_outcomes_and_do_not_end_it(tmp_path, monkeypatch):
    watched = mutations.Watched(tmp_path, 1, module=__name__)
    try:
        assert watched.attempt("reads", 0)[1].what == outcomes.ACCEPTED
        monkeypatch.setattr(mutations, "_SECONDS_TO_BEGIN", 1)
        assert watched.attempt("hangs", 0)[1].what == outcomes.HANG
        monkeypatch.undo()
        assert watched.attempt("dies", 0)[1].what == outcomes.CRASH
    finally:
        watched.close()


def test_an_exception_in_a_thread_ends_it(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("a fault of the campaign")

    monkeypatch.setattr(mutations.Watched, "attempt", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        mutations.run(Tally(), ["spiece.model"], 60, 1, tmp_path)
    monkeypatch.setattr(kills, "undisturbed", lambda program, folder: program)
    monkeypatch.setattr(kills, "_Life", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        kills.run(Tally(), ["generation"], 60, 1, tmp_path)


def test_what_time_is_left_for_none_of_is_told(tmp_path):
    args = argparse.Namespace(minutes=0, only=None, mutations=50, kills=8, seed=1)
    tally = Tally()
    left_out = campaign._run(args, tally, tmp_path)
    assert tally.total() == 0
    names = [program.name for program in kills.programs.PROGRAMS]
    files, disks = [*mutations.FILE_TYPES], [f"full disk, {name}" for name in names]
    last = ["a lost worker", "predictions, threads", *requests.SUBJECTS, flags.SUBJECT]
    killed = left_out[len(files) : -len(disks) - len(last)]
    assert left_out == [*files, *killed, *disks, *last]
    trains = [f"kills {place}, fine-tuning" for place in ("before a save", "in a save")]
    assert {*trains, "kills after a save, fine-tuning", "kills before a save, export"} < {*killed}
    assert "kills after a save, export" not in killed  # An export has no save to go on from.


def test_what_a_signal_ends_has_its_table(monkeypatch, capsys):
    """Outcomes after the signal are not counted: their processes may have got it, too."""

    def run(args, tally, folder):
        tally.add("a file", Outcome(outcomes.REFUSED))
        os.kill(os.getpid(), signal.SIGTERM)
        tally.add("a file", Outcome(outcomes.CRASH))
        return ["another"]

    monkeypatch.setattr(campaign, "_run", run)
    monkeypatch.setattr("sys.argv", ["campaign"])
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        campaign.main()
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["        refused", "a file  1", "not reached: another"]


class Simulated:
    """A process that takes 20 s for each of three saves, the last three of them in the save.

    A save holds the numbers of those before it, unless the process forgets.
    """

    forgets = False
    now = 0.0
    log = ""

    def __init__(self, program, arguments, log_file):
        (self.out,), self.seconds, self.code = arguments, 0, None
        self.start = max(0, program.last_save(self.out) - 1)
        path = self.out / f"{self.start}.saved"
        self.text = path.read_text() if path.exists() and not self.forgets else ""
        for path in self.out.glob(f"{self.start + 1}.begun"):
            path.unlink()

    def wait_until_begun(self):
        pass

    def wait_until(self, condition, seconds=1e9, pause=0.0):
        end = Simulated.now + seconds
        while self.code is None and not condition() and Simulated.now < end:
            Simulated.now += 1
            self.seconds += 1
            number, of_save = self.start + self.seconds // 20, self.seconds % 20
            if of_save == 17:
                (self.out / f"{number + 1}.begun").touch()
            if of_save == 0:
                self.text += str(number)
                (self.out / f"{number}.saved").write_text(self.text)
                self.code = 0 if number == 3 else None
        return True

    def signal(self, number):
        alive = self.code is None
        self.code = -number if alive else self.code
        return alive

    def end(self, seconds=1e9):
        self.wait_until(lambda: False)
        return self.code


def test_kills_are_placed_by_progress(tmp_path, monkeypatch):
    """This reveals what is lost, or done twice, when a run goes on."""
    program = processes.Program(
        *("simulated", None, lambda inputs: None, lambda inputs, out: [out]),
        lambda out: {"3.saved": (out / "3.saved").read_bytes()},
        saved="*.saved",
        saving="*.begun",
    )
    monkeypatch.setattr(kills, "Running", Simulated)
    monkeypatch.setattr(kills, "time", types.SimpleNamespace(monotonic=lambda: Simulated.now))
    monkeypatch.setattr(kills.programs, "PROGRAMS", [program])
    # However short a process lives, kills are placed everywhere.
    short, tally = Tally(), Tally()
    kills.run(short, ["simulated"], 1, 1, tmp_path / "short")
    assert short.subjects >= {*kills.subjects(["simulated"])} and not short.defects
    kills.run(tally, ["simulated"], 40, 1, tmp_path / "long")
    found = {re.sub("kills |, .*", "", line): line.split() for line in tally.lines()[1:]}
    stopped = [int(found[f"{place} a save"][-2]) for place in ("before", "in", "after")]
    assert min(stopped) > 1 and stopped[-1] > sum(stopped) / 2 and not tally.defects
    monkeypatch.setattr(Simulated, "forgets", True)
    kills.run(short, ["simulated"], 1, 1, tmp_path / "forgets")
    (defect,) = short.defects
    assert defect.startswith("wrong: kills, simulated (life 0): not as when undisturbed: 3.saved")


MUTATORS = sorted({*mutators.JSON, *mutators.BINARY}, key=lambda m: m.__name__)


@pytest.mark.parametrize("mutate", MUTATORS)
@pytest.mark.parametrize("content", [b"", b"\n", TEXT, b'{"a": [1, {"b": "c"}], "d": null}'])
def test_mutators_take_anything_and_draw_the_same_again(mutate, content):
    damaged = [mutate(content, random.Random(seed)) for seed in range(30)]
    assert damaged == [mutate(content, random.Random(seed)) for seed in range(30)]
    if content.strip():
        assert any(new != content for new in damaged)


def test_records_with_impossible_values_are_known(tmp_path):
    """A rewritten record has valid checksums: only its judge can find that it is wrong."""
    static = record_files.FILE_TYPES[0]
    static.make(tmp_path)
    before = (tmp_path / "a.tfrecord").read_bytes()
    whole = record_files.records(before)

    def fault(after):
        found = record_files.records(after)
        return static.judge(Evidence(before, after, whole, found, "a.tfrecord"))

    found = [fault(record_files.rewrite(before, random.Random(seed))) for seed in range(40)]
    assert sum(each is not None for each in found) > 20
    assert not fault(record_files.reorder(before, random.Random(1)))
    # Bytes that are no whole record must not count, even if their length field says so.
    tails = [record_files.end_in_length(before, random.Random(seed)) for seed in range(9)]
    for after in (*tails, before[:-1], before + b"\0", before[:20] + b"\0" + before[21:]):
        assert fault(after) == "bytes that are no whole record are accepted"


INTERRUPTED = 'Traceback (most recent call last):\n  File "x.py", line 3\nKeyboardInterrupt\n'
IGNORED = f"Exception ignored in: <function f>\n{INTERRUPTED}"


@pytest.mark.parametrize(
    ("log", "exit_code", "sent", "expected"),
    [
        ("done", 0, None, outcomes.FINISHED),
        ("error: it is damaged", 1, None, outcomes.REFUSED),
        ("error: a\nerror: b", 1, None, outcomes.TRACEBACK),
        ("nothing", 1, None, outcomes.TRACEBACK),
        ("Traceback (most recent call last)\nerror: a", 1, None, outcomes.TRACEBACK),
        ("", None, 9, outcomes.HANG),
        ("", -9, 9, outcomes.STOPPED),
        ("", -11, 9, outcomes.CRASH),
        ("", -6, None, outcomes.CRASH),
        ("stopped at step 3", 0, 15, outcomes.STOPPED),
        ("done", 0, 15, outcomes.FINISHED),
        (IGNORED + "done", 0, 2, outcomes.FINISHED),
        (IGNORED + "done", 0, 15, outcomes.TRACEBACK),
        (f"done\n{processes._ENDED}\n{INTERRUPTED}", 130, 2, outcomes.FINISHED),
        (INTERRUPTED, 130, 2, outcomes.TRACEBACK),
    ],
)
def test_each_outcome_of_a_process(log, exit_code, sent, expected):
    assert processes.judge(types.SimpleNamespace(log=log), exit_code, sent).what == expected


def test_the_table_and_its_defects():
    tally = Tally()
    tally.add("a file", Outcome(outcomes.REFUSED, "error: no"))
    tally.add("a file", Outcome(outcomes.WRONG, "believed"), "(number 3)")
    tally.add("another", Outcome(outcomes.ACCEPTED))
    assert tally.lines() == [
        "         accepted  refused  wrong",
        "a file   -         1        1",
        "another  1         -        -",
    ]
    assert tally.total() == 3
    assert tally.defects == ["wrong: a file (number 3): believed"]
