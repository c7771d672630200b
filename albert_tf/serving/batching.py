"""Answers concurrent requests in batches, each request as if it were alone."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from albert_tf.serving.predict import Predictor
from albert_tf.serving.settings import ServerSettings


class Batcher:
    """Collects waiting rows of texts into batches, which a model answers in threads.

    Args:
      predictor: The model.
      settings: The limits of batches, waiting and the queue.
      observe_size: Called with the size of each batch.
      observe_wait: Called with the seconds that each row has waited for its batch.

    Attributes:
      queue: Maps the future of each waiting row's outputs to its arrival time and the row.
    """

    def __init__(
        self,
        predictor: Predictor,
        settings: ServerSettings,
        observe_size: Callable[[int], Any],
        observe_wait: Callable[[float], Any],
    ) -> None:
        self._predictor, self._settings = predictor, settings
        self._observe_size, self._observe_wait = observe_size, observe_wait
        self.queue: collections.OrderedDict[asyncio.Future, tuple[float, Sequence[str]]]
        self.queue = collections.OrderedDict()
        self._arrived = asyncio.Event()
        self._workers: set[asyncio.Task] = set()

    async def __call__(self, rows: Sequence[Sequence[str]]) -> list[dict[str, Any]] | None:
        """Returns results for rows with the same number of texts; None if the queue lacks room."""
        # Refuse now rather than let clients wait until their time is up.
        if len(self.queue) + len(rows) > self._settings.max_queue:
            return None
        loop = asyncio.get_running_loop()
        answers, now = [loop.create_future() for _ in rows], loop.time()
        self.queue.update((answer, (now, row)) for answer, row in zip(answers, rows, strict=True))
        self._arrived.set()
        # Workers end when no row waits, so that they don't keep a removed model in memory.
        if len(self._workers) < self._settings.threads:
            self._workers.add(loop.create_task(self._work()))
        try:
            return await asyncio.gather(*answers)
        finally:  # If the request was cancelled or one row failed, drop its other rows.
            for answer in answers:
                self.queue.pop(answer, None)

    async def _work(self) -> None:
        """Answers waiting rows, batch by batch, until there are none."""
        loop, most = asyncio.get_running_loop(), self._settings.max_batch_size
        while self.queue:
            # Wait for more rows until the batch is full or its time is up.
            end = loop.time() + self._settings.max_wait_ms / 1000
            while len(self.queue) < most and (left := end - loop.time()) > 0:
                self._arrived.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), left)
            batch = [self.queue.popitem(last=False) for _ in range(min(most, len(self.queue)))]
            if not batch:  # All clients left during the wait.
                continue
            for _, (came, _) in batch:
                self._observe_wait(loop.time() - came)
            # The model runs in a thread, while the loop goes on reading requests.
            rows = [row for _, (_, row) in batch]
            found = await loop.run_in_executor(None, self._answer, rows)
            # A row that failed fails its own request, and no other of the batch.
            for (answer, _), outputs in zip(batch, found, strict=True):
                if isinstance(outputs, Exception) and not answer.done():
                    answer.set_exception(outputs)
                elif not answer.done():  # If done, it was cancelled: nobody waits for it.
                    answer.set_result(outputs)
        self._workers.remove(asyncio.current_task())

    def _answer(self, rows: Sequence[Sequence[str]]) -> list[Any]:
        """Returns the outputs for each row, or the exception it raised; runs in a thread."""
        found: dict[int, Any] = {}
        try:
            batches = [*self._predictor.alike(rows)]
        except Exception:  # A row can't be read: ask for each alone, so that only this one fails.
            batches = [[place] for place in range(len(rows))]
        for places in batches:
            found |= zip(places, self._call([rows[i] for i in places]), strict=True)
        return [found[i] for i in range(len(rows))]

    def _call(self, rows: Sequence[Sequence[str]]) -> Iterable[Any]:
        self._observe_size(len(rows))
        try:
            return self._predictor.outputs(rows)
        except Exception as error:
            # Perhaps one row is to blame: ask for each alone, so that the others are answered.
            return [error] if len(rows) == 1 else [e for row in rows for e in self._call([row])]
