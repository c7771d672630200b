"""Takes a part of the State of the Union addresses: some years, or a share of them.

    python experiments/part.py --addresses_file=sotu/addresses.jsonl --output_dir=part --share=0.25

writes the files that data/prepare_sotu.py writes. Text to train on may be of other years than what
a model is judged on: the held-out text, and the passages of both splits.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from albert_tf import scripts
from albert_tf.console import errors, quiet
from albert_tf.generator import sotu
from albert_tf.storage import files


def define_flags(values: flags.FlagValues) -> None:
    """Adds the flags of part.py."""
    group = scripts.FlagGroup(values, "Text")
    group.string(
        "addresses_file", None, "The addresses.jsonl that prepare_sotu.py wrote.", required=True
    )
    group.string("output_dir", None, "Directory to write the files to.", required=True)
    for judged, text in (("", "text to train on"), ("judged_", "held-out text and the passages")):
        group.integer(f"{judged}first_year", 0, f"The first year of the {text}.")
        group.integer(f"{judged}last_year", 9999, f"The last year of the {text}.")
    group.number(
        "share", 1.0, "Share of the addresses to train on that is kept, evenly spread.", "(0, 1]"
    )


def choose(
    addresses: Sequence[dict[str, Any]], split: str, first: int, last: int, share: float = 1
) -> list[dict[str, Any]]:
    """Returns a split's addresses of some years, or an evenly spread share of them.

    Raises:
      ValueError: If there are none.
    """
    found = [each for each in addresses if each["split"] == split and first <= each["year"] <= last]
    found = [each for i, each in enumerate(found) if int((i + 1) * share) > int(i * share)]
    if not found:
        raise ValueError(
            f"no {split} address is left of the years {first} to {last}: choose more years, or "
            "raise `share`"
        )
    return found


def main(values: flags.FlagValues) -> None:
    """Writes the part."""
    quiet.import_tensorflow()
    with errors.in_one_line(flags=values):
        lines = files.read_bytes(values.addresses_file).decode().splitlines()
        addresses = [json.loads(line) for line in lines]
        judged_years = (values.judged_first_year, values.judged_last_year)
        train = choose(addresses, "train", values.first_year, values.last_year, values.share)
        judged = {split: choose(addresses, split, *judged_years) for split in ("train", "dev")}
        contents = sotu.make_files([*train, *judged["dev"]])
        passages = sotu.make_files([*judged["train"], *judged["dev"]])
        contents |= {name: passages[name] for name in passages if name.startswith("passages_")}
        sotu.write_files(contents, values.output_dir)


if __name__ == "__main__":
    scripts.run_script(main, define_flags, __doc__)
