"""Runs programs on full or read-only disks, and again once there is room.

Root gets a small tmpfs. Other users get a limit on the size of each file (RLIMIT_FSIZE), which does
not test many small files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import resource
import subprocess
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

from tools.campaign import kills, outcomes, processes, programs
from tools.campaign.outcomes import Outcome, Tally
from tools.campaign.processes import Program, Running

# Shares of the bytes that an undisturbed run leaves.
_SHARES = (0.0, 0.2, 0.5, 0.8)
_ROOM = 1 << 30


def run(tally: Tally, names: list[str], folder: pathlib.Path, is_over: Callable[[], bool]) -> str:
    """Runs each program on disks of several sizes; returns how a full disk was made."""
    mounts = _can_mount(folder)

    def count(program: Program) -> None:
        tries = _on_disks(program, folder / program.name, mounts)
        while not is_over() and (found := next(tries, None)):
            subject = f"{'full' if found[0] else 'read-only'} disk, {program.name}"
            tally.add(subject, found[1], f"({found[0]:,} bytes)")

    chosen = [program for program in programs.PROGRAMS if program.name in names]
    with futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(count, chosen))
    return "a tmpfs" if mounts else "a limit on file sizes (a tmpfs needs root)"


def _on_disks(program: Program, folder: pathlib.Path, mounts: bool) -> Iterator[Any]:
    """Runs a program on disks of several sizes; yields each size and the outcome."""
    one = kills.undisturbed(program, folder)
    out = folder / "undisturbed"
    files = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
    attempt = _on_small_disk if mounts else _with_small_files
    # Permissions don't stop root, but a read-only mount does.
    if mounts:
        yield 0, _on_small_disk(one, folder / "readonly", 0)
    for share in _SHARES:
        size = max(4096, int((sum(files) if mounts else max(files)) * share))
        yield size, attempt(one, folder / f"disk{share}", size)


def _can_mount(folder: pathlib.Path) -> bool:
    probe = folder / "probe"
    probe.mkdir(parents=True)
    try:
        with _disk(probe, 4096):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextlib.contextmanager
def _disk(place: pathlib.Path, size: int) -> Iterator[None]:
    place.mkdir(exist_ok=True)
    _quietly("mount", "-t", "tmpfs", "-o", f"size={size}", "campaign", str(place))
    try:
        yield
    finally:
        _quietly("umount", "-l", str(place))


def _quietly(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _on_small_disk(one: kills.Undisturbed, place: pathlib.Path, size: int) -> Outcome:
    """Runs a program on a disk of a size, 0 for a read-only one, and then on a large one."""
    log = place.parent / f"{place.name}.log"
    with _disk(place, size or _ROOM):
        if not size:
            _quietly("mount", "-o", "remount,ro", str(place))
        first = _run(one.program, one, place, log)
        if first.what != outcomes.REFUSED:
            return first
        _quietly("mount", "-o", f"remount,rw,size={_ROOM}", str(place))
        return _again(one, place, log, first)


def _with_small_files(one: kills.Undisturbed, place: pathlib.Path, size: int) -> Outcome:
    place.mkdir()
    log = place.parent / f"{place.name}.log"
    main = functools.partial(_limited, one.program.main, size)
    limited = dataclasses.replace(one.program, main=main)
    first = _run(limited, one, place, log)
    return first if first.what != outcomes.REFUSED else _again(one, place, log, first)


def _limited(main, size: int, arguments: list[str]) -> None:
    # The limit also applies to the log, which the attempt is not about: leave room for it.
    log_size = os.fstat(1).st_size + (1 << 16)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(size, log_size),) * 2)
    main(arguments)


def _run(program: Program, one: kills.Undisturbed, out: pathlib.Path, log: pathlib.Path) -> Outcome:
    running = Running(program, program.arguments(one.inputs, out), log)
    outcome = processes.judge(running, running.end())
    if outcome.what == outcomes.FINISHED and program.results(out) != one.results:
        return Outcome(outcomes.WRONG, "it reports nothing, but its results differ")
    return outcome


def _again(one: kills.Undisturbed, out: pathlib.Path, log: pathlib.Path, first: Outcome) -> Outcome:
    second = _run(one.program, one, out, log).of_intact()
    left = processes.left_behind(out)
    if second.what == outcomes.FINISHED and left:
        return Outcome(outcomes.WRONG, f"left behind: {', '.join(left)}")
    return first if second.what == outcomes.FINISHED else second
