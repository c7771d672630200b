"""Takes a part of the State of the Union addresses: some years, or a share of them.

    python research/experiments/part.py --addresses_file=addresses.jsonl --output_dir=part

writes the files that data/prepare_sotu.py writes. Text to train on may be of other years than what
a model is judged on: the held-out text, and the passages of both splits.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from albert_tf.console import errors, tensorflow_logs
from albert_tf.console.settings import REQUIRED, Settings, run_script, setting
from albert_tf.storage import files
from research.experiments import sotu

_text = functools.partial(setting, group="Text")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartSettings(Settings):
    """The settings of part.py."""

    addresses_file: str = _text(REQUIRED, "The addresses.jsonl that prepare_sotu.py wrote.")
    output_dir: str = _text(REQUIRED, "Directory to write the files to.")
    first_year: int = _text(0, "The first year of the text to train on.")
    last_year: int = _text(9999, "The last year of the text to train on.")
    judged_first_year: int = _text(0, "The first year of the held-out text and the passages.")
    judged_last_year: int = _text(9999, "The last year of the held-out text and the passages.")
    share: float = _text(
        1.0, "Share of the addresses to train on that is kept, evenly spread.", interval="(0, 1]"
    )


def choose(
    addresses: Sequence[dict[str, Any]], split: str, first: int, last: int, share: float = 1
) -> list[dict[str, Any]]:
    """Returns a split's addresses of some years, or an evenly spread share of them."""
    found = [each for each in addresses if each["split"] == split and first <= each["year"] <= last]
    found = [each for i, each in enumerate(found) if int((i + 1) * share) > int(i * share)]
    if not found:
        raise ValueError(
            f"no {split} address is left of the years {first} to {last}: choose more years, or "
            "raise `share`"
        )
    return found


def main(settings: PartSettings) -> None:
    """Writes the part."""
    tensorflow_logs.import_tensorflow()
    with errors.in_one_line(flags=settings.names()):
        lines = files.read_bytes(settings.addresses_file).decode().splitlines()
        addresses = [json.loads(line) for line in lines]
        judged_years = (settings.judged_first_year, settings.judged_last_year)
        train = choose(addresses, "train", settings.first_year, settings.last_year, settings.share)
        judged = {split: choose(addresses, split, *judged_years) for split in ("train", "dev")}
        contents = sotu.make_files([*train, *judged["dev"]])
        passages = sotu.make_files([*judged["train"], *judged["dev"]])
        contents |= {name: passages[name] for name in passages if name.startswith("passages_")}
        sotu.write_files(contents, settings.output_dir)


if __name__ == "__main__":
    run_script(PartSettings, main, __doc__)
