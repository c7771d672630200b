"""Maps a function over many items in parallel processes, with results in order."""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def count_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], num_processes: int
) -> Generator[Result, None, None]:
    """Yields function(item) for every item, in the order of the items.

    At most twice as many items as processes are in flight. With one process, this one computes;
    otherwise new ones do, started by `spawn`, which is safe whatever libraries are loaded here.
    They end with this iterator, and when this process ends for any reason: close the iterator
    (contextlib.closing) if it may be abandoned early.

    Args:
      function: Picklable, as are items and results.
      items: Read as needed.
      num_processes: Number of processes.

    Raises:
      ChildProcessError: If a process was killed.
      Exception: Whatever the function or the iterator of items raised.
    """
    if num_processes == 1:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    pool = concurrent.futures.ProcessPoolExecutor(
        num_processes, context, initializer=_end_with, initargs=(receiver,)
    )
    pending: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
    try:
        for item in items:
            if len(pending) == 2 * num_processes:
                yield pending.popleft().result()
            pending.append(pool.submit(function, item))
        while pending:
            yield pending.popleft().result()
        pool.shutdown()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker process was killed, perhaps because memory ran out: try again with a lower "
            "`num_processes`"
        ) from error
    finally:
        sender.close()
        # What nobody takes any more must not hold up the thread that sends it. Later versions of
        # Python do the same by themselves (CPython's gh-94777).
        queue = getattr(pool, "_call_queue", None)
        if sys.version_info < (3, 11, 5) and queue:
            queue._reader.close()
        pool.shutdown(cancel_futures=True)
        receiver.close()


def _end_with(lifeline: Connection) -> None:
    """Ends this worker at once when the parent closes its end of `lifeline`, or is killed."""
    # Ctrl-C reaches all processes of a terminal; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        lifeline.poll(None)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
