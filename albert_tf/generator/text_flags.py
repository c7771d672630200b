"""The flags of the scripts that read text: what files, and how the text is stored in them."""

from __future__ import annotations

from absl import flags


def define_flags(flag_values: flags.FlagValues) -> None:
    """Adds the flags that are fields of formats.TextSettings, but for mode, and input_file."""
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
