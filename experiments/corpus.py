"""Tells of the text that create_pretraining_data.py makes records of what the records do not hold.

python experiments/corpus.py --documents_file=documents.json FLAGS

with the flags that made the records: from which document each record is. Pairs are drawn anew,
which takes a moment; no mask is. --words_file=words.json counts pieces and words instead. Words are
what white space separates: whatever the vocabulary, a text has the same number.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterator

import numpy as np
from absl import flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from albert_tf import scripts
from albert_tf.console import errors, quiet
from albert_tf.generator import create, examples, workers
from albert_tf.generator import flags as generator_flags
from albert_tf.generator.documents import Place, TextBlock
from albert_tf.generator.examples import TokenBlock
from albert_tf.storage import files


def define_flags(values: flags.FlagValues) -> None:
    """Adds the generator's flags, and the names of the files to write."""
    generator_flags.define_flags(values)
    group = scripts.FlagGroup(values, "Corpus")
    group.string("documents_file", None, "JSON file for the document of each record.")
    group.string("words_file", None, "JSON file for the numbers of pieces and words.")


def _tokenized(plan: workers.Plan) -> Iterator[tuple[TextBlock, TokenBlock]]:
    """Yields the blocks of a plan's text, each with its tokens."""
    tokenizer = workers.load_tokenizer(plan.vocabulary)
    for block in plan.cut_blocks(Place(), 0):
        tokens, _ = workers.tokenize_block(block, tokenizer, plan.recipe)
        yield block, tokens


def documents_of_records(plan: workers.Plan) -> list[int]:
    """Returns the number of the document that each record's first segment is from.

    Args:
      plan: What made the records, each of one example; see albert_tf.generator.create.
    """
    found = []
    for _, tokens in _tokenized(plan):
        if tokens.documents:
            first_tokens = examples.draw_instances(tokens, plan.recipe).pairs[:, 0]
            ends = [bounds[-1] for bounds in tokens.documents]
            found.append(tokens.numbers[np.searchsorted(ends, first_tokens, side="right")])
    return np.concatenate(found).tolist()


def count_words(plan: workers.Plan) -> dict[str, int]:
    """Returns how many pieces and words the text of a plan has."""
    pieces = words = 0
    for block, tokens in _tokenized(plan):
        pieces += len(tokens.tokens)
        words += sum(len(line.split()) for document in block.documents for line in document)
    return {"pieces": pieces, "words": words}


def main(values: flags.FlagValues) -> None:
    """Writes the files whose names are given."""
    quiet.import_tensorflow()
    with errors.in_one_line(flags=values):
        plan, _ = create.make_plan(values)
        if values.documents_file:
            files.replace(values.documents_file, json.dumps(documents_of_records(plan)) + "\n")
        if values.words_file:
            files.replace(values.words_file, json.dumps(count_words(plan)) + "\n")


if __name__ == "__main__":
    scripts.run_script(main, define_flags, __doc__)
