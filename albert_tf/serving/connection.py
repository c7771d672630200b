"""A connection to albert-serve: uvicorn's on h11, with the bounds that these lack."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Time for a header, between parts of a body, and for an answer to be fetched.
_HEADER_SECONDS, _BODY_SECONDS, _ANSWER_SECONDS = 10, 30, 75
# What a client may send before its last request is answered. (h11 bounds headers by 16 KiB.)
_UNREAD_BYTES = 65_536


class Connection(H11Protocol):
    """Ends where its client falls silent in the middle, or sends more requests than are read."""

    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._end_in(_HEADER_SECONDS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._end_in(_BODY_SECONDS)
        elif state is not h11.IDLE:  # The request is complete.
            self._end_in(None)
            if state is h11.DONE and len(self.conn.trailing_data[0]) > _UNREAD_BYTES:
                self.transport.abort()
        elif not self._end:
            self._end_in(_HEADER_SECONDS)

    def connection_lost(self, error: Exception | None) -> None:
        self._end_in(None)
        super().connection_lost(error)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end_in(_ANSWER_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_in(None)

    def _end_in(self, seconds: float | None) -> None:
        """Ends the connection after some time, unless this is called again."""
        if self._end:
            self._end.cancel()
        self._end = self.loop.call_later(seconds, self.transport.abort) if seconds else None
