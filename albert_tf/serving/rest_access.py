"""Who may ask albert-serve for answers, and the id by which a request is known."""

from __future__ import annotations

import hmac
import re
import uuid
from collections.abc import Mapping

from albert_tf.storage.text_files import utf8_lines

# Ids that are logged and sent back as they came; others are replaced.
_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
# Source: https://www.w3.org/TR/trace-context, version 00.
_TRACE = re.compile(r"[\da-f]{2}-[\da-f]{32}-[\da-f]{16}-[\da-f]{2}")


class Keys:
    """The API keys in a file; a request for answers must have one of them.

    Args:
      path: A text file with a key in each line; empty lines don't count. None lets everybody ask.
    """

    def __init__(self, path: str | None) -> None:
        lines = [line.strip() for _, line in utf8_lines(path)] if path else []
        self._keys = [line.encode() for line in lines if line]
        if path and not self._keys:
            raise ValueError(f"`api_key_file` {path} has no key: write one in each line")

    def allow(self, method: str, headers: Mapping[bytes, bytes]) -> bool:
        """Returns whether a request is allowed; health, metrics and descriptions need no key."""
        if not self._keys or method != "POST":
            return True
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        given = bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        # Compare with all keys, so that the time it takes reveals nothing about them.
        return any([hmac.compare_digest(given, key) for key in self._keys])


def ids(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Returns a request's id, its own or a new one, and the trace that it is part of, if any."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    found = {"request_id": given if _ID.fullmatch(given) else uuid.uuid4().hex}
    trace = headers.get(b"traceparent", b"").decode("latin-1")
    return {**found, "traceparent": trace} if _TRACE.fullmatch(trace) else found
