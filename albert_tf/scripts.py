"""Starts an absl script: its flags in groups, its --help, and command-line errors."""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags

from albert_tf.console import errors

Define = Callable[[flags.FlagValues], None]
Expand = Callable[[Sequence[str]], Sequence[str]]
# What TensorFlow's shapes and SentencePiece's settings hold; absl's integers have no bound.
_INT32_MAX = 2**31 - 1
# absl's message about a missing required flag.
_MISSING = re.compile(r"flag --(\w+)=None: Flag --\1 must have a value other than None\.")


def program(module: str) -> str:
    """Returns a usage line's name for the program that runs a module: a command, or python -m."""
    command = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    return command if command.startswith("albert-") else f"python -m {module}"


def command_line() -> str:
    """Returns the process's command line, as typed in a shell."""
    return shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])


class FlagGroup:
    """Defines flags that --help lists under one heading.

    `group.string("name", None, "Name of a run.")` is absl's DEFINE_string with its `flag_values`
    filled in; so are the others. `integer` and `number` have bounds that absl's lack.
    """

    def __init__(self, values: flags.FlagValues, heading: str) -> None:
        # absl shows the defining module as the heading in its --helpfull.
        self._bound: dict[str, Any] = {"flag_values": values, "module_name": heading}
        self.alias = self._bind(flags.DEFINE_alias)
        self.boolean = self._bind(flags.DEFINE_boolean)
        self.enum = self._bind(flags.DEFINE_enum)
        self.list = self._bind(flags.DEFINE_list)
        self.string = self._bind(flags.DEFINE_string)

    def _bind(self, define: Callable[..., Any]) -> Callable[..., Any]:
        return functools.partial(define, **self._bound)

    def integer(
        self,
        name: str,
        default: int | None,
        help: str,
        lower_bound: int | None = None,
        maximum: float = _INT32_MAX,
    ) -> None:
        """Defines an integer of at least `lower_bound`, at most `maximum`."""
        parser = _IntegerParser(lower_bound, maximum)
        serializer: flags.ArgumentSerializer[int] = flags.ArgumentSerializer()
        flags.DEFINE(parser, name, default, help, serializer=serializer, **self._bound)

    def number(
        self, name: str, default: float | None, help: str, interval: str | None = None
    ) -> None:
        """Defines a float in an interval such as "(0, 1]" (0 < x <= 1); NaN is never in it."""
        parser = _IntervalParser(interval) if interval else flags.FloatParser()
        serializer: flags.ArgumentSerializer[float] = flags.ArgumentSerializer()
        flags.DEFINE(parser, name, default, help, serializer=serializer, **self._bound)


class _IntegerParser(flags.IntegerParser):
    """Checks the maximum apart from the lower bound, so that each message names one of them."""

    def __init__(self, lower_bound: int | None, maximum: float) -> None:
        super().__init__(lower_bound)
        self._maximum = maximum

    def convert(self, argument: int | str) -> int:
        value = super().convert(argument)
        if value > self._maximum:
            raise ValueError(f"more than the maximum, {self._maximum:,}")
        return value


class _IntervalParser(flags.FloatParser):
    """Checks an interval: absl's own bounds are inclusive, and accept NaN."""

    def __init__(self, interval: str) -> None:
        super().__init__()
        self._low, self._high = map(float, interval[1:-1].split(","))
        self._low_is_open, self._high_is_open = interval[0] == "(", interval[-1] == ")"
        self.syntactic_help = f"a number in {interval}"

    def is_outside_bounds(self, val: float) -> bool:
        above = self._low < val or (val == self._low and not self._low_is_open)
        below = val < self._high or (val == self._high and not self._high_is_open)
        return not (above and below)


class _HelpFlag(flags.BooleanFlag):
    """--help prints the script's own flags in their groups; absl's lists them in one column."""

    def __init__(self, name: str, short_name: str | None, text: Callable[[], str]) -> None:
        super().__init__(name, False, "show this help", short_name, allow_override=True)
        self._text = text

    def parse(self, argument: Any) -> None:
        if self._parse(argument):
            errors.print_to_reader(self._text())
            sys.exit(1)  # absl's own exit code.


def run_script(
    main: Callable[[flags.FlagValues], None],
    define: Define,
    doc: str,
    expand: Expand | None = None,
) -> None:
    """Runs a script with the process's command line.

    Args:
      main: Does the script's work, once its flags are parsed.
      define: Defines its flags, each in a FlagGroup.
      doc: Beginning of --help; the flags follow.
      expand: Maps the given command line to the one to parse.
    """
    define(flags.FLAGS)
    sys.modules["__main__"].__doc__ = doc  # --helpfull begins with it.
    app.define_help_flags()
    for name, short_name in (("help", "?"), ("helpshort", None)):
        text = functools.partial(_help_text, define, doc)
        flags.DEFINE_flag(_HelpFlag(name, short_name, text), flags.FLAGS, app.__name__)
    app.run(
        lambda _: main(flags.FLAGS),
        flags_parser=functools.partial(parse_in_one_line, flags.FLAGS, expand=expand),
    )


def flag_names(define: Define) -> list[str]:
    """Returns the names of the flags that a function defines."""
    return list(_own_flags(define))


def _own_flags(define: Define) -> flags.FlagValues:
    own = flags.FlagValues()
    define(own)
    return own


def _help_text(define: Define, doc: str) -> str:
    own = _own_flags(define)
    groups = [own.module_help(heading) for heading in own.flags_by_module_dict()]
    return "\n".join([doc.rstrip(), *groups, "\nTry --helpfull to get a list of all flags."])


def parse_in_one_line(
    values: flags.FlagValues, argv: Sequence[str], expand: Expand | None = None
) -> list[str]:
    """Parses a command line; an invalid one ends the process with one line and exit code 1.

    Args:
      values: Flags, which are set from the command line.
      argv: The command line, with the script's name first.
      expand: See `run_script`.

    Returns:
      The script's name: there are no arguments other than flags.
    """
    try:
        rest = values(expand(argv) if expand else argv)
    except UnicodeDecodeError as error:
        sys.exit(
            f"error: --flagfile {', '.join(_flag_files(argv))}, or a flag file that it names, is "
            f"not {error.encoding} text ({error.reason}): save it as {error.encoding}"
        )
    except flags.Error as error:
        text = _MISSING.sub(r"--\1 must be given", "; ".join(str(error).splitlines()))
        sys.exit(f"error: {errors.printable(text)} (--help lists the flags)")
    if len(rest) > 1:
        text = errors.printable(" ".join(rest[1:]))
        if rest[1].lower() in ("true", "false"):
            text += f": write --FLAG={rest[1]}"
        sys.exit(f"error: unexpected arguments: {text} (--help lists the flags)")
    return rest


def _flag_files(argv: Sequence[str]) -> list[str]:
    following = dict(zip(argv, argv[1:], strict=False))
    found = (re.fullmatch("--?flagfile(?:=(.*))?", arg) for arg in argv)
    return [match[1] or following.get(match[0], "") for match in found if match]
