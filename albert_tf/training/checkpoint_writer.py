"""Writes checkpoints in a thread, while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent import futures
from typing import Any

from absl import logging

from albert_tf import checkpoint


class CheckpointWriter:
    """Writes one checkpoint at a time.

    An error in writing is raised by the next call of `check` or `wait`. A `with` statement waits
    for its last checkpoint, whatever ends it.

    Args:
      directory: An existing directory.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._thread = futures.ThreadPoolExecutor(1, "checkpoint")
        self._started: futures.Future[None] | None = None

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.wait()

    def start(self, step: int, tensors: Mapping[str, Any], keep_max: int) -> None:
        """Starts to write a checkpoint; to be called after `wait`.

        Args: see checkpoint.save; nothing may change the tensors any more.
        """
        self._started = self._thread.submit(self._write, step, tensors, keep_max)

    def check(self) -> None:
        """Raises the error of a checkpoint that could not be written."""
        if self._started and self._started.done():
            self.wait()

    def wait(self) -> None:
        """Waits until the checkpoint is written, and listed; raises the error if it can't be."""
        started, self._started = self._started, None
        if started:
            started.result()

    def _write(self, step: int, tensors: Mapping[str, Any], keep_max: int) -> None:
        logging.info("saved %s", checkpoint.save(self._directory, step, tensors, keep_max))
