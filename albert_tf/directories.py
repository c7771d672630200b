"""Directories that appear complete or not at all, and writing files to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from albert_tf import files


def write_text(path: str, text: str) -> None:
    """Writes a new text file, in UTF-8."""
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)


@contextlib.contextmanager
def whole_directory(path: str) -> Iterator[str]:
    """Makes a directory that appears complete once everything is written, or not at all.

    If its path has a scheme, that is impossible: there it is copied once everything is written,
    first its folders and then the files that identify it, such as saved_model.pb.

    Args:
      path: The directory; it may exist if it is empty.

    Yields:
      A local directory to write to.

    Raises:
      ValueError: If something is there already, or the place can't be written.
    """
    check_free(path)
    if files.is_remote(path):
        with tempfile.TemporaryDirectory() as temporary:
            yield temporary
            _copy_tree(temporary, path)
        return
    path = os.path.abspath(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o777 & ~umask)
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _copy_tree(source: str, target: str) -> None:
    import tensorflow as tf

    try:
        for folder, _, names in os.walk(source, topdown=False):
            # The relative path of the top folder is a dot.
            there = os.path.join(target, os.path.relpath(folder, source)).removesuffix("/.")
            tf.io.gfile.makedirs(there)
            for name in sorted(names):
                tf.io.gfile.copy(os.path.join(folder, name), os.path.join(there, name))
    except BaseException:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.rmtree(target)
        raise


def check_free(path: str) -> None:
    """Checks that a directory can be made, or replaced if empty; leaves nothing behind.

    Raises:
      ValueError: If something is there, or the place can't be written.
    """
    if not path:
        raise ValueError("the name of the output directory is empty: give a new directory")
    files.check_expanded(path)
    if files.is_remote(path):
        _check_free_remote(path)
        return
    if os.path.exists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise _exists(path)
    path = os.path.abspath(path)
    if os.path.islink(path) or os.path.ismount(path) or path == os.path.realpath("."):
        raise ValueError(
            f"{path} can't be replaced, because it is a link, a mount point or the current "
            "directory: name a new directory in it"
        )
    existing = os.path.dirname(path)
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    try:
        tempfile.TemporaryDirectory(dir=existing).cleanup()
    except OSError as error:
        raise ValueError(f"{path} can't be written: {error.strerror}") from None


def _check_free_remote(path: str) -> None:
    import tensorflow as tf

    try:
        if files.is_file(path) or (files.is_dir(path) and tf.io.gfile.listdir(path)):
            raise _exists(path)
        files.try_to_write(f"{path.rstrip('/')}.write_test")
    except tf.errors.OpError as error:
        raise ValueError(f"{path} can't be written: {error.message}") from None


def _exists(path: str) -> ValueError:
    return ValueError(f"{path} already exists: give a new directory, or an empty one")
