"""`albert-export`, or `python -m albert_tf.export`: writes a trained model for serving."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from albert_tf import directories, errors, quiet, scripts
from albert_tf.serving import arguments, choices


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=scripts.program("albert_tf.export"),
        description="Writes a trained model for serving, by default one that takes raw text.",
    )
    parser.add_argument("--model", required=True, help="Directory, checkpoint prefix or file.")
    parser.add_argument("--task", required=True, choices=choices.TASKS, help="What it is for.")
    parser.add_argument("--export_dir", required=True, help="An empty or new directory.")
    parser.add_argument(
        "--format",
        default="saved_model",
        choices=("saved_model", *choices.FORMATS),
        help="tflite and onnx models take features, which albert-predict makes of text.",
    )
    arguments.add(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    args = _parser().parse_args(argv)
    quiet.import_tensorflow()
    from albert_tf.serving import converted, saved_model

    with errors.in_one_line(flags=vars(args)):
        directories.check_free(args.export_dir)
        served = arguments.serve(args)
        if args.format == "saved_model":
            saved_model.save(served, args.export_dir)
            what = f"a SavedModel that takes {' and '.join(served.text_names)}"
        else:
            drift = converted.save(served, args.export_dir, args.format)
            what = f"{args.format} that takes features (albert-predict makes them); {drift}"
    print(f"{args.export_dir}: {what}")
    if args.format == "saved_model" and (hint := saved_model.hint(args.export_dir)):
        print(hint, file=sys.stderr)


if __name__ == "__main__":
    main()
