"""The flags of create_pretraining_data.py, and the recipe that they describe."""

from __future__ import annotations

import math
from typing import Any

from absl import flags, logging

from albert_tf import scripts
from albert_tf.generator import examples, masking_flags, text_flags
from albert_tf.generator.examples import PairSettings
from albert_tf.records import masking
from albert_tf.scripts import FlagGroup
from albert_tf.text.tokenization import Tokenizer

# Flags that don't affect the records, or are represented by what they name.
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
# Fields of MaskingSettings that have flags.
_MASKING_FLAGS = ("masked_lm_prob", "max_predictions_per_seq", *masking_flags.NAMES)


def define_flags(values: flags.FlagValues) -> None:
    """Adds the generator's flags: the release's 17 and a few more."""
    text_flags.define_text_flags(values)
    _define_vocabulary(values)
    _define_examples(values)
    _define_masking(values)
    _define_output(values)
    _define_processes(values)


def _define_vocabulary(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "Vocabulary")
    group.string("spm_model_file", None, "SentencePiece model that splits the text.")
    group.string(
        "vocab_file", None, "WordPiece vocabulary; only used if spm_model_file is not set."
    )
    group.boolean(
        "do_lower_case",
        True,
        "Lower-case the text: true for uncased models. If not given, as stored beside the "
        "vocabulary, or else true.",
    )
    group.number(
        "max_unknown_share",
        0.1,
        "Maximum share of [UNK] among the text's tokens. A larger one is an error: the vocabulary "
        "is probably for another language. With the right one the share is about 0.001.",
        "[0, 1]",
    )


def _define_examples(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "Examples")
    group.integer(
        "max_seq_length",
        512,
        "Maximum length of an example in tokens, with [CLS] and [SEP]. 512 is the paper's.",
        maximum=masking.MAX_SEQ_LENGTH,
    )
    group.number(
        "short_seq_prob",
        0.1,
        "Share of the documents that are cut into examples of a random shorter length, so that "
        "the model also sees short ones. 0.1 is the paper's.",
        "[0, 1]",
    )
    group.integer(
        "dupe_factor",
        40,
        "Number of passes over the text, each with different pairs and masks. 40 is the "
        "release's; with --masking=dynamic the default is 1.",
        lower_bound=1,
    )
    group.integer(
        "random_seed",
        12345,
        "Seed of all random choices. The same text, flags and seed give the same records.",
        maximum=math.inf,
    )
    group.boolean(
        "random_next_sentence",
        False,
        "Take the second segment of half of the pairs from a random document (BERT's next-sentence "
        "prediction). If false, swap the segments of half of them (ALBERT's sentence order).",
    )
    group.enum(
        "single_segment",
        "random",
        ["random", "split"],
        "How to make a pair of a chunk that is a single sentence. random, as in the release: its "
        "second segment comes from a random document, with the label of swapped pairs; split: the "
        "sentence is cut between two words, and the pair is treated like any other.",
    )
    group.integer(
        "max_examples_per_row",
        1,
        "Maximum number of short examples packed into one record, which saves padding; set "
        "max_predictions_per_seq=0, too. 1, as in the release, does not pack.",
        lower_bound=1,
    )


def _define_masking(values: flags.FlagValues) -> None:
    group = FlagGroup(values, masking_flags.HEADING)
    group.enum(
        "masking",
        "static",
        ["static", "dynamic"],
        "static, as in the release: records hold masks. dynamic: they hold none, and "
        "albert-pretrain --masking=dynamic draws new ones each time.",
    )
    group.number(
        "masked_lm_prob", 0.15, "Share of the tokens to mask. 0.15 is the paper's.", "[0, 1]"
    )
    group.integer(
        "max_predictions_per_seq",
        20,
        "Maximum number of masked tokens per example, and of a record in all; 0 allows as many as "
        "masked_lm_prob asks for. 20 is the release's.",
        lower_bound=0,
    )
    masking_flags.define_masking(values)
    group.enum(
        "word_starts",
        "latin",
        ["latin", "unicode"],
        "Which SentencePiece pieces without a leading space continue a word. latin, as in the "
        "release: pieces of the letters a to z; unicode: pieces of letters of any script that "
        "separates words by spaces.",
    )
    group.string(
        "word_separator",
        None,
        "Separator between the words of text that is already segmented, such as a space; it is "
        "removed from the text. Whole words are then those of the text, not those of the "
        "vocabulary.",
    )


def _define_output(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "Output")
    group.string(
        "output_file", None, "TFRecord files to write, separated by commas.", required=True
    )
    group.integer(
        "num_output_shards",
        None,
        "Number of files to write instead: output_file-00000-of-00008 and so on. A block of text, "
        "from which random documents come, never spans files: give many documents to each. A file "
        "without any record is an error.",
        lower_bound=1,
    )
    group.boolean(
        "plots", False, "Also write a page of plots of the report, as .png beside its .json."
    )


def _define_processes(values: flags.FlagValues) -> None:
    group = FlagGroup(values, "Processes and memory")
    group.integer(
        "num_processes",
        None,
        "Number of worker processes; only for --runner=local. By default one per core. The records "
        "do not depend on it.",
        lower_bound=1,
    )
    group.number(
        "block_megabytes",
        4.0,
        "Size of a block of text, in millions of characters: its examples are shuffled together, "
        "and random documents come from the same block. Up to three blocks per process are in "
        "memory.",
        "(0, 1e6]",
    )
    group.enum(
        "runner",
        "local",
        ["local", "beam"],
        "local: run in processes on this machine. beam: run as an Apache Beam pipeline, for a "
        "cluster.",
    )
    group.string(
        "beam_options",
        "",
        "Beam's options, such as '--runner=DataflowRunner --project=...'; only for --runner=beam.",
    )


def list_settings(values: flags.FlagValues) -> dict[str, Any]:
    """Returns the flags that the records depend on, by name."""
    names = scripts.flag_names(define_flags)
    return {name: values[name].value for name in names if name not in _WITHOUT_EFFECT}


def read_recipe(values: flags.FlagValues, tokenizer: Tokenizer) -> examples.Recipe:
    """Returns how instances are made; warns of flags that leave tokens unmasked.

    Raises:
      ValueError: If a number is out of range, or flags contradict each other.
    """
    if values.word_separator is not None and values["word_starts"].present:
        raise ValueError(
            "--word_starts finds words by the vocabulary, and --word_separator by the text: leave "
            "one of them out"
        )
    dynamic = values.masking == "dynamic"
    given = [name for name in _MASKING_FLAGS if values[name].present]
    if dynamic and given:
        its_name = given[0].replace("masked_lm_prob", "masked_lm_budget")
        raise ValueError(
            f"--{given[0]} has no effect with --masking=dynamic, which writes no masks: set "
            f"--{its_name} of albert-pretrain instead"
        )
    return examples.Recipe(
        pairs=PairSettings(
            max_seq_length=values.max_seq_length,
            short_seq_prob=values.short_seq_prob,
            random_next_sentence=values.random_next_sentence,
            single_segment=values.single_segment,
        ),
        masking=None if dynamic else _read_masking(values, tokenizer),
        dupe_factor=(1 if dynamic and not values["dupe_factor"].present else values.dupe_factor),
        random_seed=values.random_seed,
        word_starts=values.word_starts,
        word_separator=values.word_separator,
        max_examples_per_row=values.max_examples_per_row,
    )


def _read_masking(values: flags.FlagValues, tokenizer: Tokenizer) -> masking.MaskingSettings:
    given = {name: getattr(values, name) for name in _MASKING_FLAGS}
    if given["max_predictions_per_seq"] == 0:
        given["max_predictions_per_seq"] = masking.count_full_row(
            values.masked_lm_prob, values.max_seq_length
        )
    settings = masking.MaskingSettings(tokenizer.vocab_size, tokenizer.mask_id, **given)
    shortfall = settings.shortfall(values.max_seq_length)
    if shortfall and values.max_examples_per_row > 1:
        shortfall += ", and let packing fill the rows: the examples of a row share them"
    if shortfall:
        logging.warning("%s", shortfall)
    return settings
