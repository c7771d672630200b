"""Shards of the generator, by their names: are they of one run, and all there?"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from absl import logging

_SHARD = re.compile(r"(?P<name>.*)-\d{5}-of-(?P<count>\d{5})")


def check_one_run(files: Sequence[str]) -> None:
    """Checks that files of one name are of one run of the generator: others repeat its text.

    Raises:
      ValueError: If there are shards of several runs, or a file without shards beside them.
    """
    counts: dict[str, str] = {}
    whole = set(files)
    for shard in _find_shards(files):
        name, count = shard["name"], shard["count"]
        if counts.setdefault(name, count) != count or name in whole:
            raise ValueError(
                f"input files {name}* are of several runs of the generator: remove the old ones, "
                f"or name one set, such as {name}-*-of-{count}"
            )


def warn_of_missing(files: Sequence[str], patterns: str) -> None:
    """Warns of shards that the patterns ask for, but which are not among the files found."""
    asked_for = [pattern.strip() for pattern in patterns.split(",")]
    for name, count in dict.fromkeys(shard.groups() for shard in _find_shards(files)):
        shards = {f"{name}-{number:05d}-of-{count}" for number in range(int(count))}
        missing = sorted(
            path
            for path in shards - set(files)
            if any(fnmatch.fnmatchcase(path, pattern) for pattern in asked_for)
        )
        if missing:
            logging.warning(
                "input files: %d of the %d shards of %s are missing, the first is %s: without "
                "them the run goes on, but lacks their text",
                len(missing),
                len(shards),
                name,
                missing[0],
            )


def _find_shards(files: Sequence[str]) -> list[re.Match[str]]:
    return [shard for path in files if (shard := _SHARD.fullmatch(path))]
