"""One run at a time in an output directory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from albert_tf.storage import files, text_files

try:
    import fcntl
except ImportError:  # Windows: its directories are not locked.
    fcntl = None

# Seconds between heartbeats in a directory that can't be locked, and after which a run without one
# is considered dead.
_HEARTBEAT_SECONDS = 30.0
_DEAD_SECONDS = 120.0
# What flock says on file systems without locks, such as some of Lustre and NFS.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextlib.contextmanager
def hold(directory: str, name: str = "run") -> Iterator[None]:
    """Reserves a directory for this process while the body runs.

    On a local disk it locks `<name>.lock`; the lock ends with its process, however that ends. A
    bucket and some file systems have no locks: there a run periodically writes the time to
    `<name>.heartbeat`, and logs a warning if another run's is recent.

    Args:
      directory: An existing directory.
      name: The activity that only one process at a time may do there.

    Raises:
      ValueError: If another process holds it.
    """
    keep = _beat if files.is_remote(directory) else _lock
    with keep(directory, name):
        yield


@contextlib.contextmanager
def _lock(directory: str, name: str) -> Iterator[None]:
    if not fcntl:
        yield
        return
    with contextlib.ExitStack() as held:
        file = held.enter_context(
            open(os.path.join(directory, f"{name}.lock"), "a+", encoding="utf-8")
        )
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(_in_use(directory, file.read())) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            held.enter_context(_beat(directory, name))
        file.truncate(0)
        file.write(_who())
        file.flush()
        yield


@contextlib.contextmanager
def _beat(directory: str, name: str) -> Iterator[None]:
    path = os.path.join(directory, f"{name}.heartbeat")
    # If the file holds anything else, there is no run to warn about.
    absent = (FileNotFoundError, tf.errors.NotFoundError)
    with contextlib.suppress(*absent, ValueError, LookupError, TypeError):
        last = text_files.read_json_object(path)
        if time.time() - last["seconds"] < _DEAD_SECONDS:
            logging.warning("%s", _in_use(directory, last["who"]))
    ended = threading.Event()

    def write() -> None:
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(json.dumps({"who": _who(), "seconds": time.time()}))

    def keep_writing() -> None:
        while not ended.wait(_HEARTBEAT_SECONDS):
            try:
                write()
            except (OSError, tf.errors.OpError) as error:
                logging.warning("the heartbeat in %s could not be written: %s", directory, error)

    # The first one is there before the body begins.
    write()
    thread = threading.Thread(target=keep_writing, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(path)


def _who() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _in_use(directory: str, who: str) -> str:
    return (
        f"another run ({who or 'unknown process'}) is using {directory}: wait until it ends, or "
        "give another directory"
    )
