"""Flags of how text is stored, for the generator and for the trainers of vocabularies."""

from __future__ import annotations

from absl import flags

from albert_tf.generator.documents import TextSettings
from albert_tf.scripts import FlagGroup


def define_text_flags(values: flags.FlagValues) -> None:
    """Adds input_file and the flags that `read_text_settings` reads."""
    group = FlagGroup(values, "Text")
    group.string(
        "input_file",
        None,
        "Text files to read, in UTF-8: paths or glob patterns, separated by commas. Names that end "
        "in .gz, .bz2 or .zst are decompressed.",
        required=True,
    )
    group.string(
        "input_file_mode",
        "r",
        "How to treat bytes that are not UTF-8. r: they are an error; rb: they are dropped.",
    )
    group.string(
        "input_format",
        "lines",
        "Format of the text. lines, the release's: one sentence per line, a blank line between "
        "documents; paragraphs: one paragraph per line, a blank line between documents; jsonl: one "
        "document per line, as a JSON object; wikipedia: the output of WikiExtractor; parquet: one "
        "document per row.",
    )
    group.string(
        "text_field",
        "text",
        "Name of the field, or column, with the text; for input_format=jsonl and parquet.",
    )
    group.string(
        "language",
        "en",
        "ISO 639 code of the language whose rules split paragraphs into sentences. Not used for "
        "input_format=lines.",
    )


def read_text_settings(values: flags.FlagValues) -> TextSettings:
    """Returns how the text is stored, from the flags of `define_text_flags`.

    Raises:
      ValueError: If TextSettings doesn't accept a flag's value.
    """
    return TextSettings(
        input_format=values.input_format,
        mode=values.input_file_mode,
        text_field=values.text_field,
        language=values.language,
    )
