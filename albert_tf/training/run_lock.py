"""One run at a time in an output directory."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

from albert_tf.storage import files

try:
    import fcntl
except ImportError:  # Windows: its directories are not locked.
    fcntl = None

# What flock says on file systems without locks, such as some of Lustre and NFS.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextlib.contextmanager
def hold(directory: str, name: str = "run") -> Iterator[None]:
    """Reserves a directory for this process while the body runs.

    It locks `<name>.lock`; the lock ends with its process, however that ends. Buckets and some file
    systems have no locks: there nothing is reserved.

    Args:
      directory: An existing directory.
      name: The activity that only one process at a time may do there.
    """
    if not fcntl or files.is_remote(directory):
        yield
        return
    with open(os.path.join(directory, f"{name}.lock"), "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(
                f"another run ({file.read() or 'unknown process'}) is using {directory}: wait "
                "until it ends, or give another directory"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
