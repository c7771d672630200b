"""The log of albert-serve: each event is a line of JSON on standard output."""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
from typing import Any


def write(event: str, **members: Any) -> None:
    """Writes an event, with the time and its members."""
    time = datetime.datetime.now(datetime.timezone.utc).isoformat()
    line = json.dumps({"time": time, "event": event, **members})
    # A full disk or a closed pipe must not cost the client its answer.
    with contextlib.suppress(OSError):
        # Write the line at once, or those of two threads might mix.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
