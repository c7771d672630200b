"""The text that create_pretraining_data.py makes records of, and what is written about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from absl import flags

from albert_tf import scripts
from albert_tf.console import errors, quiet
from albert_tf.generator import create, workers
from albert_tf.generator import flags as generator_flags
from albert_tf.generator.documents import Place, TextBlock
from albert_tf.generator.examples import TokenBlock
from albert_tf.storage import files


def tokenized(plan: workers.Plan) -> Iterator[tuple[TextBlock, TokenBlock]]:
    """Yields the blocks of a plan's text, each with its tokens."""
    tokenizer = workers.load_tokenizer(plan.vocabulary)
    for block in plan.cut_blocks(Place(), 0):
        tokens, _ = workers.tokenize_block(block, tokenizer, plan.recipe)
        yield block, tokens


def define_flags(values: flags.FlagValues, name: str) -> None:
    """Adds the generator's flags, and `{name}_file`, the file to write."""
    generator_flags.define_flags(values)
    scripts.FlagGroup(values, name.capitalize()).string(
        f"{name}_file", None, "JSON file to write.", required=True
    )


def write(values: flags.FlagValues, name: str, compute: Callable[[workers.Plan], Any]) -> None:
    """Writes what is computed of the plan that the flags ask for, as JSON."""
    quiet.import_tensorflow()
    with errors.in_one_line(flags=values):
        plan, _ = create.make_plan(values)
        files.replace(values[f"{name}_file"].value, json.dumps(compute(plan)) + "\n")
