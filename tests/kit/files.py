"""The contents of folders, and checks of errors that leave them as they were."""

import contextlib
import pathlib
import re
from collections.abc import Iterator

import pytest


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns the contents of a folder's files, subfolders included, by their paths in it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def all_words(message: str) -> str:
    """Returns a regular expression for lines that have all of these words, in any order."""
    return "".join(f"(?=.*{re.escape(word)})" for word in message.split())


@contextlib.contextmanager
def refused(
    message: str, *folders: pathlib.Path, exception: type[BaseException] = SystemExit
) -> Iterator[None]:
    """Checks that an error is one line that matches, and that nothing was written.

    Args:
      message: Regular expression, found anywhere in the line: a field and a noun, not a sentence.
      *folders: Where files could have been written; they need not exist.
      exception: SystemExit, as from scripts, with a line that begins `error: `; or ValueError...
    """
    before = [contents(folder) for folder in folders]
    with pytest.raises(exception, match=message) as caught:
        yield
    text = str(caught.value)
    assert "\n" not in text, text
    assert exception is not SystemExit or text.startswith("error: "), text
    assert [contents(folder) for folder in folders] == before, text
