"""The campaign sees what it looks for: each of its outcomes is provoked once.

Can't see: what the campaign itself finds; `make campaign` does, in minutes.
"""

import argparse
import os
import random
import time

import pytest

from tools.campaign import __main__ as campaign
from tools.campaign import (
    kills,
    kinds,
    mutations,
    mutators,
    outcomes,
    processes,
    programs,
    record_kinds,
)
from tools.campaign.kinds import Bench, Evidence, Kind
from tools.campaign.outcomes import Outcome, Tally

TEXT = b"first 1\nsecond 2\nthird 3\n"


def kind(read, judge=kinds.same, name="a kind") -> Kind:
    def make(folder):
        (folder / "file.txt").write_bytes(TEXT)

    return Kind(name, make, mutators.TEXT, read, judge, "*.txt")


def refuse(message):
    """Returns a reader that refuses all but the whole file."""

    def read(folder):
        path = folder / "file.txt"
        if path.read_bytes() != TEXT:
            raise ValueError(message.format(path))

    return read


def break_down(folder):
    if (folder / "file.txt").read_bytes() != TEXT:
        raise KeyError("x")


@pytest.mark.parametrize(
    ("read", "judge", "expected"),
    [
        (refuse("{} is damaged"), kinds.same, outcomes.REFUSED),
        (refuse("it is damaged"), kinds.same, outcomes.NAMELESS),
        (break_down, kinds.same, outcomes.TRACEBACK),
        (lambda folder: 3, kinds.same, outcomes.ACCEPTED),
        (lambda folder: (folder / "file.txt").read_bytes(), kinds.same, outcomes.WRONG),
        (lambda folder: [(folder / "file.txt").read_bytes()], kinds.part, outcomes.WRONG),
        (
            lambda folder: (folder / "file.txt").read_bytes(),
            lambda evidence: None,
            outcomes.ACCEPTED,
        ),
    ],
)
def test_each_outcome_of_a_reader(read, judge, expected, tmp_path):
    bench = Bench(kind(read, judge), tmp_path, seed=1)
    for number in range(3):
        assert bench.attempt(number)[1].what == expected


@pytest.mark.parametrize("message", ["error: a\nb", "error: a\x1b[2J", "no such file", "2"])
def test_refusals_are_one_printable_line(message):
    assert kinds.refusal(message).what == outcomes.TRACEBACK


def test_memory_is_counted(tmp_path, monkeypatch):
    bench = Bench(kind(lambda folder: 3), tmp_path, seed=1)
    monkeypatch.setattr(kinds, "_MOST_BYTES", -1)
    assert bench.attempt(0)[1].what == outcomes.MEMORY


def hang(folder):
    if (folder / "file.txt").read_bytes() != TEXT:
        time.sleep(60)


def die(folder):
    if (folder / "file.txt").read_bytes() != TEXT:
        os.abort()


# What the watched process looks up by name.
KINDS = {
    "reads": kind(lambda folder: 3, name="reads"),
    "hangs": kind(hang, name="hangs"),
    "dies": kind(die, name="dies"),
}


def test_hangs_and_crashes_are_outcomes_and_do_not_end_it(tmp_path, monkeypatch):
    watched = mutations.Watched(tmp_path, 1, kinds=__name__)
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
    names = [program.name for program in programs.PROGRAMS]
    kinds_of_files = [*mutations.KINDS]
    expected = [*kinds_of_files, *(f"kills, {name}" for name in names)]
    assert left_out == [*expected, "disk", "workers", "predictions"]


def test_each_kind_has_its_share_whenever_it_ends():
    batches = mutations._batches([*mutations.KINDS], 5000)
    assert {name for name, _ in batches[: len(mutations.KINDS)]} == set(mutations.KINDS)
    numbers = {}
    for name, batch in batches:
        assert list(batch) and batch.start == numbers.get(name, 0)
        numbers[name] = batch.stop
    assert abs(sum(numbers.values()) - 5000) < len(numbers)
    assert numbers["exported model"] == pytest.approx(numbers["squad_v1"] / 10, rel=0.1)


@pytest.mark.parametrize(
    "mutate", sorted({*mutators.JSON, *mutators.BINARY}, key=lambda m: m.__name__)
)
@pytest.mark.parametrize("content", [b"", b"\n", TEXT, b'{"a": [1, {"b": "c"}], "d": null}'])
def test_mutators_take_anything_and_draw_the_same_again(mutate, content):
    damaged = [mutate(content, random.Random(seed)) for seed in range(30)]
    assert damaged == [mutate(content, random.Random(seed)) for seed in range(30)]
    if content.strip():
        assert any(new != content for new in damaged)


def test_records_with_impossible_values_are_known(tmp_path):
    """A rewritten record has whole checksums: only its judge knows that it is wrong."""
    static = record_kinds.KINDS[0]
    static.make(tmp_path)
    before = (tmp_path / "a.tfrecord").read_bytes()
    whole = record_kinds.records(before)
    found = []
    for seed in range(40):
        after = record_kinds.rewrite(before, random.Random(seed))
        evidence = Evidence(before, after, whole, record_kinds.records(after), "a.tfrecord")
        found.append(static.judge(evidence))
    assert sum(fault is not None for fault in found) > 20
    swapped = record_kinds.reorder(before, random.Random(1))
    assert not static.judge(
        Evidence(before, swapped, whole, record_kinds.records(swapped), "a.tfrecord")
    )


INTERRUPTED = 'Traceback (most recent call last):\n  File "x.py", line 3\nKeyboardInterrupt\n'
IGNORED = f"Exception ignored in: <function f>\n{INTERRUPTED}"


class Ended:
    """A process that has ended, as far as a judge looks."""

    def __init__(self, log: str) -> None:
        self.log = log


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
    assert processes.judge(Ended(log), exit_code, sent).what == expected


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
