"""Contestants in processes of their own, which answer in JSON: once, or a line for each line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Worker:
    """A process that runs `serve`.

    Args:
      name: Its name in tables and errors.
      script: A file in this folder.
      *arguments: Its command line.
    """

    def __init__(self, name: str, script: str, *arguments: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and returns the answer.

        Raises:
          RuntimeError: If the contestant fails.
        """
        self._process.stdin.write(json.dumps(request) + "\n")
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def serve(answer: Callable[..., dict[str, Any]]) -> None:
    """Answers requests until standard input ends, or one fails.

    Args:
      answer: Takes a request's members as keyword arguments.
    """
    # Keeps what a framework prints out of the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        for line in sys.stdin:
            print(json.dumps(answer(**json.loads(line))), file=answers)
    except Exception as error:  # The parent reports which contestant failed, and how.
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers)


def in_process(function: str, *arguments: Any, backend: str) -> dict[str, Any]:
    """Calls a function in a new process and returns what it returns; ends this one if it fails.

    Args:
      function: Its name, after that of its script in this folder: "depth.compile_one".
      *arguments: Numbers and texts.
      backend: Keras's there.
    """
    module = function.partition(".")[0]
    folder = Path(__file__).resolve().parent
    environment = {"PYTHONPATH": str(folder.parent), **os.environ}
    code = f"import json, {module}; print(json.dumps({function}(*{arguments!r})))"
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        sys.exit(f"{function}{arguments}: {process.stderr[-3000:]}")
    return json.loads(process.stdout.splitlines()[-1])
