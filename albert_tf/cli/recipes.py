"""--recipe: a flag file shipped with the package, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from absl import flags


def expand(known: Mapping[str, str], argv: Sequence[str], same: Mapping[str, str]) -> Sequence[str]:
    """Returns a command line with its recipe's flags, if it names one, before its own.

    A flag of the recipe is left out if one that says the same in another unit is given.

    Args:
      known: The paths of the script's recipes, by name.
      argv: The command line, with the script's name first.
      same: Names of flags that say the same in another unit.
    """
    given = _read(argv[1:])
    name = _named(given)
    if name is None:
        return argv
    if name not in known:
        raise flags.Error(f"there is no recipe {name!r}: expected one of {', '.join(known)}")
    pairs = [*same.items(), *((other, flag) for flag, other in same.items())]
    replaced = [other for flag, other in pairs if any(_sets(one, flag) for one in given)]
    recipe = _read([f"--flagfile={known[name]}"])
    kept = (one for one in recipe if not any(_sets(one, flag) for flag in replaced))
    return [argv[0], *kept, *argv[1:]]


def _read(arguments: Sequence[str]) -> list[str]:
    """Returns arguments, with those of a flag file in its place."""
    return flags.FlagValues().read_flags_from_files(list(arguments), force_gnu=False)


def _sets(argument: str, flag: str) -> bool:
    return re.fullmatch(f"--?{flag}(=.*)?", argument, re.DOTALL) is not None


def _named(arguments: Sequence[str]) -> str | None:
    """Returns the value of the last --recipe, or None if there is none."""
    arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
    name = None
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if match := re.fullmatch("--?recipe(?:=(.*))?", argument, re.DOTALL):
            name = following if match[1] is None else match[1]
    return name
