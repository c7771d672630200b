"""Makes pre-training records from text: one sentence per line, a blank line between documents.

The text is read once, as a stream, and tokenised once. Blocks of about four million tokens are
what memory holds: the random documents of a block's instances come from the block, and its
instances are shuffled among themselves. Same flags, same files, byte for byte.

    python data/create_pretraining_data.py --input_file=text.txt --output_file=records.tfrecord \
        --spm_model_file=30k-clean.model --max_seq_length=512 --max_predictions_per_seq=77

Source: create_pretraining_data.py, with its flags.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

import documents
import instances
import numpy as np
import segment_pairs
import tensorflow as tf
from absl import app, flags, logging

from albert_tf import masking, records
from albert_tf.tokenization import Tokenizer

_BLOCK_TOKENS = 4_000_000
_BATCH_SIZE = 256


def define_flags(flag_values: flags.FlagValues) -> None:
    """Adds this script's flags, the release's 17, to `flag_values`."""
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
    string("output_file", None, "TFRecord files to write in turn, with commas between.")
    string("vocab_file", None, "WordPiece vocabulary, where there is no spm_model_file.")
    string("spm_model_file", None, "SentencePiece model.")
    string("input_file_mode", "r", "r: all text is UTF-8; rb: bytes that are not are left out.")
    boolean("do_lower_case", True, "Whether to lower-case the text.")
    boolean("do_whole_word_mask", True, "Whether to mask whole words, or else pieces.")
    boolean("do_permutation", False, "Whether to exchange as many tokens again with each other.")
    boolean("favor_shorter_ngram", True, "Whether short n-grams are likelier than long ones.")
    boolean(
        "random_next_sentence",
        False,
        "Whether half of the pairs get a random B; else half are swapped.",
    )
    integer("max_seq_length", 512, "Tokens of an example, [CLS] and [SEP] included.")
    integer("ngram", 3, "Longest masked n-gram, in words.")
    integer("max_predictions_per_seq", 20, "Most masked tokens of an example.")
    integer("random_seed", 12345, "What every draw is a function of.")
    integer("dupe_factor", 40, "Passes over the text, each drawn afresh.")
    real("masked_lm_prob", 0.15, "Share of the tokens to mask.")
    real("short_seq_prob", 0.1, "Share of documents that a pass cuts into short examples.")
    flags.mark_flags_as_required(["input_file", "output_file"], flag_values=flag_values)


@dataclasses.dataclass
class Report:
    """What was read and written, counted as it goes."""

    documents: int = 0
    input_tokens: int = 0
    unknown_tokens: int = 0
    instances: int = 0
    output_tokens: int = 0
    masked_tokens: int = 0
    label_1: int = 0
    single_segments: int = 0
    seconds: float = 0.0

    def count_input(self, block: instances.TokenBlock, unk_id: int) -> None:
        """Adds a block of documents."""
        self.documents += len(block.documents)
        self.input_tokens += len(block.tokens)
        self.unknown_tokens += int((block.tokens == unk_id).sum())

    def count_output(self, batch: instances.Instances, examples: dict[str, np.ndarray]) -> None:
        """Adds a batch of finished examples."""
        self.instances += len(batch.seeds)
        self.output_tokens += int(examples["input_mask"].sum())
        self.masked_tokens += int(examples["masked_lm_weights"].sum())
        self.label_1 += int(examples["sentence_order_labels"].sum())
        self.single_segments += int(batch.pairs[:, -1].sum())

    def lines(self) -> list[str]:
        """The report in words."""
        return [
            f"read {self.documents:,} documents, {self.input_tokens:,} tokens, "
            f"{self.unknown_tokens / self.input_tokens:.3%} of them [UNK]",
            f"wrote {self.instances:,} instances, {self.output_tokens:,} tokens, "
            f"{self.masked_tokens / self.output_tokens:.2%} of them masked",
            f"label 1 (swapped, or B from a random document): "
            f"{self.label_1 / self.instances:.2%}; chunks of one segment, which take B from a "
            f"random document: {self.single_segments / self.instances:.2%}",
            f"{self.seconds:.1f} seconds, {self.output_tokens / self.seconds:,.0f} output tokens/s",
        ]


def create_pretraining_data(flag_values: flags.FlagValues) -> Report:
    """Does what the flags say.

    Raises:
        ValueError, OSError: a flag, an input or an output is wrong. That is found before the long
            work where it can be, and no output file is touched.
    """
    started = time.monotonic()
    input_files = documents.list_input_files(flag_values.input_file)
    output_files = flag_values.output_file.split(",")
    _check_output_files(output_files, input_files)
    tokenizer = _load_tokenizer(flag_values)
    recipe = _read_recipe(flag_values, tokenizer)
    _warn_of_few_predictions(flag_values)

    report = Report()
    text = documents.read_documents(input_files, flag_values.input_file_mode)
    blocks = instances.tokenize_blocks(text, tokenizer, _BLOCK_TOKENS)
    with _open_outputs(output_files) as writers:
        examples = _make_records(blocks, tokenizer, recipe, report)
        for number, record in enumerate(examples):
            writers[number % len(writers)].write(record)
        if not report.documents:
            raise ValueError(f"input_file: {flag_values.input_file} holds no text")
    report.seconds = time.monotonic() - started
    return report


def _make_records(
    blocks: Iterable[instances.TokenBlock],
    tokenizer: Tokenizer,
    recipe: instances.Recipe,
    report: Report,
) -> Iterator[bytes]:
    spec = records.pretraining_spec(recipe.pairs.max_seq_length, recipe.masking.label_slots)
    word_starts = tokenizer.word_starts()
    for block in blocks:
        report.count_input(block, tokenizer.unk_id)
        drawn = instances.draw_instances(block, recipe)
        for begin in range(0, len(drawn.seeds), _BATCH_SIZE):
            batch = instances.Instances(*(field[begin : begin + _BATCH_SIZE] for field in drawn))
            examples = instances.build_examples(block.tokens, batch, recipe, tokenizer, word_starts)
            report.count_output(batch, examples)
            for row in range(len(batch.seeds)):
                yield spec.serialize({name: values[row] for name, values in examples.items()})
        logging.info("%s documents, %s instances so far", report.documents, report.instances)


def _read_recipe(flag_values: flags.FlagValues, tokenizer: Tokenizer) -> instances.Recipe:
    return instances.Recipe(
        pairs=segment_pairs.PairSettings(
            max_seq_length=flag_values.max_seq_length,
            short_seq_prob=flag_values.short_seq_prob,
            random_next_sentence=flag_values.random_next_sentence,
        ),
        masking=masking.MaskingSettings(
            vocab_size=tokenizer.vocab_size,
            mask_id=tokenizer.mask_id,
            masked_lm_prob=flag_values.masked_lm_prob,
            max_predictions_per_seq=flag_values.max_predictions_per_seq,
            ngram=flag_values.ngram,
            favor_shorter_ngram=flag_values.favor_shorter_ngram,
            do_whole_word_mask=flag_values.do_whole_word_mask,
            do_permutation=flag_values.do_permutation,
        ),
        dupe_factor=flag_values.dupe_factor,
        random_seed=flag_values.random_seed,
    )


def _load_tokenizer(flag_values: flags.FlagValues) -> Tokenizer:
    if not (flag_values.spm_model_file or flag_values.vocab_file):
        raise ValueError("a vocabulary is needed: set spm_model_file or vocab_file")
    return Tokenizer(
        spm_model_file=flag_values.spm_model_file,
        vocab_file=None if flag_values.spm_model_file else flag_values.vocab_file,
        do_lower_case=flag_values.do_lower_case,
    )


def _check_output_files(output_files: Sequence[str], input_files: Sequence[str]) -> None:
    for path in output_files:
        if not path or tf.io.gfile.isdir(path):
            raise ValueError(f"output_file: expected names of files, got {path!r}")
        if path in input_files:
            raise ValueError(f"output_file: {path} is an input file too")
    if len(set(output_files)) < len(output_files):
        raise ValueError("output_file: a file is named twice")


def _warn_of_few_predictions(flag_values: flags.FlagValues) -> None:
    wanted = flag_values.masked_lm_prob * flag_values.max_seq_length
    if flag_values.max_predictions_per_seq < int(wanted):
        logging.warning(
            "max_predictions_per_seq=%d masks %.1f %% of a full example, not %.1f %%: "
            "%d predictions would do that",
            flag_values.max_predictions_per_seq,
            100 * flag_values.max_predictions_per_seq / flag_values.max_seq_length,
            100 * flag_values.masked_lm_prob,
            math.ceil(wanted),
        )


@contextlib.contextmanager
def _open_outputs(paths: Sequence[str]) -> Iterator[list[tf.io.TFRecordWriter]]:
    """Writers of files that get their names when all is written, or vanish when that fails."""
    unfinished = [f"{path}.unfinished" for path in paths]
    try:
        with contextlib.ExitStack() as stack:
            for path in paths:
                tf.io.gfile.makedirs(os.path.dirname(path) or ".")
            yield [stack.enter_context(tf.io.TFRecordWriter(path)) for path in unfinished]
        for temporary, path in zip(unfinished, paths, strict=True):
            tf.io.gfile.rename(temporary, path, overwrite=True)
    except tf.errors.OpError as error:
        raise OSError(f"output_file: can't write {','.join(paths)}: {error.message}") from error
    finally:
        for path in unfinished:
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.remove(path)


def main(argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Writes the records that the flags describe, and logs what they are."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.INFO)
    try:
        report = create_pretraining_data(flag_values)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    for line in report.lines():
        logging.info("%s", line)


if __name__ == "__main__":
    define_flags(flags.FLAGS)
    app.run(main)
