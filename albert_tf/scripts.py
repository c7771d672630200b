"""How a script starts: its flags, its --help, and a --flagfile that is no text."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from absl import app, flags

Parsed = TypeVar("Parsed")


def run_script(
    main: Callable[[Sequence[str]], None], define: Callable[[flags.FlagValues], None], doc: str
) -> None:
    """Runs a script on the process's command line.

    Args:
      main: What it does; takes the arguments that are no flags, with the script's name before.
      define: Adds its flags.
      doc: What --help begins with; the flags follow.
    """
    define(flags.FLAGS)
    # absl lists the flags that the file of the command line defines, which only starts the script.
    sys.modules["__main__"].__doc__ = doc
    for name in flag_names(define):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    app.run(main, flags_parser=flag_file_in_one_line(app.parse_flags_with_usage))


def flag_names(define: Callable[[flags.FlagValues], None]) -> list[str]:
    """Returns the names of the flags that a function adds."""
    own = flags.FlagValues()
    define(own)
    return list(own)


def flag_file_in_one_line(
    parse: Callable[[Sequence[str]], Parsed],
) -> Callable[[Sequence[str]], Parsed]:
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
