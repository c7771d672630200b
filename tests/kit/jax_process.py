"""Processes in which Keras runs on JAX: pytest's own has it on TensorFlow.

They are forked from a server that has imported JAX, Keras and TensorFlow once and started no
backend: each is as fresh as a new Python, and four CPU seconds cheaper.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import json
import os
import pathlib
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
# Far longer than any process takes, so that only one that hangs fails.
_TIMEOUT_SECONDS = 600
# Maximum size of a request in bytes; the socket delivers it in one piece.
_MAX_REQUEST = 32768


class Process:
    """A process on JAX, with the methods of `subprocess.Popen` to end it and to wait for it."""

    def __init__(self, written: int, status: int) -> None:
        self.returncode: int | None = None
        self._written, self._status = written, status
        self.pid = int(_read(status, 20, time.monotonic() + _TIMEOUT_SECONDS, until=b"\n"))

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, None]:
        """Waits for its end; returns what it wrote, to stderr as well."""
        end = time.monotonic() + timeout
        written = _read(self._written, -1, end).decode()
        self.returncode = int(_read(self._status, 20, end, until=b"\n"))
        os.close(self._written)
        os.close(self._status)
        return written, None


def start(
    function: Callable[..., None], *arguments: Any, devices: int = 1, **environment: str
) -> Process:
    """Starts a process that calls a function of a test module; arguments are passed as text.

    It sees the CPU as `devices` devices. Its environment gets no variables that JAX or Keras reads
    on import: they are imported already.
    """
    assert not any(name.startswith(("JAX_", "KERAS_")) for name in environment)
    module = pathlib.Path(inspect.getfile(function)).relative_to(ROOT).with_suffix("")
    name = f"{'.'.join(module.parts)}:{function.__qualname__}"
    flags = f"{base_environment()['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    environment = {**base_environment(), "XLA_FLAGS": flags, **environment}
    request = {"name": name, "arguments": [*map(str, arguments)], "environment": environment}
    written, write_end = os.pipe()
    status, status_end = os.pipe()
    message = json.dumps(request).encode()
    assert len(message) < _MAX_REQUEST
    socket.send_fds(_server()[0], [message], [write_end, status_end])
    os.close(write_end)
    os.close(status_end)
    return Process(written, status)


def finish(process: Process, returncode: int = 0) -> str:
    """Waits for a process's end, checks its exit code, and returns what it wrote."""
    try:
        written, _ = process.communicate(_TIMEOUT_SECONDS)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == returncode, written[-5000:]
    return written


def close() -> None:
    """Ends the server, if there is one."""
    if _server.cache_info().currsize:
        connection, process = _server()
        connection.close()
        process.wait()
        _server.cache_clear()


def base_environment() -> dict[str, str]:
    """Returns the environment of processes on JAX: quick compilation, on the CPU."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    own = {
        "PYTHONPATH": path,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": os.environ["XLA_FLAGS"],
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    jaxlib = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2]))
    if jaxlib < (0, 12):
        # A program of a few elements compiles four times as fast. A newer XLA does not know these
        # flags, and would end the process.
        own["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
        own["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1"
    return {**os.environ, **own}


@functools.cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    here, there = socket.socketpair()
    with there:
        command = [sys.executable, "-m", "tests.kit.jax_process", str(there.fileno())]
        process = subprocess.Popen(command, env=base_environment(), pass_fds=[there.fileno()])
    return here, process


def _read(file: int, size: int, end: float, until: bytes = b"") -> bytes:
    """Reads up to `size` bytes (all if negative), or until they end with `until`."""
    found = b""
    while size < 0 or len(found) < size:
        if not select.select([file], [], [], max(0, end - time.monotonic()))[0]:
            raise TimeoutError(f"waited for {_TIMEOUT_SECONDS} s:\n{found[-5000:].decode()}")
        piece = os.read(file, 1 if until else 65536)
        if not piece:
            break
        found += piece
        if until and found.endswith(until):
            break
    return found


def _serve(connection: socket.socket) -> dict[str, Any]:
    """In the server: forks a process for each request, and returns in it; ends after the last."""
    while True:
        message, files, *_ = socket.recv_fds(connection, _MAX_REQUEST, 2)
        if not message:
            break
        if os.fork() == 0:
            request = json.loads(message)
            written, status = files
            pid = os.fork()
            if pid == 0:
                connection.close()
                os.close(status)
                for standard in (1, 2):
                    os.dup2(written, standard)
                os.close(written)
                return request
            # Waits for it, as its parent; the process that asked for it isn't, and so can't.
            os.close(written)
            os.write(status, b"%d\n" % pid)
            _, ended = os.waitpid(pid, 0)
            os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
            os._exit(0)
        for file in files:
            os.close(file)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            sys.exit()


if __name__ == "__main__":
    from albert_tf.console import tensorflow_logs

    with tensorflow_logs.filtered_stderr():
        from tests.kit import frozen  # noqa: F401

    _request = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(_request["environment"])
    pkgutil.resolve_name(_request["name"])(*_request["arguments"])
