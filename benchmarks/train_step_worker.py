"""One contestant (or limit) in its own process, driven by train_step.py.

Arguments: dtype, name, and the batch's sequences and tokens; without those two it is a limit.
Requests, and what it answers:

    start              builds the contestant and makes the first step: seconds, versions
    steps, a count     makes steps (a limit: measures once): seconds of one step, or gflops
    memory             the process's peak memory in bytes
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# As the scripts set it; here for all on TensorFlow alike.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Of this project's contestants, one runs on JAX.
os.environ["KERAS_BACKEND"] = "jax" if sys.argv[2:3] == ["albert_tf, JAX"] else "tensorflow"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from contestants import CONTESTANTS
from limits import LIMITS
from workers import serve

from albert_tf.costs import Shape

PACKAGES = ("tensorflow", "keras", "jax", "keras-hub", "torch", "transformers", "numpy")


def main(dtype: str, name: str, *shape: str) -> None:
    """Serves until standard input ends."""
    step: Any = None

    def respond(do: str, count: int = 1) -> dict[str, Any]:
        nonlocal step
        if do == "memory":
            status = Path("/proc/self/status").read_text()
            return {"bytes": 1024 * int(re.search(r"VmHWM:\s*(\d+)", status)[1])}
        if do == "start":
            step = (
                CONTESTANTS[dtype, name](Shape(*map(int, shape)))
                if shape
                else LIMITS[dtype, name]()
            )
            seconds = _seconds(step, 1) if shape else 0.0
            return {"seconds": seconds, "versions": _versions()}
        return {"seconds": _seconds(step, count)} if shape else {"gflops": step()}

    serve(respond)


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
