"""--recipe: a flag file shipped with the package, by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from absl import flags

from albert_tf import shipped
from albert_tf.scripts import FlagGroup


def define_flag(values: flags.FlagValues, heading: str, script: str) -> None:
    """Adds --recipe to a flag group of a script, pretraining or finetuning."""
    FlagGroup(values, heading).string(
        "recipe",
        None,
        "Name of a recipe, a list of flags that comes with albert_tf; other flags override it. "
        f"One of {', '.join(shipped.recipes(script))}.",
    )


def expand(script: str, argv: Sequence[str]) -> Sequence[str]:
    """Returns a command line with its recipe's flag file, if it names one, before its own flags.

    Args:
      script: pretraining or finetuning.
      argv: The command line, with the script's name first.

    Raises:
      flags.Error: If there is no such recipe, or a flag file can't be read.
    """
    name = _named(flags.FlagValues().read_flags_from_files(argv[1:], force_gnu=False))
    if name is None:
        return argv
    known = shipped.recipes(script)
    if name not in known:
        raise flags.Error(f"there is no recipe {name!r}: expected one of {', '.join(known)}")
    return [argv[0], f"--flagfile={known[name]}", *argv[1:]]


def _named(arguments: Sequence[str]) -> str | None:
    """Returns the value of the last --recipe, or None if there is none."""
    arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
    name = None
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if match := re.fullmatch("--?recipe(?:=(.*))?", argument, re.DOTALL):
            name = following if match[1] is None else match[1]
    return name
