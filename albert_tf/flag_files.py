"""Flag files (--flagfile) of the scripts: what absl's parser leaves to a traceback."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

Parsed = TypeVar("Parsed")


def in_one_line(parse: Callable[[Sequence[str]], Parsed]) -> Callable[[Sequence[str]], Parsed]:
    """Returns absl's parser of a command line, which ends with one line where a file is no text.

    Args:
      parse: absl.app.parse_flags_with_usage; what is returned is `flags_parser` of absl.app.run.
    """

    @functools.wraps(parse)
    def parse_in_one_line(argv: Sequence[str]) -> Parsed:
        try:
            return parse(argv)
        except UnicodeDecodeError as error:
            sys.exit(
                f"error: --flagfile {', '.join(_named(argv))}, or a flag file that it names, is "
                f"not {error.encoding} text ({error.reason}): save it as {error.encoding}"
            )

    return parse_in_one_line


def _named(argv: Sequence[str]) -> list[str]:
    following = dict(zip(argv, argv[1:], strict=False))
    found = (re.fullmatch("--?flagfile(?:=(.*))?", arg) for arg in argv)
    return [match[1] or following.get(match[0], "") for match in found if match]
