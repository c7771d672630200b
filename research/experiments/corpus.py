"""Tells of the text that create_pretraining_data.py makes records of what the records do not hold.

python research/experiments/corpus.py --documents_file=documents.json FLAGS

with the flags that made the records: from which document each record is. Pairs are drawn anew,
which takes a moment; no mask is. --words_file=words.json counts pieces and words instead. Words are
what white space separates: whatever the vocabulary, a text has the same number.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Iterator

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from albert_tf.console import errors, tensorflow_logs
from albert_tf.console.settings import run_script, setting
from albert_tf.generator import create, examples, workers
from albert_tf.generator.documents import Place, TextBlock
from albert_tf.generator.examples import TokenBlock
from albert_tf.generator.settings import GeneratorSettings
from albert_tf.generator.shards import record_order
from albert_tf.storage import files

_corpus = functools.partial(setting, None, group="Corpus")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusSettings(GeneratorSettings):
    """The generator's settings, and the names of the files to write."""

    documents_file: str | None = _corpus("JSON file for the document of each record.")
    words_file: str | None = _corpus("JSON file for the numbers of pieces and words.")


def _tokenized(plan: workers.Plan) -> Iterator[tuple[TextBlock, TokenBlock]]:
    """Yields the blocks of a plan's text, each with its tokens."""
    for block in plan.cut_blocks(Place(), 0):
        tokens, _ = workers.tokenize_block(block, plan.tokenizer, plan.settings)
        yield block, tokens


def documents_of_records(plan: workers.Plan) -> list[int]:
    """Returns the number of the document that each record's first segment is from."""
    found: dict[int, list[np.ndarray]] = {}
    for block, tokens in _tokenized(plan):
        if tokens.documents:
            first_tokens = examples.draw_instances(tokens, plan.settings).pairs[:, 0]
            ends = [bounds[-1] for bounds in tokens.documents]
            documents = tokens.numbers[np.searchsorted(ends, first_tokens, side="right")]
            found.setdefault(block.shard, []).append(documents)
    in_shards = {shard: np.concatenate(parts) for shard, parts in found.items()}
    return [
        number
        for shard, numbers in in_shards.items()
        for number in numbers[record_order(plan, shard, len(numbers))].tolist()
    ]


def count_words(plan: workers.Plan) -> dict[str, int]:
    """Returns how many pieces and words the text of a plan has."""
    pieces = words = 0
    for block, tokens in _tokenized(plan):
        pieces += len(tokens.tokens)
        words += sum(len(line.split()) for document in block.documents for line in document)
    return {"pieces": pieces, "words": words}


def main(settings: CorpusSettings) -> None:
    """Writes the files whose names are given."""
    tensorflow_logs.import_tensorflow()
    with errors.in_one_line(flags=settings.names()):
        plan, *_ = create.make_plan(settings)
        if settings.documents_file:
            files.replace(settings.documents_file, json.dumps(documents_of_records(plan)) + "\n")
        if settings.words_file:
            files.replace(settings.words_file, json.dumps(count_words(plan)) + "\n")


if __name__ == "__main__":
    run_script(CorpusSettings, main, __doc__)
