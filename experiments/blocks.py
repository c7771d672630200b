"""The text that create_pretraining_data.py makes records of, as it reads it."""

from __future__ import annotations

from collections.abc import Iterator

from albert_tf.generator import workers
from albert_tf.generator.blocks import Place, TextBlock
from albert_tf.generator.instances import TokenBlock


def tokenized(plan: workers.Plan) -> Iterator[tuple[TextBlock, TokenBlock]]:
    """Yields the blocks of a plan's text, each with its tokens."""
    tokenizer = workers.load_tokenizer(plan.vocabulary)
    for block in plan.cut_blocks(Place(), 0):
        tokens, _ = workers.tokenize_block(block, tokenizer, plan.recipe)
        yield block, tokens
