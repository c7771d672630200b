"""A user's error ends a command with a line that names flags, not with a traceback."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Collection, Iterator

from absl import logging

from albert_tf.storage import files

# An argument in one of the library's messages, perhaps with a value: `name`, `name=value`.
_ARGUMENT = re.compile(r"`((\w+)(?:=[^`]*)?)`")
# RESOURCE_EXHAUSTED is no sign of it: JAX and TensorFlow also report a full disk by that code.
_OUT_OF_MEMORY = re.compile(r"\bOOM\b|out of memory", re.IGNORECASE)
# Control characters except tab and newline.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Flags that determine memory use in commands without batches.
_TAKE_MEMORY = ("num_processes", "block_megabytes", "input_sentence_size")


@contextlib.contextmanager
def in_one_line(*others: type[Exception], flags: Collection[str] = ()) -> Iterator[None]:
    """Ends the process with a one-line message and exit code 1 if the body raises a user error.

    Ctrl-C ends it likewise. --verbosity=1 logs an error's traceback as well.

    Args:
      *others: Exceptions to handle besides ValueError, ImportError (a missing extra), OSError,
        TensorFlow's (it raises them for files, too) and those that say that memory ran out.
      flags: The names of the script's flags; see `with_dashes`.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit("error: interrupted")
    except files.errors(ValueError, ImportError, MemoryError, RuntimeError, *others) as error:
        # TensorFlow's messages span lines, with the operation's place in the graph.
        is_tensorflows = isinstance(error, files.errors()) and not isinstance(error, OSError)
        text = files.reason(error) if is_tensorflows else str(error)
        if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(text):
            # Name the flags that lower the memory of this command.
            cause = text.partition("\n")[0]
            found = " or ".join(f"`{name}`" for name in _TAKE_MEMORY if name in flags)
            text = f"memory ran out ({cause}): lower "
            text += found or "the batch size or `max_seq_length`"
        elif isinstance(error, UnicodeEncodeError):
            # The text holds half a surrogate pair, or a byte of a file's name that is not UTF-8.
            near = error.object[max(error.start - 60, 0) : error.end + 60]
            text = f"{near!r} has a character that UTF-8 does not have ({error.reason})"
        elif isinstance(error, RuntimeError) and not isinstance(error, others):
            raise  # A bug: the traceback tells more.
        # Users read one line; a developer asks for the traceback.
        logging.debug("traceback of the error:", exc_info=True)
        sys.exit(f"error: {printable(with_dashes(text, flags))}")


@contextlib.contextmanager
def of_extra(extra: str, what: str) -> Iterator[None]:
    """Adds the command that installs an extra if the body lacks one of its packages."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{what} needs the package {error.name!r}, which is not installed: "
            f"pip install 'albert_tf[{extra}]'"
        ) from error


def with_dashes(text: str, flags: Collection[str]) -> str:
    """Rewrites one of the library's messages in terms of a command's flags.

    `num_cores` and `optimizer=lamb` become --num_cores and --optimizer=lamb. Arguments that are
    not flags keep their backquotes.
    """
    return _ARGUMENT.sub(lambda found: f"--{found[1]}" if found[2] in flags else found[0], text)


def print_to_reader(text: str) -> None:
    """Prints text at once; ends the process if its reader has gone, as after `| head`."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # At exit Python flushes once more: let it have somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def escape_controls(text: str) -> str:
    """Escapes control characters as JSON does; for text of several lines."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable(text: str) -> str:
    """Escapes all unprintable characters, newlines included; for a message of one line."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
