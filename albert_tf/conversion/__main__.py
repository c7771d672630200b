"""`albert-convert`, or `python -m albert_tf.conversion`: converts a model to another layout."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from albert_tf import scripts
from albert_tf.console import errors, quiet
from albert_tf.conversion import huggingface, layouts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=scripts.program("albert_tf.conversion"),
        description="Writes a stored model in another layout.",
    )
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        help="Model to convert: a directory, checkpoint prefix, file or hf://OWNER/NAME.",
    )
    parser.add_argument("--to", required=True, choices=layouts.LAYOUTS, help="Layout to write.")
    parser.add_argument("--output_dir", required=True, help="Output directory, new or empty.")
    parser.add_argument("--albert_config_file", help="By default the one beside the weights.")
    parser.add_argument("--spm_model_file", help="By default the one beside the weights.")
    parser.add_argument(
        "--vocab_file", help="WordPiece vocabulary, instead of a SentencePiece one."
    )
    parser.add_argument(
        "--do_lower_case",
        action=argparse.BooleanOptionalAction,
        help="Whether the model is uncased; by default as stored with the weights.",
    )
    parser.add_argument(
        "--architecture",
        choices=tuple(huggingface.ARCHITECTURES),
        help="Hugging Face class; by default inferred from the heads.",
    )
    parser.add_argument(
        "--drop",
        default="",
        help="Weights to leave out: comma-separated prefixes of the release's names.",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    args = _parser().parse_args(argv)
    quiet.import_tensorflow()
    from albert_tf.conversion import convert

    with errors.in_one_line(flags=vars(args)):
        done = convert.convert(
            args.source,
            args.to,
            args.output_dir,
            config_file=args.albert_config_file,
            spm_model_file=args.spm_model_file,
            vocab_file=args.vocab_file,
            do_lower_case=args.do_lower_case,
            architecture=args.architecture,
            drop=[prefix for prefix in args.drop.split(",") if prefix],
        )
    print(done)


if __name__ == "__main__":
    main()
