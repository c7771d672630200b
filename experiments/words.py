"""Counts the pieces and words of the text that create_pretraining_data.py makes records of.

python experiments/words.py --words_file=words.json FLAGS

with the flags that made the records. Words are what white space separates: whatever the vocabulary,
a text has the same number.
"""

from __future__ import annotations

import pathlib
import sys

from absl import flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from albert_tf import scripts
from albert_tf.generator import workers
from experiments import blocks


def define_flags(values: flags.FlagValues) -> None:
    """Adds the generator's flags, and the name of the file to write."""
    blocks.define_flags(values, "words")


def count(plan: workers.Plan) -> dict[str, int]:
    """Returns how many pieces and words the text of a plan has."""
    pieces = words = 0
    for block, tokens in blocks.tokenized(plan):
        pieces += len(tokens.tokens)
        words += sum(len(line.split()) for document in block.documents for line in document)
    return {"pieces": pieces, "words": words}


def main(values: flags.FlagValues) -> None:
    """Writes the counts as JSON."""
    blocks.write(values, "words", count)


if __name__ == "__main__":
    scripts.run_script(main, define_flags, __doc__)
