"""Runs contestants in their own processes, which answer in JSON: once, or one line per request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
_ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(ROOT / "research/benchmarks"), str(ROOT)]),
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # As in the scripts; here for every contestant on TensorFlow.
    "TF_ENABLE_ONEDNN_OPTS": "1",
}


AnyWorker = TypeVar("AnyWorker", bound="Worker")


def _code(function: str) -> str:
    return f"import json, sys, workers, {function.partition('.')[0]}; "


class Worker:
    """A process on the CPU that answers requests.

    Args:
      name: Its name in tables and errors.
      function: Its name, "finetune.answers"; given the arguments it makes `answer` of `serve`.
      *arguments: Texts.
      backend: Keras's in the process.
    """

    def __init__(
        self, name: str, function: str, *arguments: str, backend: str = "tensorflow"
    ) -> None:
        self.name = name
        code = _code(function) + f"workers.serve({function}(*sys.argv[1:]))"
        environment = {**_ENVIRONMENT, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and returns the answer; raises RuntimeError if the contestant fails."""
        self._process.stdin.write(json.dumps(request) + "\n")
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def that_answer(workers: Iterable[AnyWorker], **request: Any) -> list[AnyWorker]:
    """Returns the workers that answer a first request, and says why others are left out."""
    found = []
    for worker in workers:
        try:
            worker.ask(**request)
        except RuntimeError as error:
            print(f"left out: {error}")
            worker.close()
        else:
            found.append(worker)
    return found


def serve(answer: Callable[..., dict[str, Any]]) -> None:
    """Answers requests until standard input ends, or one fails.

    Args:
      answer: Takes a request's members as keyword arguments.
    """
    # Sends what frameworks print to standard error, not between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        for line in sys.stdin:
            print(json.dumps(answer(**json.loads(line))), file=answers)
    except Exception as error:  # The parent reports which contestant failed, and how.
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers)


def in_process(function: str, *arguments: Any, backend: str, timeout: float | None = None) -> Any:
    """Calls a function in a new process and returns what it returns; ends this one if it fails.

    Args:
      function: A script's name in this folder, and the function's: "gpu.measure".
      *arguments: Numbers and texts.
      backend: Keras's in the process.
      timeout: Seconds, after which subprocess.TimeoutExpired is raised.
    """
    code = _code(function) + f"print(json.dumps({function}(*{arguments!r})))"
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **_ENVIRONMENT, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    if process.returncode:
        sys.exit(f"{function}{arguments}: {process.stderr[-3000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def generate(text: str | Path, output: str | Path, **flags: Any) -> str:
    """Runs data/create_pretraining_data.py in a process of its own; returns its log."""
    flags = {"input_file": text, "output_file": output, **flags}
    command = [sys.executable, str(ROOT / "data" / "create_pretraining_data.py")]
    command += [f"--{name}={value}" for name, value in flags.items()]
    environment = {**os.environ, **_ENVIRONMENT}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stderr
