"""Makes pre-training records as their settings say, in this machine's processes or on Beam.

Source: create_pretraining_data.py, with its flags.
Differs: each output file holds a region of the text, shuffled by itself; the release shuffles all
instances, and deals them out to the files.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Mapping
from typing import Any

from absl import logging

from albert_tf.console import errors
from albert_tf.generator import documents, workers
from albert_tf.generator.documents import sample_sentences
from albert_tf.generator.report import Report, report_path
from albert_tf.generator.report_plots import write_plots
from albert_tf.generator.settings import GeneratorSettings
from albert_tf.storage import files
from albert_tf.text.tokenization import describe_fit, describe_lack
from albert_tf.text.vocabulary import FORM, Vocabulary, find_form, keep_beside_records


def create_pretraining_data(settings: GeneratorSettings) -> Report:
    """Makes the records that the settings describe, and a report beside them."""
    # Report missing packages before any work begins.
    if settings.plots:
        with errors.of_extra("plots", "`plots`"):
            importlib.import_module("matplotlib")
    if settings.runner == "beam":
        with errors.of_extra("beam", "`runner=beam`"):
            from albert_tf.generator import beam
    plan, inputs, vocabulary = make_plan(settings)
    # The first sentences show whether the vocabulary fits the text.
    read = vocabulary.tokenizer, sample_sentences([path for path, _ in inputs], settings)
    fit, lack = (
        errors.with_dashes(f(*read), settings.names()) for f in (describe_fit, describe_lack)
    )
    logging.info("%s: %s", vocabulary.path, fit)
    if lack:
        logging.warning("%s: %s", vocabulary.path, lack)
    if settings.runner == "beam":
        report = beam.run(plan, settings.beam_options)
    else:
        # An interrupted run continues only with the same vocabulary, settings and files.
        shaping = settings.of_the_records()
        shaping |= {
            "vocabulary": plan.tokenizer.digest,
            "do_lower_case": plan.tokenizer.do_lower_case,
            "keep_accents": plan.tokenizer.keep_accents,
            "dupe_factor": settings.passes,
        }
        # Files are numbered because their order decides where each shard ends.
        for number, (path, stat) in enumerate(inputs, start=1):
            of = f"{stat.length} bytes of {stat.mtime_nsec // 10**9}"
            shaping[f"input file {number}"] = f"{path}: {of}"
        size = sum(stat.length for _, stat in inputs)
        report = run_locally(plan, shaping, size, settings.num_processes)
    # The report and the vocabulary go beside the records.
    report.measure_memory()
    report.save(report_path(settings.output_file, ".json"))
    keep_beside_records(vocabulary, settings.output_file.split(",")[0])
    if settings.plots:
        write_plots(report, report_path(settings.output_file, ".png"))
    return report


def find_vocabulary(settings: GeneratorSettings) -> Vocabulary:
    """Reads the vocabulary that the settings name."""
    path = settings.spm_model_file or settings.vocab_file
    if not path:
        raise ValueError("no vocabulary: set `spm_model_file` or `vocab_file`")
    is_word_piece = not settings.spm_model_file
    given = {n: getattr(settings, n) for n in FORM if n in settings.given}
    form = find_form((path,), is_word_piece, **given)
    return Vocabulary.read(path, is_word_piece, *form)


def make_plan(
    settings: GeneratorSettings,
) -> tuple[workers.Plan, list[tuple[str, Any]], Vocabulary]:
    """Returns the plan of a run, its input files with their `stat`, and its vocabulary."""
    # Not imported at the top: workers may import this file, but don't need TensorFlow.
    import tensorflow as tf

    # No output file may be an input file, under whatever name.
    input_files = files.list_files(settings.input_file)
    output_files = name_shards(settings.output_file, settings.num_output_shards)
    inputs = set(map(os.path.realpath, input_files))
    for path in output_files:
        if os.path.realpath(path) in inputs:
            raise ValueError(f"`output_file`: {path} is also an input file: give another name")
    # How many slots the masks need depends on the vocabulary; warn of a shortage before the work.
    vocabulary = find_vocabulary(settings)
    masks = settings.mask_settings(vocabulary.tokenizer)
    if masks and (shortfall := masks.shortfall(settings.max_seq_length)):
        if settings.max_examples_per_row > 1:
            shortfall += ", and let packing fill the rows: the examples of a row share them"
        logging.warning("%s", shortfall)
    # The plan must be picklable: it holds a function that cuts the text, given where to begin.
    stats = [tf.io.gfile.stat(path) for path in input_files]
    cut_blocks = functools.partial(
        documents.cut_blocks,
        functools.partial(documents.read_documents, settings=settings),
        input_files,
        [stat.length for stat in stats],
        len(output_files),
        int(settings.block_megabytes * 1e6),
    )
    plan = workers.Plan(cut_blocks, vocabulary.tokenizer, settings, output_files)
    return plan, list(zip(input_files, stats, strict=True)), vocabulary


def name_shards(output_file: str, num_output_shards: int | None) -> list[str]:
    """Returns the files that a run writes: the listed ones, or NAME-00000-of-00004 and so on."""
    paths = output_file.split(",")
    for path in paths:
        files.check_expanded(path)
        if not path or files.is_dir(path):
            raise ValueError(f"`output_file`: expected file names, got {path!r}")
    if len(set(paths)) < len(paths):
        raise ValueError("`output_file`: a file is named twice: give distinct names")
    if num_output_shards is None:
        return paths
    if len(paths) > 1:
        raise ValueError(
            f"`num_output_shards={num_output_shards}` and `output_file` with {len(paths)} names: "
            "give one name, or leave `num_output_shards` out"
        )
    return [f"{paths[0]}-{i:05d}-of-{num_output_shards:05d}" for i in range(num_output_shards)]


def run_locally(
    plan: workers.Plan, settings: Mapping[str, Any], input_bytes: int, num_processes: int | None
) -> Report:
    """Carries out a plan, or the rest of an unfinished run, in processes on this machine.

    The records depend on `settings`; the progress bar, on `input_bytes`, the text's stored size.
    """
    from albert_tf.generator import shards
    from albert_tf.training.progress import ProgressBar

    # The text is read here; other processes turn its blocks into parts, which are appended here.
    with shards.open_run(plan, settings) as shard_run:
        tokenizer_file = workers.save_tokenizer(plan.tokenizer, shard_run.folder)
        make_part = functools.partial(workers.make_part, tokenizer_file, plan.settings)
        text = plan.cut_blocks(shard_run.start, shard_run.num_whole)
        made = workers.map_in_order(make_part, text, num_processes or workers.count_cores())
        bar = ProgressBar(input_bytes, shard_run.start.position)
        so_far = shard_run.report
        # Parts come in the order of the text, so that a shard is complete once the next begins.
        with bar, contextlib.closing(made):
            for number, part in enumerate(made):
                shard_run.append(part)
                so_far.merge(part.report)
                # The first block already shows a wrong vocabulary, or lines that aren't sentences.
                plan.check(so_far)
                if number == 0:
                    plan.warn_of_loss(part.report)
                bar.advance(part.end.position, part.report.output_tokens)
        shard_run.publish()
    return shard_run.report
