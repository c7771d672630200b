"""Flags that the commands which look inside models share."""

from __future__ import annotations

import argparse

from albert_tf import scripts
from albert_tf.serving import arguments


def create_parser(name: str, description: str) -> argparse.ArgumentParser:
    """Returns a command's parser with the flags of its models and its output."""
    parser = argparse.ArgumentParser(
        prog=scripts.program(f"albert_tf.{name}"), description=description
    )
    parser.add_argument(
        "--model",
        required=True,
        nargs="+",
        metavar="PATH",
        help="Trained models: directories, checkpoint prefixes, files or hf://OWNER/NAME.",
    )
    parser.add_argument("--output_dir", required=True, help="Output directory, new or empty.")
    arguments.add_stored(parser)
    return parser


def add_input(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the flags of what the models are inspected on."""
    parser.add_argument("--input_file", required=True, help=what)
    parser.add_argument(
        "--max_seq_length",
        type=positive,
        help="Maximum length of a row in tokens; for records, the length they were made with; by "
        "default 128, or the model's maximum if that is less.",
    )


def positive(text: str) -> int:
    """Parses a number of things."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def not_negative(text: str) -> int:
    """Parses a seed, or a number that may be 0."""
    if not 0 <= int(text) < 2**32:  # More is no seed for NumPy.
        raise ValueError(text)
    return int(text)


# argparse's messages name them.
positive.__name__, not_negative.__name__ = "positive integer", "integer in [0, 2**32)"
