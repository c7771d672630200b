"""Makes records in processes of this machine, shard after shard."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

from albert_tf.generator import processes, progress_bar, shards, workers
from albert_tf.generator.plan import Plan
from albert_tf.generator.report import Report


def run(
    plan: Plan, settings: Mapping[str, Any], input_bytes: int, num_processes: int | None
) -> Report:
    """Does what a plan says, or what an unfinished run with the same settings has left of it.

    Args:
        plan: see Plan.
        settings: what the records are a function of.
        input_bytes: stored bytes of the text.
        num_processes: how many work at the same time; None is one for each core.

    Raises:
        ValueError: see shards.open_run; a number is out of its range; there is no text, or too
            little for the shards; the vocabulary is not one for the text.
        OSError: the text can't be read, or the shards not be written.
    """
    if num_processes is None:
        num_processes = processes.count_cores()
    if num_processes < 1:
        raise ValueError(f"num_processes must be at least 1, got {num_processes}")
    with shards.open_run(plan.output_files, settings) as shard_run:
        # A copy: workers read local files, for they do without TensorFlow.
        vocabulary = plan.vocabulary.copied(shard_run.folder, plan.vocabulary.content)
        job = workers.Job(vocabulary, plan.recipe, shard_run.folder)
        text = plan.cut_blocks(shard_run.start, shard_run.num_whole)
        made = processes.map_in_order(
            functools.partial(workers.make_part, job), text, num_processes
        )
        bar = progress_bar.ProgressBar(input_bytes, shard_run.start.position)
        so_far = shard_run.report
        with bar, contextlib.closing(made):
            for part in made:
                shard_run.append(part)
                so_far.merge(part.report)
                so_far.check_unknown_share(plan.max_unknown_share)
                bar.advance(part.end.position, part.report.output_tokens)
        shard_run.publish()
    return shard_run.report
