"""User errors, also in a --flagfile: they end a script with a one-line message."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator

import tensorflow as tf
from absl import logging

from albert_tf import cluster

# What TensorFlow says of a worker that no longer answers, or whose heartbeat is missed.
_LOST_WORKER = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)\b(?!/device)")
# An argument in a message of the library, perhaps with a value: `name`, `name=value`.
_ARGUMENT = re.compile(r"`((\w+)(?:=[^`]*)?)`")
# Lines of TensorFlow's messages that tell no cause.
_NO_CAUSE = re.compile(
    r"The error could be from a previous operation|Additional GRPC error information|"
    r"The tasks have crashed|\s*:(UNKNOWN|\{)|/job:\S*$"
)


@contextlib.contextmanager
def in_one_line(*others: type[Exception], flags: Iterable[str] = ()) -> Iterator[None]:
    """Ends the process with one line, and exit code 1, where the body meets such an error.

    So does Ctrl-C. Where an error is from is logged for those who ask: scripts do so with
    --verbosity=1.

    Args:
      *others: What counts beside ValueError, OSError and the errors of TensorFlow, which it raises
        of files, too.
      flags: The names of the script's flags; see `with_dashes`.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit("error: interrupted")
    except (ValueError, OSError, tf.errors.OpError, *others) as error:
        logging.debug("where the error is from:", exc_info=True)
        text = reason(error) if isinstance(error, tf.errors.OpError) else str(error)
        sys.exit(f"error: {printable(with_dashes(text, flags))}")


def with_dashes(text: str, flags: Iterable[str]) -> str:
    """Returns a message of the library in the words of a script.

    The library speaks of `num_cores` and `optimizer=lamb`, in backquotes, a script of its flags
    --num_cores and --optimizer=lamb. Arguments that are no flag stay as they are.
    """
    known = set(flags)
    return _ARGUMENT.sub(lambda found: f"--{found[1]}" if found[2] in known else found[0], text)


def printable(text: str) -> str:
    """Returns a text with escapes for control characters, which files of others bring along."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def reason(error: tf.errors.OpError) -> str:
    """Returns what went wrong, of a message that also tells where in a graph, and of what comes."""
    # Nodes have the names of devices, which are those of workers too: they go first.
    message = re.sub(r"\{\{.*?\}\} *|\s*\[(\[|Op:).*", "", error.message, flags=re.DOTALL)
    lost = _LOST_WORKER.search(message)
    lines = [line for line in message.splitlines() if line and not _NO_CAUSE.match(line)]
    cause = lines[-1].strip(" :") if lines else type(error).__name__
    if not lost:
        return cause
    return (
        f"{cluster.describe_task(lost[1], int(lost[2]))} was lost ({cause}): see its log, "
        "and start the same command again on all workers; they go on from the last checkpoint"
    )
