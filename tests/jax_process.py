"""Processes in which Keras runs on JAX: pytest's own has it on TensorFlow."""

import inspect
import os
import pathlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from albert_tf.console import tensorflow_logs

ROOT = pathlib.Path(__file__).parents[1]
# Far more than any takes: what hangs fails.
_TIMEOUT_SECONDS = 600


def start(
    function: Callable[..., None], *arguments: Any, devices: int = 1, **environment: str
) -> subprocess.Popen[str]:
    """Starts a process that calls a function of a test module with arguments, as text.

    Args:
      function: What it calls.
      *arguments: Converted to text.
      devices: Into how many devices the CPU is split.
      **environment: Additions to its environment.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    own = {
        "PYTHONPATH": path,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    module = pathlib.Path(inspect.getfile(function)).relative_to(ROOT).with_suffix("")
    name = f"{'.'.join(module.parts)}:{function.__qualname__}"
    return subprocess.Popen(
        [sys.executable, "-m", "tests.jax_process", name, *map(str, arguments)],
        env={**os.environ, **own, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], returncode: int = 0) -> str:
    """Waits for a process's end, checks its exit code, and returns what it wrote."""
    try:
        written, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == returncode, written[-5000:]
    return written


if __name__ == "__main__":
    tensorflow_logs.import_tensorflow()
    pkgutil.resolve_name(sys.argv[1])(*sys.argv[2:])
