"""Flags of scripts, as their command lines give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from absl import flags

from albert_tf import scripts


def parse(
    define_flags: Callable[[flags.FlagValues], None], *arguments: str, **given: Any
) -> flags.FlagValues:
    """Returns a script's flags with the values of arguments, and those given unless None."""
    values = flags.FlagValues()
    define_flags(values)
    more = [f"--{name}={value}" for name, value in given.items() if value is not None]
    scripts.parse_in_one_line(values, ["script.py", *arguments, *more])
    return values
