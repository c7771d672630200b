"""Tells which document each record of create_pretraining_data.py is from.

python experiments/documents.py --documents_file=documents.json FLAGS

with the flags that made the records. Pairs are drawn anew, which takes a moment; no mask is.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
from absl import flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from albert_tf import scripts
from albert_tf.generator import examples, workers
from experiments import blocks


def define_flags(values: flags.FlagValues) -> None:
    """Adds the generator's flags, and the name of the file to write."""
    blocks.define_flags(values, "documents")


def documents_of_records(plan: workers.Plan) -> list[int]:
    """Returns the number of the document that each record's first segment is from.

    Args:
      plan: What made the records; see albert_tf.generator.create.

    Raises:
      ValueError: If records hold several examples.
    """
    if plan.recipe.max_examples_per_row > 1:
        raise ValueError("`max_examples_per_row` packs examples of several documents: leave it out")
    found = []
    for _, tokens in blocks.tokenized(plan):
        if tokens.documents:
            first_tokens = examples.draw_instances(tokens, plan.recipe).pairs[:, 0]
            ends = [bounds[-1] for bounds in tokens.documents]
            found.append(tokens.numbers[np.searchsorted(ends, first_tokens, side="right")])
    return np.concatenate(found).tolist()


def main(values: flags.FlagValues) -> None:
    """Writes the numbers as a JSON list."""
    blocks.write(values, "documents", documents_of_records)


if __name__ == "__main__":
    scripts.run_script(main, define_flags, __doc__)
