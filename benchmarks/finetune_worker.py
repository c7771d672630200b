"""The process of one contestant of benchmarks/finetune.py.

python finetune_worker.py NAME SET BATCH MAX_SEQ_LENGTH

An empty request builds the contestant and compiles; one with seconds makes steps.
"""

from __future__ import annotations

import sys
import time

from finetune_contestants import CONTESTANTS, row_lengths
from workers import serve


def main(name: str, rows: str, batch_size: str, max_length: str) -> None:
    """Serves until standard input ends."""
    contestant, step = None, 0

    def respond(seconds: float | None = None) -> dict[str, float]:
        nonlocal contestant, step
        start, first = time.perf_counter(), step
        if seconds is None:
            lengths = row_lengths(rows, int(max_length))
            contestant = CONTESTANTS[name](lengths, int(batch_size), int(max_length))
            contestant.warm_up()
            took = time.perf_counter() - start
            sizes = contestant.sizes
            return {"batches": len(sizes), "positions": sum(sizes), "seconds": took}
        while step == first or time.perf_counter() - start < seconds:
            contestant.step()
            step += 1
        took, positions = time.perf_counter() - start, sum(contestant.sizes[first:step])
        return {"seconds": took, "positions": positions, "steps": step - first}

    serve(respond)


if __name__ == "__main__":
    main(*sys.argv[1:])
