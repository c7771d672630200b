"""Files and directories: found, opened, read, and replaced whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import os
import shutil
import socket
import stat
import sys
import tempfile
import uuid
from collections.abc import Iterator
from types import ModuleType
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # On Windows directories are not locked.
    fcntl = None

# --- what lies at a path -----------------------------------------------------------------------


# Upper bound for files that are read whole; configs, vocabularies and indexes are far smaller.
SMALL_BYTES = 64 << 20


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path has a scheme, such as gs://bucket/name."""
    return "://" in os.fspath(path)


def exists(path: str | os.PathLike[str]) -> bool:
    """Returns whether there is such a file or directory."""
    return gfile().exists(path) if is_remote(path) else os.path.exists(path)


def is_file(path: str | os.PathLike[str]) -> bool:
    """Returns whether there is such a file."""
    if is_remote(path):
        return gfile().exists(path) and not gfile().isdir(path)
    return os.path.isfile(path)


def is_dir(path: str | os.PathLike[str]) -> bool:
    """Returns whether there is such a directory."""
    return gfile().isdir(path) if is_remote(path) else os.path.isdir(path)


def size(path: str | os.PathLike[str]) -> int:
    """Returns the size of a file in bytes."""
    return gfile().stat(path).length if is_remote(path) else os.stat(path).st_size


def directory_of(path: str) -> str:
    """Returns a path that is a directory, or the directory in which it lies."""
    return path if is_dir(path) else os.path.dirname(path)


def errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Returns the exceptions that reading a local or remote file raises, and the given others."""
    tensorflow = sys.modules.get("tensorflow")
    return (OSError, *([tensorflow.errors.OpError] if tensorflow else []), *others)


def reason(error: BaseException) -> str:
    """Returns the message of an error, Python's or TensorFlow's, as one paragraph."""
    text = getattr(error, "message", None) or str(error)
    return " ".join(text.split()) or type(error).__name__


def gfile() -> ModuleType:
    """Returns tf.io.gfile; imports TensorFlow only when it is needed."""
    import tensorflow as tf

    return tf.io.gfile


# --- checks of a user's paths ------------------------------------------------------------------


def check_not_url(path: str) -> None:
    """Checks that a path is not a web address."""
    if path.startswith(("http://", "https://")):
        raise ValueError(
            f"{path} is a web address, and nothing is downloaded: download it, unpack it, and "
            "give its directory instead (for a TF-Hub module, append ?tf-hub-format=compressed to "
            "the address)"
        )


def check_expanded(path: str) -> None:
    """Checks that a path to write to has no unexpanded ~, which shells leave in `--flag=~/x`."""
    if path.startswith("~"):
        raise ValueError(
            f"{path} begins with ~, which the shell did not expand: write $HOME instead (or ./~ "
            "for a folder of that name)"
        )


def check_literal(path: str) -> None:
    """Checks that a path has no characters that TensorFlow reads as a pattern."""
    if set(path) & set("[*?\\"):
        raise ValueError(
            f"{path}: TensorFlow reads [, *, ? and \\ in the path of a SavedModel as a pattern: "
            "give a directory without them"
        )


def check_regular(path: str | os.PathLike[str], name: str = "") -> None:
    """Checks that a path is no pipe or device, from which reading may never end."""
    if is_remote(path) or not os.path.exists(path):
        return
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        name = name or os.fspath(path)
        raise ValueError(f"{name} is a pipe, a device or a socket: name a regular file")


def check_file(path: str | os.PathLike[str], name: str = "") -> None:
    """Checks that a file exists; messages call it `name`."""
    name = name or os.fspath(path)
    if is_dir(path):
        raise IsADirectoryError(f"{name} is a directory: name the file in it")
    check_regular(path, name)
    if not is_file(path):
        raise FileNotFoundError(f"{name} does not exist")


# --- finding -----------------------------------------------------------------------------------


def find(directory: str | os.PathLike[str], pattern: str) -> list[str]:
    """Returns the paths in a directory that match a pattern, sorted by name."""
    return _glob(os.path.join(glob.escape(os.fspath(directory)), pattern))


def _glob(pattern: str) -> list[str]:
    return sorted(gfile().glob(pattern) if is_remote(pattern) else glob.glob(pattern))


def walk(directory: str) -> list[str]:
    """Returns the paths of all files in a directory and its subdirectories."""
    walked = gfile().walk(directory) if is_remote(directory) else os.walk(directory)
    return [os.path.join(top, name) for top, _, names in walked for name in names]


def as_pattern(name: str) -> str:
    """Returns a glob in which the existing part of a path is escaped.

    Names of files and directories may contain [, * and ?, which in a glob would match others.

    Example:
      >>> import pathlib
      >>> pathlib.Path("corpus[1]").mkdir()
      >>> as_pattern("corpus[1]/*.txt"), as_pattern("corpus[2]/*.txt")
      ('corpus[[]1]/*.txt', 'corpus[2]/*.txt')
    """
    whole = name
    while glob.escape(whole) != whole and not exists(whole):
        whole = os.path.dirname(whole)
    return glob.escape(whole) + name[len(whole) :]


def list_files(patterns: str) -> list[str]:
    """Returns the files that match comma-separated names and globs, in the order of the patterns.

    Files are listed once, and directories are left out.
    """
    # A pattern that is the name of a file stands for that file.
    found: list[str] = []
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        matches = [pattern] if is_file(pattern) else _glob(as_pattern(pattern))
        if not matches:
            raise FileNotFoundError(f"input file {pattern} does not exist: no file matches it")
        paths = [path for path in matches if not gfile().isdir(path)]
        if not paths:
            raise ValueError(
                f"input file {pattern} is a directory: give {pattern}/* for the files in it"
            )
        found += paths
    if not found:
        raise ValueError(
            "no input file given: expected paths or glob patterns, separated by commas"
        )
    return list(dict.fromkeys(found))


# --- reading -----------------------------------------------------------------------------------


def open_bytes(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading bytes."""
    check_regular(path)
    return io.BufferedReader(_RemoteFile(path)) if is_remote(path) else open(path, "rb")


def read_bytes(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Returns a file's content, which must not be longer than `most` bytes."""
    with open_bytes(path) as file:
        content = file.read() if most is None else file.read(most + 1)
    if most is not None and len(content) > most:
        raise ValueError(
            f"{os.fspath(path)} has more than {most:,} bytes, too many for such a file: check "
            "that it is the right one"
        )
    return content


class _RemoteFile(io.RawIOBase):
    """A file of tf.io.gfile, open for reading, with the interface of Python's io."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = gfile().GFile(path, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        return self._file.read()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


# --- writing one file --------------------------------------------------------------------------


def replace(path: str, content: bytes | str, several_writers: bool = False) -> None:
    """Writes a file in one rename, so that readers see the old or the new content, never a part.

    If the file can't be written, for example on a full disk, nothing is left behind.

    Args:
      path: The file.
      content: Text is written in UTF-8.
      several_writers: Whether several processes may write the file at the same time. If not, the
        temporary file of a process that was killed is overwritten by the next.
    """
    # Readers don't look for the temporary name, so they never see a part of the content.
    temporary = f"{path}.{uuid.uuid4().hex}.tmp" if several_writers else f"{path}.tmp"
    content = content.encode() if isinstance(content, str) else content
    try:
        if is_remote(path):
            with gfile().GFile(temporary, "wb") as file:
                file.write(content)
            gfile().rename(temporary, path, overwrite=True)
        else:  # Without TensorFlow, which takes seconds to import.
            with open(temporary, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
    except BaseException as error:
        # Remove the temporary file after any error, even Ctrl-C.
        if exists(temporary):
            (gfile() if is_remote(path) else os).remove(temporary)
        if isinstance(error, OSError):
            error.filename = error.filename or path  # Python doesn't say where a disk is full.
        raise


def flush(*paths: str) -> None:
    """Waits until local files have reached the disk; files in a bucket are safe once written."""
    for path in paths:
        if not is_remote(path):
            with open(path, "rb") as file:
                os.fsync(file.fileno())


def try_to_write(path: str) -> None:
    """Writes an empty file and removes it; raises TensorFlow's error if that fails."""
    with gfile().GFile(path, "w") as file:
        file.write("")
    gfile().remove(path)


# --- writing a whole directory -----------------------------------------------------------------


@contextlib.contextmanager
def whole_directory(path: str) -> Iterator[str]:
    """Makes a directory that appears complete, once the body has written all of it.

    A directory in a bucket can't be renamed: it is copied there at the end, first its folders, then
    the files that identify it, such as saved_model.pb.

    Args:
      path: A new or empty directory.

    Yields:
      A local directory to write to.
    """
    # Find out now, not after the work, that the directory can't be made.
    check_free(path)
    if is_remote(path):
        with tempfile.TemporaryDirectory() as temporary:
            yield temporary
            _copy_tree(temporary, path)
        return
    # Write to a hidden directory beside it, and rename that at the end.
    path = os.path.abspath(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
    try:
        yield temporary
        # mkdtemp lets only the owner in. Give the directory the permissions of a new one; the umask
        # can only be read by setting it.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o777 & ~umask)
        os.rename(temporary, path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            error.filename = error.filename or path  # Python doesn't say which disk is full.
        raise


def _copy_tree(source: str, target: str) -> None:
    try:
        for folder, _, names in os.walk(source, topdown=False):
            # The relative path of the top folder is ".".
            there = os.path.join(target, os.path.relpath(folder, source)).removesuffix("/.")
            gfile().makedirs(there)
            for name in sorted(names):
                gfile().copy(os.path.join(folder, name), os.path.join(there, name))
    except BaseException:
        with contextlib.suppress(*errors()):
            gfile().rmtree(target)
        raise


def check_free(path: str) -> None:
    """Checks that a directory is new or empty and can be written; leaves nothing behind."""
    if not path:
        raise ValueError("the name of the output directory is empty: give a new directory")
    check_expanded(path)
    used = ValueError(f"{path} already exists: give a new directory, or an empty one")
    if is_remote(path):
        try:
            if is_file(path) or (is_dir(path) and gfile().listdir(path)):
                raise used
            try_to_write(f"{path.rstrip('/')}.write_test")
        except errors() as error:
            raise ValueError(f"{path} can't be written: {reason(error)}") from None
        return
    if os.path.exists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise used
    # Renaming onto one of these would fail, after the work is done.
    path = os.path.abspath(path)
    if os.path.islink(path) or os.path.ismount(path) or path == os.path.realpath("."):
        raise ValueError(
            f"{path} can't be replaced, because it is a link, a mount point or the current "
            "directory: name a new directory in it"
        )
    # Write to the nearest directory that exists.
    existing = os.path.dirname(path)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    try:
        tempfile.TemporaryDirectory(dir=existing).cleanup()
    except OSError as error:
        raise ValueError(f"{path} can't be written: {error.strerror}") from None


# --- one process at a time -----------------------------------------------------------------------

# Errors of flock on file systems without locks, such as some Lustre and NFS.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextlib.contextmanager
def hold(directory: str, name: str = "run") -> Iterator[None]:
    """Reserves a directory for this process while the body runs.

    The lock on `<name>.lock` ends with the process, however that ends. Buckets and some file
    systems have no locks: nothing is reserved there.

    Args:
      directory: An existing directory.
      name: An activity that only one process at a time may do there.
    """
    if not fcntl or is_remote(directory):
        yield
        return
    with open(os.path.join(directory, f"{name}.lock"), "a+", encoding="utf-8") as file:
        # The file names its holder, for the message of another run.
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
        # The lock is ours, or the file system has none.
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
