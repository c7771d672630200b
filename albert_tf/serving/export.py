"""`albert-export`, or `python -m albert_tf.export`: writes a trained model for serving."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from albert_tf import scripts
from albert_tf.console import errors, quiet
from albert_tf.serving import arguments, choices
from albert_tf.storage import files

if TYPE_CHECKING:  # --help needs no TensorFlow.
    from albert_tf.serving import scores
    from albert_tf.serving.served_models import ServedModel

# Column flag -> its default, and what the column holds.
_COLUMNS = {
    "text_column": ("text", "text or, with choices, of the context"),
    "text_pair_column": (
        None,
        "second text or, with choices, of a question that precedes each choice",
    ),
    "label_column": ("label", "label"),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=scripts.program("albert_tf.export"),
        description="Writes a trained model for serving, by default one that takes raw text.",
    )
    parser.add_argument(
        "--model",
        required=True,
        help="Trained model: a directory, checkpoint prefix, file or hf://OWNER/NAME.",
    )
    parser.add_argument("--task", required=True, choices=choices.TASKS, help="Task of the model.")
    parser.add_argument("--export_dir", required=True, help="Output directory, new or empty.")
    parser.add_argument(
        "--format",
        default="saved_model",
        choices=("saved_model", *choices.FORMATS),
        help="Format to write. tflite and onnx models take features, which albert-predict "
        "computes from text.",
    )
    add = parser.add_argument_group("scores before and after, on your own data").add_argument
    add(
        "--eval_file",
        help="Labelled .csv, .tsv, .jsonl or .parquet table; for answers SQuAD's .json, .jsonl or "
        ".parquet.",
    )
    for name, (default, what) in _COLUMNS.items():
        add(f"--{name}", help=f"Column of the {what}; by default {default or 'none'}.")
    add("--choice_columns", help="choose: columns of the endings, separated by commas.")
    arguments.add(parser)
    return parser


def _evaluation(args: argparse.Namespace, served: ServedModel) -> scores.Evaluation | None:
    """Returns how the model is scored before and after, if `--eval_file` asks for it."""
    from albert_tf.serving import scores
    from albert_tf.tasks.table import TableColumns

    given = [name for name in (*_COLUMNS, "choice_columns") if getattr(args, name)]
    if given and not args.eval_file:
        raise ValueError(f"--{given[0]} names a column of --eval_file: set that too")
    if not args.eval_file:
        return None
    for name in given:
        tasks = ("choose",) if name == "choice_columns" else ("classify", "choose")
        arguments.check_applies(name, tasks, args.task)
    text, pair, label = (getattr(args, name) or default for name, (default, _) in _COLUMNS.items())
    endings = tuple(args.choice_columns.split(",")) if args.choice_columns else ()
    return scores.read(served, args.eval_file, TableColumns(text, pair, label, endings))


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    args = _parser().parse_args(argv)
    quiet.import_tensorflow(for_keras=True)
    from albert_tf.serving import other_formats, predict, saved_model, scores

    with errors.in_one_line(flags=vars(args)):
        files.check_free(args.export_dir)
        if args.format != "saved_model":
            other_formats.check_format(args.format)
        served = arguments.serve(args)
        evaluation = _evaluation(args, served)
        before = evaluation(predict.from_text(served).outputs) if evaluation else {}
        if args.format == "saved_model":
            saved_model.save(served, args.export_dir)
            what = f"a SavedModel that takes {' and '.join(served.text_names)}"
        else:
            drift = other_formats.save(served, args.export_dir, args.format)
            what = f"{args.format} that takes features (albert-predict computes them); {drift}"
        print(f"{args.export_dir}: {what}")
        if evaluation:
            after = evaluation(predict.load_exported(args.export_dir).outputs)
            print(scores.table_of(before, after))
    if args.format == "saved_model" and (hint := saved_model.hint(args.export_dir)):
        print(hint)
