"""One contestant (or limit) in a process of its own, told by train_step.py what to do.

Arguments: dtype, name, and the batch's sequences and tokens; without the latter two it is a limit.
It answers each line on its standard input with a line of JSON on its standard output:

    start   builds the contestant and makes the first step; {"seconds", "versions"}
    go N    makes N steps (a limit: measures once); {"seconds"} of one step, or {"gflops"}
    memory  {"bytes"}, the most that the process held

or with {"error"}.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from contestants import CONTESTANTS, Shape
from limits import LIMITS

PACKAGES = ("tensorflow", "keras", "keras-hub", "torch", "transformers", "numpy")


def main(dtype: str, name: str, *shape: str) -> None:
    """Serves until the standard input ends."""
    # What a framework prints must not get between the answers.
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    step: Any = None
    for line in sys.stdin:
        try:
            step, answer = _obey(line.split(), step, dtype, name, shape)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def _obey(command: list[str], step: Any, dtype: str, name: str, shape: tuple[str, ...]) -> Any:
    """Returns the contestant's step, once it is built, and the answer."""
    if command[0] == "memory":
        status = Path("/proc/self/status").read_text()
        return step, {"bytes": 1024 * int(re.search(r"VmHWM:\s*(\d+)", status)[1])}
    if command[0] == "start" and not shape:
        return LIMITS[dtype, name](), {"versions": _versions()}
    if command[0] == "start":
        step = CONTESTANTS[dtype, name](Shape(*map(int, shape)))
        seconds = _seconds(step, 1)
        return step, {"seconds": seconds, "versions": _versions()}
    if shape:
        return step, {"seconds": _seconds(step, int(command[1]))}
    return step, {"gflops": step()}


def _seconds(step: Any, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


def _versions() -> dict[str, str]:
    imported = {name.replace("_", "-") for name in sys.modules}
    return {name: importlib.metadata.version(name) for name in PACKAGES if name in imported}


if __name__ == "__main__":
    main(*sys.argv[1:])
