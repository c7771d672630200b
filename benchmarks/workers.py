"""A contestant in its own process: it answers each line of JSON with a line of JSON."""

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
