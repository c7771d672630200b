"""The process of one contestant of benchmarks/serving.py: requests in, seconds out, as JSON lines.

python serving_worker.py NAME FOLDER
"""

from __future__ import annotations

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from serving_contestants import CONTESTANTS, FROM_TEXT, prepare, request, texts_of
from workers import serve


def main() -> None:
    """Serves the requests on standard input."""
    name, folder = sys.argv[1:]
    if name == "prepare":
        prepare(folder)
        return
    answer = None

    def respond(**wanted: int) -> dict[str, float]:
        nonlocal answer
        answer = answer or CONTESTANTS[name](folder)
        given = request(**wanted)
        if name.endswith(FROM_TEXT):
            given = texts_of(given)
        start = time.perf_counter()
        answer(given)
        return {"seconds": time.perf_counter() - start}

    serve(respond)


if __name__ == "__main__":
    main()
