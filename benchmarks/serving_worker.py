"""The process of one contestant of benchmarks/serving.py: requests in, seconds out, as JSON lines.

python serving_worker.py NAME FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from serving_contestants import CONTESTANTS, prepare, request


def main() -> None:
    """Serves the requests on standard input."""
    name, folder = sys.argv[1:]
    if name == "prepare":
        prepare(folder)
        return
    # What libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        answer = CONTESTANTS[name](folder)
        for line in sys.stdin:
            features = request(**json.loads(line))
            start = time.perf_counter()
            answer(features)
            print(json.dumps({"seconds": time.perf_counter() - start}), file=answers)
    except Exception as error:  # The parent tells which contestant failed, and how.
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers)


if __name__ == "__main__":
    main()
