"""Errors that a user can mend: a script ends with one line about them."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator

import tensorflow as tf
from absl import logging


@contextlib.contextmanager
def in_one_line(*others: type[Exception]) -> Iterator[None]:
    """Ends the process with one line, and exit code 1, where the body meets such an error.

    Where it is from is logged for those who ask: scripts do so with --verbosity=1.

    Args:
      *others: What counts beside ValueError, OSError and the errors of TensorFlow, which it raises
        of files, too.
    """
    try:
        yield
    except (ValueError, OSError, tf.errors.OpError, *others) as error:
        logging.debug("where the error is from:", exc_info=True)
        text = reason(error) if isinstance(error, tf.errors.OpError) else str(error)
        sys.exit(f"error: {printable(text)}")


def printable(text: str) -> str:
    """Returns a text with escapes for control characters, which files of others bring along."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def reason(error: tf.errors.OpError) -> str:
    """Returns what went wrong, of a message that also tells where in a graph."""
    message = re.sub(r"\{\{.*?\}\} *|\s*\[(\[|Op:).*", "", error.message, flags=re.DOTALL)
    return (message.splitlines() or [type(error).__name__])[-1]
