"""Damaged files, read by watched processes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import queue
import re
import resource
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from multiprocessing.connection import Connection

from tools.campaign import exports, model_files, outcomes, record_files, state_files, text_files
from tools.campaign.file_types import Bench, FileType
from tools.campaign.outcomes import Outcome, Tally
from tools.campaign.processes import CONTEXT

FILE_TYPES: Mapping[str, FileType] = {
    each.name: each
    for each in (
        *record_files.FILE_TYPES,
        *model_files.FILE_TYPES,
        *state_files.FILE_TYPES,
        *text_files.FILE_TYPES,
        *exports.FILE_TYPES,
    )
}
# Timeouts for a file; the first attempt of a type has to make the intact files as well.
_SECONDS, _SECONDS_TO_BEGIN = 30, 120
# Limit of the memory that a process may allocate after its start.
_MOST_BYTES = 6 << 30
_BATCH = 10


def run(
    tally: Tally,
    names: Sequence[str],
    count: int,
    seed: int,
    folder: pathlib.Path,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Damages `count` files of the named types, or until `is_over`; slow types get fewer."""
    idle: queue.SimpleQueue[Watched] = queue.SimpleQueue()

    def attempt(batch: tuple[str, range]) -> None:
        name, numbers = batch
        watched = idle.get()
        try:
            for number in numbers:
                if not is_over():
                    how, outcome = watched.attempt(name, number)
                    tally.add(name, outcome, f"({how})")
        finally:
            idle.put(watched)

    with contextlib.ExitStack() as processes:
        workers = len(os.sched_getaffinity(0))
        for i in range(workers):
            idle.put(processes.enter_context(contextlib.closing(Watched(folder / str(i), seed))))
        with futures.ThreadPoolExecutor(workers) as pool:
            list(pool.map(attempt, _batches(names, count)))


def _batches(names: Sequence[str], count: int) -> list[tuple[str, range]]:
    """Returns numbers of attempts, types in turn, so that each has its share at any time."""
    weights = {name: 1 if FILE_TYPES[name].slow else 10 for name in names}
    found = []
    for name in names:
        share = max(1, round(count * weights[name] / sum(weights.values())))
        for begin in range(0, share, _BATCH):
            found.append((begin / share, name, range(begin, min(begin + _BATCH, share))))
    return [(name, numbers) for _, name, numbers in sorted(found, key=lambda batch: batch[0])]


class Watched:
    """A process that reads damaged files, replaced when it hangs or dies."""

    def __init__(self, folder: pathlib.Path, seed: int, module: str = __name__) -> None:
        self._folder, self._seed, self._module = folder, seed, module
        self._process, self._begun = None, set()

    def attempt(self, name: str, number: int) -> tuple[str, Outcome]:
        """Returns how a file was damaged, and the outcome."""
        if self._process is None:
            self._start()
        seconds = _SECONDS if name in self._begun else _SECONDS_TO_BEGIN
        self._begun.add(name)
        self._connection.send((name, number))
        how, outcome = f"number {number}", None
        try:
            if self._connection.poll(seconds):
                return self._connection.recv()
            outcome = Outcome(outcomes.HANG, f"{seconds} s")
        except (EOFError, ConnectionError):
            self._process.join(10)
            outcome = Outcome(outcomes.CRASH, f"exit code {self._process.exitcode}")
        self.close()
        return how, outcome

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None

    def _start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._connection, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(
            target=_serve, args=(theirs, self._folder, self._seed, self._module), daemon=True
        )
        self._process.start()
        theirs.close()
        self._begun = set()


def _serve(connection: Connection, folder: pathlib.Path, seed: int, module: str) -> None:
    known = __import__(module, fromlist=["FILE_TYPES"]).FILE_TYPES
    _quieten(folder)
    benches: dict[str, Bench] = {}
    with contextlib.suppress(EOFError):
        while True:
            name, number = connection.recv()
            try:
                if name not in benches:
                    benches[name] = Bench(known[name], folder / _plain(name), seed)
                answer = benches[name].attempt(number)
            except Exception as error:  # A fault of the campaign, not of the reader.
                answer = "the campaign", Outcome(outcomes.TRACEBACK, repr(error)[:300])
            connection.send(answer)


def _plain(name: str) -> str:
    """Replaces all but letters and digits: a comma would separate names in --input_file."""
    return re.sub(r"\W+", "_", name)


def _quieten(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
