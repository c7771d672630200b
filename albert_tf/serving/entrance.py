"""Lets clients in, those of each address in turn: many of one don't hold up another."""

from __future__ import annotations

import asyncio
import collections
import itertools
import socket
import sys
from collections.abc import Callable

# Connections that the system keeps until they are accepted.
_WAITING = 2048
# Connections begun at once, some milliseconds of work.
_BEGUN = 16


class Entrance:
    """Accepts all clients, which costs little, and begins to serve a few of them at a time.

    Servers of asyncio take clients as they come: behind 3,000 connections of one address, another
    waits for a second. To uvicorn this is such a server.

    Args:
      listener: A bound socket, which listens from now on.
      protocol: Returns what serves a connection.
    """

    def __init__(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._listener, self._protocol = listener, protocol
        self._waiting: collections.OrderedDict[str, collections.deque[socket.socket]]
        self._waiting = collections.OrderedDict()  # By address, the next one first.
        self._arrived = asyncio.Event()
        listener.setblocking(False)
        listener.listen(_WAITING)
        self._tasks = [asyncio.create_task(each) for each in (self._accept(), self._begin())]

    def close(self) -> None:
        """Lets nobody in any more."""
        for task in self._tasks:
            task.cancel()
        for connection in itertools.chain(*self._waiting.values()):
            connection.close()

    async def wait_closed(self) -> None:
        """Returns once it is closed."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for count in itertools.count(1):
            try:
                connection, address = await loop.sock_accept(self._listener)
            except ConnectionAbortedError:  # Its client has left, as some systems tell.
                continue
            except OSError as error:  # The process has as many files open as it may have.
                print(f"albert-serve: {error}", file=sys.stderr, flush=True)
                await asyncio.sleep(1)
                continue
            self._waiting.setdefault(address[0], collections.deque()).append(connection)
            self._arrived.set()
            if count % _WAITING == 0:  # Those who wait already are accepted without a pause.
                await asyncio.sleep(0)

    async def _begin(self) -> None:
        loop, begun = asyncio.get_running_loop(), set[asyncio.Task]()
        while await self._arrived.wait():
            for _ in range(_BEGUN):
                if not self._waiting:
                    self._arrived.clear()
                    break
                address, connections = self._waiting.popitem(last=False)
                begin = loop.connect_accepted_socket(self._protocol, connections.popleft())
                task = loop.create_task(begin)
                begun.add(task)
                task.add_done_callback(begun.discard)
                if connections:
                    self._waiting[address] = connections
            await asyncio.sleep(0)
