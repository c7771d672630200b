"""Treats SIGINT (Ctrl-C) and SIGTERM as requests to stop, even while TensorFlow computes."""

from __future__ import annotations

import os
import signal
import threading
import time

from absl import logging

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# GNU timeout signals its command and then the whole process group, and a wrapper may pass on a
# Ctrl-C that the run has received itself. Signals within this time are the same request.
_ONE_REQUEST_SECONDS = 1.0


class StopSignals:
    """Context in which a first signal asks to stop, and a later one ends the process at once.

    Signals within a second of the first are the same request.

    Python runs signal handlers between two lines of the main thread, which may be minutes away
    while a step is compiled. The exception that Ctrl-C raises there is lost if it comes in a
    callback, such as JAX's for the garbage collector, and the program goes on. Therefore a thread
    waits for the signals. Outside the main thread no handler can be set, and signals go unnoticed.

    Contexts nest: signals go to the innermost one.

    Attributes:
      requested: The signal that asked to stop; None if there was none.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._requested_at = 0.0
        self._unsaved = False

    def set_unsaved(self, unsaved: bool) -> None:
        """Sets whether there is unsaved work; initially there is none.

        Without unsaved work the first signal ends the process at once, with exit code 0.
        """
        self._unsaved = unsaved
        if self.requested and not unsaved:
            self._end()

    def __enter__(self) -> StopSignals:
        self._listening = threading.current_thread() is threading.main_thread()
        if self._listening:
            self._read_end, self._write_end = os.pipe()
            os.set_blocking(self._write_end, False)
            self._fd_before = signal.set_wakeup_fd(self._write_end)
            # A handler that does nothing, lest the signal have its default effect.
            self._handlers_before = [signal.signal(number, lambda *_: None) for number in _SIGNALS]
            threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._listening:
            for number, handler in zip(_SIGNALS, self._handlers_before, strict=True):
                signal.signal(number, handler or signal.SIG_DFL)
            signal.set_wakeup_fd(self._fd_before)
            os.close(self._write_end)  # Ends the thread.

    def _listen(self) -> None:
        while received := os.read(self._read_end, 1):
            if received[0] in _SIGNALS:
                self._hear(signal.Signals(received[0]))
        os.close(self._read_end)

    def _hear(self, received: signal.Signals) -> None:
        now = time.monotonic()
        # A later signal ends the process, unless it belongs to the first.
        if self.requested:
            if now - self._requested_at < _ONE_REQUEST_SECONDS:
                return
            logging.info("stopped immediately by a second signal, %s", received.name)
            _exit(128 + received)
        # The first one lets the loop under way finish and save, if there is something to save.
        self.requested, self._requested_at = received, now
        if not self._unsaved:
            self._end()
        logging.info("%s: saving and stopping; a second signal stops immediately", received.name)

    def _end(self) -> None:
        logging.info(
            "stopped by %s, with nothing new to save: the same command continues",
            self.requested.name,
        )
        _exit(0)


def _exit(code: int) -> None:
    logging.flush()
    os._exit(code)
