"""What a run makes, whatever it runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from albert_tf.generator import instances, workers
from albert_tf.generator.blocks import Place, TextBlock


class Plan(NamedTuple):
    """What a run makes; picklable.

    Attributes:
        cut_blocks: blocks.cut_blocks of the text, but for its arguments `start` and `first_shard`.
        vocabulary: what the text is tokenised with.
        recipe: how instances are made.
        output_files: paths of the shards.
        max_unknown_share: see Report.check_unknown_share.
    """

    cut_blocks: Callable[[Place, int], Iterator[TextBlock]]
    vocabulary: workers.Vocabulary
    recipe: instances.Recipe
    output_files: Sequence[str]
    max_unknown_share: float
