"""Concurrent requests are answered in batches, each as it would be alone."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from albert_tf.serving.predict import Predictor
from albert_tf.serving.settings import ServerSettings


class Batcher:
    """Has a model answer rows of texts that wait at the same time as batches, in threads.

    Args:
      predictor: The model.
      settings: The bounds on batches, waiting and the queue.
      observe: Is told the size of each batch.

    Attributes:
      queue: Rows that wait, by what awaits their outputs.
    """

    def __init__(
        self, predictor: Predictor, settings: ServerSettings, observe: Callable[[int], Any]
    ) -> None:
        self._predictor, self._settings, self._observe = predictor, settings, observe
        self.queue: collections.OrderedDict[asyncio.Future, Sequence[str]]
        self.queue = collections.OrderedDict()
        self._arrived = asyncio.Event()
        self._workers: list[asyncio.Task] = []

    async def __call__(self, rows: Sequence[Sequence[str]]) -> list[dict[str, Any]] | None:
        """Returns what is found in rows of equally many texts; None if too many rows wait."""
        if len(self.queue) + len(rows) > self._settings.max_queue:
            return None
        loop = asyncio.get_running_loop()
        if not self._workers:
            self._workers = [loop.create_task(self._work()) for _ in range(self._settings.threads)]
        answers = [loop.create_future() for _ in rows]
        self.queue.update(zip(answers, rows, strict=True))
        self._arrived.set()
        try:
            return await asyncio.gather(*answers)
        finally:  # Of a request that is cancelled, or has a bad row, the others need no answer.
            for answer in answers:
                self.queue.pop(answer, None)

    async def _work(self) -> None:
        """Answers what waits, batch by batch."""
        loop, most = asyncio.get_running_loop(), self._settings.max_batch_size
        while True:
            while not self.queue:
                self._arrived.clear()
                await self._arrived.wait()
            end = loop.time() + self._settings.max_wait_ms / 1000
            while len(self.queue) < most and (left := end - loop.time()) > 0:
                self._arrived.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), left)
            batch = [self.queue.popitem(last=False) for _ in range(min(most, len(self.queue)))]
            if not batch:  # They have gone while they waited for others.
                continue
            found = await loop.run_in_executor(None, self._answer, [row for _, row in batch])
            for (answer, _), outputs in zip(batch, found, strict=True):
                if isinstance(outputs, Exception) and not answer.done():
                    answer.set_exception(outputs)
                elif not answer.done():  # If it is, its client has gone.
                    answer.set_result(outputs)

    def _answer(self, rows: Sequence[Sequence[str]]) -> list[Any]:
        """Returns the outputs for each row, or what was raised, in a thread."""

        def shape(i: int) -> tuple[int, ...]:
            """Texts are read as long as the longest of their batch: a batch has one shape."""
            if self._predictor.depends_on_batch:
                return (i,)
            return len(rows[i]), int(4 * math.log2(32 + sum(map(len, rows[i]))))

        found: dict[int, Any] = {}
        for _, group in itertools.groupby(sorted(range(len(rows)), key=shape), shape):
            places = list(group)
            found |= zip(places, self._call([rows[i] for i in places]), strict=True)
        return [found[i] for i in range(len(rows))]

    def _call(self, rows: Sequence[Sequence[str]]) -> Iterable[Any]:
        self._observe(len(rows))
        try:
            return self._predictor.outputs(rows)
        except Exception as error:  # Another row's, perhaps.
            return [error] if len(rows) == 1 else [e for row in rows for e in self._call([row])]
