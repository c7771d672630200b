"""Makes pre-training records from text: one sentence per line, a blank line between documents.

The text is read once, as a stream, and tokenised once. What memory holds is blocks of it, a few for
each process: the random documents of a block's instances come from the block, and its instances are
shuffled among themselves. Same flags, same files, byte for byte, whatever the number of processes;
and also if the run is killed, and the same command goes on behind the last shard that was whole.

    python data/create_pretraining_data.py --input_file=text.txt --output_file=records.tfrecord \
        --num_output_shards=8 --spm_model_file=30k-clean.model --max_seq_length=512 \
        --max_predictions_per_seq=77

Source: create_pretraining_data.py, with its flags.
Differs: an output file holds a region of the text; the release writes records to the files in turn.
"""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import blocks
import instances
import parts
import segment_pairs
from absl import app, flags, logging
from plan import Plan
from report import Report, report_path

from albert_tf import masking
from albert_tf.tokenization import Tokenizer

# Flags that make no difference to the records, or are known by what they name.
_WITHOUT_EFFECT = (
    "num_processes",
    "max_unknown_share",
    "plots",
    "runner",
    "beam_options",
    "input_file",
    "spm_model_file",
    "vocab_file",
)


def define_flags(flag_values: flags.FlagValues) -> None:
    """Adds this script's flags, the release's 17 and some more, to `flag_values`."""
    string, boolean, integer, real = (
        functools.partial(define, flag_values=flag_values)
        for define in (
            flags.DEFINE_string,
            flags.DEFINE_bool,
            flags.DEFINE_integer,
            flags.DEFINE_float,
        )
    )
    string("input_file", None, "Text to read: files or globs, with commas between.")
    string("output_file", None, "TFRecord files to write, with commas between.")
    string("vocab_file", None, "WordPiece vocabulary, where there is no spm_model_file.")
    string("spm_model_file", None, "SentencePiece model.")
    string("input_file_mode", "r", "r: all text is UTF-8; rb: bytes that are not are left out.")
    string(
        "input_format",
        "lines",
        "lines: one sentence per line, a blank line between documents; paragraphs: one paragraph "
        "per line, likewise; jsonl: a JSON object per line, which is a document; wikipedia: what "
        "WikiExtractor writes. Names that end in .gz, .bz2 and .zst are decompressed.",
    )
    string("text_field", "text", "Name of the text in the objects of input_format=jsonl.")
    string("language", "en", "Whose sentences to split: the language's ISO 639 code.")
    boolean("do_lower_case", True, "Whether to lower-case the text.")
    boolean("do_whole_word_mask", True, "Whether to mask whole words, or else pieces.")
    boolean("do_permutation", False, "Whether to exchange as many tokens again with each other.")
    boolean("favor_shorter_ngram", True, "Whether short n-grams are likelier than long ones.")
    boolean(
        "random_next_sentence",
        False,
        "Whether half of the pairs get a random B; else half are swapped.",
    )
    string(
        "single_segment",
        "random",
        "What becomes of a chunk of one sentence. random: it gets a random B, and the label of "
        "swapped pairs; split: it is parted between two words, to be a pair like others.",
    )
    string(
        "word_starts",
        "latin",
        "Which letters SentencePiece pieces may continue a word with. latin: a to z, so that all "
        "other pieces are words of their own; unicode: those of every script with spaces.",
    )
    integer("max_seq_length", 512, "Tokens of an example, [CLS] and [SEP] included.")
    integer("ngram", 3, "Longest masked n-gram, in words.")
    integer(
        "max_predictions_per_seq",
        20,
        "Most masked tokens of an example; 0: as many as masked_lm_prob asks for.",
    )
    integer("random_seed", 12345, "What every draw is a function of.")
    integer("dupe_factor", 40, "Passes over the text, each drawn afresh.")
    real("masked_lm_prob", 0.15, "Share of the tokens to mask.")
    real("short_seq_prob", 0.1, "Share of documents that a pass cuts into short examples.")
    # The release has none of these:
    integer(
        "num_output_shards",
        None,
        "Write so many files, output_file-00000-of-00008 and so on.",
    )
    integer("num_processes", None, "Processes that work at the same time; default: all cores.")
    real(
        "block_megabytes",
        4.0,
        "Million characters of text that are shuffled together and serve each other as random "
        "documents. Memory holds up to three such blocks for each process.",
    )
    real("max_unknown_share", 0.1, "Most [UNK] among the text's tokens; more is an error.")
    boolean("plots", False, "Whether to draw the report as a page of plots, .png beside .json.")
    flags.DEFINE_enum(
        "runner",
        "local",
        ["local", "beam"],
        "local: processes of this machine. beam: an Apache Beam pipeline; see beam_runner.py.",
        flag_values=flag_values,
    )
    string("beam_options", "", "Beam's own: '--runner=DataflowRunner --project=...'.")
    flags.mark_flags_as_required(["input_file", "output_file"], flag_values=flag_values)


def create_pretraining_data(flag_values: flags.FlagValues) -> Report:
    """Does what the flags say.

    Raises:
        ImportError: a package that the flags need is not installed.
        ValueError, OSError: a flag, an input or an output is wrong. That is found before the long
            work where it can be, and no output file is touched.
    """
    # Not on top: worker processes import this file too, and do without TensorFlow.
    import documents
    import local_runner
    import report_plots
    import shards
    import tensorflow as tf

    if flag_values.plots:
        report_plots.check_installed()
    beam_runner = _import_beam_runner() if flag_values.runner == "beam" else None
    input_files = documents.list_input_files(flag_values.input_file)
    output_files = shards.name_shards(flag_values.output_file, flag_values.num_output_shards)
    _check_output_files(output_files, input_files)
    if not flag_values.block_megabytes > 0:
        raise ValueError(f"block_megabytes must be above 0, got {flag_values.block_megabytes}")
    vocabulary = parts.Vocabulary.of_files(
        flag_values.spm_model_file, flag_values.vocab_file, flag_values.do_lower_case
    )
    tokenizer = parts.load_tokenizer(vocabulary)
    recipe = _read_recipe(flag_values, tokenizer)
    tokenizer.word_starts(recipe.word_starts)  # Refuses another name before the work.

    text_settings = documents.TextSettings(
        input_format=flag_values.input_format,
        mode=flag_values.input_file_mode,
        text_field=flag_values.text_field,
        language=flag_values.language,
    )
    stats = {path: tf.io.gfile.stat(path) for path in input_files}
    sizes = [stats[path].length for path in input_files]
    cut_blocks = functools.partial(
        blocks.cut_blocks,
        functools.partial(documents.read_documents, settings=text_settings),
        input_files,
        sizes,
        len(output_files),
        int(flag_values.block_megabytes * 1e6),
    )
    plan = Plan(cut_blocks, vocabulary, recipe, output_files, flag_values.max_unknown_share)
    if beam_runner:
        report = beam_runner.run(plan, flag_values.beam_options)
    else:
        settings = _list_settings(flag_values) | {"vocabulary": vocabulary.sha256}
        for path, stat in stats.items():
            settings[f"input file {path}"] = f"{stat.length} bytes of {stat.mtime_nsec // 10**9}"
        report = local_runner.run(plan, settings, sum(sizes), flag_values.num_processes)
    report.measure_memory()
    report.save(report_path(flag_values.output_file, ".json"))
    if flag_values.plots:
        report_plots.write_plots(report, report_path(flag_values.output_file, ".png"))
    return report


def _import_beam_runner() -> ModuleType:
    try:
        import beam_runner
    except ImportError as error:
        raise ImportError(
            f"--runner=beam needs the package {error.name!r}, which is not installed: "
            "pip install 'albert_tf[beam]'"
        ) from error
    return beam_runner


def _list_settings(flag_values: flags.FlagValues) -> dict[str, Any]:
    """The flags that the records are a function of."""
    own = flags.FlagValues()
    define_flags(own)
    return {name: flag_values[name].value for name in own if name not in _WITHOUT_EFFECT}


def _read_recipe(flag_values: flags.FlagValues, tokenizer: Tokenizer) -> instances.Recipe:
    return instances.Recipe(
        pairs=segment_pairs.PairSettings(
            max_seq_length=flag_values.max_seq_length,
            short_seq_prob=flag_values.short_seq_prob,
            random_next_sentence=flag_values.random_next_sentence,
            single_segment=flag_values.single_segment,
        ),
        masking=masking.MaskingSettings(
            vocab_size=tokenizer.vocab_size,
            mask_id=tokenizer.mask_id,
            masked_lm_prob=flag_values.masked_lm_prob,
            max_predictions_per_seq=_count_predictions(flag_values),
            ngram=flag_values.ngram,
            favor_shorter_ngram=flag_values.favor_shorter_ngram,
            do_whole_word_mask=flag_values.do_whole_word_mask,
            do_permutation=flag_values.do_permutation,
        ),
        dupe_factor=flag_values.dupe_factor,
        random_seed=flag_values.random_seed,
        word_starts=flag_values.word_starts,
    )


def _check_output_files(output_files: Sequence[str], input_files: Sequence[str]) -> None:
    for path in output_files:
        if path in input_files:
            raise ValueError(f"output_file: {path} is an input file too")


def _count_predictions(flag_values: flags.FlagValues) -> int:
    """Masked tokens of an example at most; warns where a full example would want more."""
    limit = flag_values.max_predictions_per_seq
    wanted = flag_values.masked_lm_prob * flag_values.max_seq_length
    if limit == 0:
        return max(1, math.ceil(wanted))
    if limit < wanted:
        logging.warning(
            "max_predictions_per_seq=%d masks %.1f %% of a full example, not %.1f %%: "
            "%d predictions would do that",
            limit,
            100 * limit / flag_values.max_seq_length,
            100 * flag_values.masked_lm_prob,
            math.ceil(wanted),
        )
    return limit


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM end the run as Ctrl-C does, with all that has to be tidied up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Writes the records that the flags describe, and logs what they are."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.INFO)
    try:
        with _ended_by_sigterm():
            report = create_pretraining_data(flag_values)
    except (ImportError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("error: interrupted")
    for line in report.lines():
        logging.info("%s", line)


if __name__ == "__main__":
    define_flags(flags.FLAGS)
    app.run(main)
