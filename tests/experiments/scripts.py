"""Flags of the scripts in experiments/."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from absl import flags

from albert_tf import scripts


def parse(define_flags: Callable[[flags.FlagValues], None], **given: Any) -> flags.FlagValues:
    """Returns a script's flags with the values given."""
    values = flags.FlagValues()
    define_flags(values)
    arguments = [f"--{name}={value}" for name, value in given.items()]
    scripts.parse_in_one_line(values, ["script.py", *arguments])
    return values
