"""The flags of the scripts, and the recipe that those of the generator ask for."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags, logging

from albert_tf import scripts
from albert_tf.generator import instances
from albert_tf.generator.pairs import PairSettings
from albert_tf.records import masking
from albert_tf.text.tokenization import Tokenizer

if TYPE_CHECKING:
    from albert_tf.generator.formats import TextSettings

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
# Fields of MaskingSettings that are flags.
_MASKING_FLAGS = (
    "masked_lm_prob",
    "max_predictions_per_seq",
    "ngram",
    "favor_shorter_ngram",
    "do_whole_word_mask",
    "do_permutation",
)


def define_text_flags(flag_values: flags.FlagValues) -> None:
    """Adds input_file and the flags that `read_text_settings` reads."""
    flags.DEFINE_string(
        "input_file",
        None,
        "Text to read: files or globs, with commas between.",
        flag_values=flag_values,
        required=True,
    )
    flags.DEFINE_string(
        "input_format",
        "lines",
        "lines: one sentence per line, a blank line between documents; paragraphs: one paragraph "
        "per line, likewise; jsonl: a JSON object per line, which is a document; wikipedia: what "
        "WikiExtractor writes. Names that end in .gz, .bz2 and .zst are decompressed.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "text_field",
        "text",
        "Name of the text in the objects of input_format=jsonl.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "language",
        "en",
        "Whose sentences to split: the language's ISO 639 code.",
        flag_values=flag_values,
    )


def read_text_settings(flag_values: flags.FlagValues, mode: str) -> TextSettings:
    """Returns how the text is stored, by the flags of `define_text_flags` and the mode.

    Raises:
      ValueError: If a flag is not one that TextSettings takes.
    """
    from albert_tf.generator import formats  # Not on top: it loads TensorFlow.

    return formats.TextSettings(
        input_format=flag_values.input_format,
        mode=mode,
        text_field=flag_values.text_field,
        language=flag_values.language,
    )


def define_flags(flag_values: flags.FlagValues) -> None:
    """Adds the generator's flags, the release's 17 and some more, to `flag_values`."""
    define_text_flags(flag_values)
    _define_the_releases(flag_values)
    _define_more(flag_values)
    flags.mark_flags_as_required(["output_file"], flag_values=flag_values)


def _define_the_releases(flag_values: flags.FlagValues) -> None:
    string, boolean, integer, real = _definers(flag_values)
    string("output_file", None, "TFRecord files to write, with commas between.")
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
    integer(
        "max_predictions_per_seq",
        20,
        "Most masked tokens of an example; 0: as many as masked_lm_prob asks for.",
    )
    integer("random_seed", 12345, "What every draw is a function of.")
    integer("dupe_factor", 40, "Passes over the text, each drawn afresh.")
    real("masked_lm_prob", 0.15, "Share of the tokens to mask.")
    real("short_seq_prob", 0.1, "Share of documents that a pass cuts into short examples.")


def _define_more(flag_values: flags.FlagValues) -> None:
    string, boolean, integer, real = _definers(flag_values)
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
    flags.DEFINE_enum(
        "masking",
        "static",
        ["static", "dynamic"],
        "static: records hold masks. dynamic: they don't, run_pretraining.py --masking=dynamic "
        "draws some each epoch; dupe_factor is then 1 unless given.",
        flag_values=flag_values,
    )
    integer("max_examples_per_row", 1, "Most examples to pack into a record; 1 packs nothing.")
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
        "local: processes of this machine. beam: an Apache Beam pipeline; see "
        "albert_tf/generator/extra/beam.py.",
        flag_values=flag_values,
    )
    string("beam_options", "", "Beam's own: '--runner=DataflowRunner --project=...'.")


def _definers(flag_values: flags.FlagValues) -> list[Callable[..., Any]]:
    """Returns what defines strings, booleans, integers and floats."""
    kinds = (flags.DEFINE_string, flags.DEFINE_bool, flags.DEFINE_integer, flags.DEFINE_float)
    return [functools.partial(define, flag_values=flag_values) for define in kinds]


def list_settings(flag_values: flags.FlagValues) -> dict[str, Any]:
    """Returns the flags that the records are a function of, by name."""
    names = scripts.flag_names(define_flags)
    return {name: flag_values[name].value for name in names if name not in _WITHOUT_EFFECT}


def check_numbers(flag_values: flags.FlagValues) -> None:
    """Checks the numbers that no setting of the recipe checks.

    Raises:
      ValueError: If a number is out of its range, or NaN.
    """
    if not 0 < flag_values.block_megabytes < math.inf:
        raise ValueError(f"block_megabytes must be above 0, got {flag_values.block_megabytes}")
    if not flag_values.max_unknown_share <= 1:
        raise ValueError(
            f"max_unknown_share must be at most 1, all tokens, got {flag_values.max_unknown_share}"
        )
    if not 0 <= flag_values.masked_lm_prob <= 1:
        raise ValueError(f"masked_lm_prob must be within [0, 1], got {flag_values.masked_lm_prob}")


def read_recipe(flag_values: flags.FlagValues, tokenizer: Tokenizer) -> instances.Recipe:
    """Returns how instances are made; warns of flags that leave tokens without masks.

    Raises:
      ValueError: If a number is out of its range, or flags contradict each other.
    """
    dynamic = flag_values.masking == "dynamic"
    given = [name for name in _MASKING_FLAGS if flag_values[name].present]
    if dynamic and given:
        its_name = given[0].replace("masked_lm_prob", "masked_lm_budget")
        raise ValueError(
            f"--{given[0]} says how to mask, and with --masking=dynamic no mask is written: give "
            f"run_pretraining.py --{its_name}"
        )
    return instances.Recipe(
        pairs=PairSettings(
            max_seq_length=flag_values.max_seq_length,
            short_seq_prob=flag_values.short_seq_prob,
            random_next_sentence=flag_values.random_next_sentence,
            single_segment=flag_values.single_segment,
        ),
        masking=None if dynamic else _read_masking(flag_values, tokenizer),
        dupe_factor=(
            1 if dynamic and not flag_values["dupe_factor"].present else flag_values.dupe_factor
        ),
        random_seed=flag_values.random_seed,
        word_starts=flag_values.word_starts,
        max_examples_per_row=flag_values.max_examples_per_row,
    )


def _read_masking(flag_values: flags.FlagValues, tokenizer: Tokenizer) -> masking.MaskingSettings:
    given = {name: flag_values[name].value for name in _MASKING_FLAGS}
    if given["max_predictions_per_seq"] == 0:
        given["max_predictions_per_seq"] = masking.count_full_row(
            flag_values.masked_lm_prob, flag_values.max_seq_length
        )
    settings = masking.MaskingSettings(tokenizer.vocab_size, tokenizer.mask_id, **given)
    shortfall = settings.shortfall(flag_values.max_seq_length)
    if shortfall:
        logging.warning("%s", shortfall)
    return settings
