"""Serves exported models over HTTP, as TensorFlow Serving does, without TensorFlow.

    albert-serve --model=exported/sentiment

answers POST /v1/models/sentiment:predict at port 8501, and shows a page to try the model at /. A
SavedModel is served, too, where TensorFlow is installed. After Ctrl-C or SIGTERM /readyz says that
the server ends, which it does two seconds later. In a clone `python -m albert_tf.serving.server` is
the same.
"""

from __future__ import annotations

import signal
import sys

from albert_tf.console import errors
from albert_tf.serving import server
from albert_tf.serving.settings import ServerSettings


def main(settings: ServerSettings) -> None:
    """Serves until a signal comes."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: sys.exit(0))
    with errors.in_one_line(flags=settings.names()):
        server.run(settings)
