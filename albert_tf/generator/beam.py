"""Makes records in an Apache Beam pipeline, on one machine or many, as Beam's options say.

    text -> blocks -> a part of a shard for each, in a folder that all workers share
                   -> per shard: its records, shuffled, in one file

It uses the local runner's functions and writes the same files, byte for byte. One worker reads and
cuts the text, which keeps about thirty cores busy at dupe_factor 5, more at a higher one.

Workers import albert_tf: it must be installed there.
Beam's DirectRunner holds the text in memory: use it for tests and small texts.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions

from albert_tf.generator import shards, workers
from albert_tf.generator.documents import Place, TextBlock
from albert_tf.generator.report import Report
from albert_tf.storage import files


class _Part(NamedTuple):
    """The records of a block, in the folder that all workers share."""

    first_document: int
    path: str
    report: Report


def run(plan: workers.Plan, beam_options: str) -> Report:
    """Carries out a plan. Shards get their names once all are complete; else nothing is left.

    The options are Beam's command line, such as "--runner=FlinkRunner --flink_master=host:8081".
    """
    try:
        options = PipelineOptions(shlex.split(beam_options))
    except ValueError as error:
        raise ValueError(f"`beam_options` can't be parsed ({error}): {beam_options!r}") from error
    # The first block shows a wrong vocabulary before machines start.
    for block in itertools.islice(_cut_blocks(plan), 1):
        plan.check(workers.tokenize_block(block, plan.tokenizer, plan.settings)[1])
    # Beam warns for each function that it can't use its type hints.
    logging.getLogger("apache_beam.typehints").setLevel(logging.WARNING)
    # Workers write parts and the report into a folder that all of them can reach.
    started = time.monotonic()
    folder = f"{plan.output_files[0]}.unfinished.beam"
    report_file = os.path.join(folder, "report.json")
    # Text -> blocks -> parts, by shard -> shards and their reports -> one report.
    with _tidied_up(folder, plan.output_files):
        try:
            with beam.Pipeline(options=options) as pipeline:
                _ = (
                    pipeline
                    | "Start" >> beam.Create([plan])
                    | "Read" >> beam.FlatMap(_cut_blocks)
                    | "Share" >> beam.Reshuffle()
                    | "Make" >> beam.ParDo(_MakeParts(plan, folder))
                    | "Gather" >> beam.GroupByKey()
                    | "Write" >> beam.Map(_write_shard, plan)
                    | "Merge" >> beam.CombineGlobally(Report.total)
                    | "Report" >> beam.Map(_save, report_file)
                )
        # Each runner has its own type for a worker's error.
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            reason = lines[-1].strip() if lines else type(error).__name__
            raise OSError(f"the Beam pipeline failed: {reason}") from error
        # The whole text has been read: check it as the local runner does, then name the shards.
        with tf.io.gfile.GFile(report_file) as file:
            report = Report.from_json(json.loads(file.read()))
        plan.check(report)
        plan.warn_of_loss(report)
        shards.check_filled(report, len(plan.output_files))
        # Workers measure no time, and shards come in any order.
        report.seconds = time.monotonic() - started
        report.shards = {path: report.shards[path] for path in plan.output_files}
        for path in plan.output_files:
            tf.io.gfile.rename(shards.unfinished(path), path, overwrite=True)
    return report


def _save(report: Report, path: str) -> None:
    files.replace(path, json.dumps(report.to_json()))


def _cut_blocks(plan: workers.Plan) -> Iterator[TextBlock]:
    return plan.cut_blocks(Place(), 0)


class _MakeParts(beam.DoFn):
    """Turns a TextBlock into the number of its shard and its _Part."""

    def __init__(self, plan: workers.Plan, folder: str):
        self._plan, self._folder = plan, folder

    def setup(self) -> None:
        # A worker serves many blocks: it stores the tokenizer once.
        self._scratch = tempfile.TemporaryDirectory()
        self._tokenizer_file = workers.save_tokenizer(self._plan.tokenizer, self._scratch.name)

    def process(self, block: TextBlock) -> Iterator[tuple[int, _Part]]:
        part = workers.make_part(self._tokenizer_file, self._plan.settings, block)
        path = os.path.join(self._folder, os.path.basename(part.path))
        # If Beam retries a block, its records are the same.
        tf.io.gfile.copy(part.path, path, overwrite=True)
        os.remove(part.path)
        yield block.shard, _Part(block.first_document, path, part.report)

    def teardown(self) -> None:
        self._scratch.cleanup()


def _write_shard(gathered: tuple[int, Iterable[_Part]], plan: workers.Plan) -> Report:
    # Parts come in any order; a shard's records are collected in the order of the text.
    shard, shard_parts = gathered
    parts = sorted(shard_parts, key=lambda part: part.first_document)
    path = plan.output_files[shard]
    with tempfile.NamedTemporaryFile() as records:
        for part in parts:
            with tf.io.gfile.GFile(part.path, "rb") as file:
                shutil.copyfileobj(file, records)
        records.flush()
        size = shards.write_shard(plan, shard, records.name, shards.unfinished(path))
    report = Report.total(part.report for part in parts)
    report.count_shard(path, size)
    return report


@contextlib.contextmanager
def _tidied_up(folder: str, output_files: Sequence[str]) -> Iterator[None]:
    """Reserves the shards and makes the folder; at the end removes it and unfinished shards."""
    with shards.hold_parts_folder(output_files):
        if files.exists(state := shards.state_path(output_files[0])):
            raise ValueError(
                f"`output_file`: {state} belongs to an unfinished run of `runner=local`: give "
                "its flags to finish it, or remove that file to start afresh"
            )
        tf.io.gfile.makedirs(folder)
        try:
            yield
        finally:
            for path in map(shards.unfinished, output_files):
                with contextlib.suppress(tf.errors.OpError):
                    tf.io.gfile.remove(path)
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.rmtree(folder)
