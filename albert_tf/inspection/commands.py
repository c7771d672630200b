"""The commands that look inside models: each checks all it is given before it loads a model."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from albert_tf.console import errors, figures, quiet
from albert_tf.inspection import flags
from albert_tf.inspection.models import COLUMNS
from albert_tf.serving import arguments
from albert_tf.storage import files

if TYPE_CHECKING:  # --help needs no TensorFlow.
    from albert_tf.config import AlbertConfig
    from albert_tf.conversion.stored import Stored
    from albert_tf.inspection.probes import Labelled
    from albert_tf.text.tokenization import Tokenizer

_LENGTH = 128
_EXTRA = "inspect"
_TASKS = ("order", "neighbours", "table", "conllu")
# Arguments of one task of probes only.
_TASK_OF = {
    **dict.fromkeys(("text_column", "label_column", "group_column"), "table"),
    "column": "conllu",
}


def similarity(argv: Sequence[str] | None = None) -> None:
    """Runs `python -m albert_tf.similarity`."""
    parser = flags.create_parser(
        "similarity",
        "Measures the L2 distance and the angle between input and output of each layer, as in "
        "figure 1 of the paper.",
    )
    flags.add_input(
        parser,
        "Text files, a row per line, or pre-training records; paths or globs, separated by commas.",
    )
    parser.add_argument(
        "--max_rows",
        type=flags.positive,
        default=256,
        help="Maximum number of rows to measure on, drawn at random.",
    )
    parser.add_argument(
        "--extra_layers",
        type=flags.not_negative,
        default=0,
        help="Number of additional times to apply the shared block after the last layer.",
    )
    args = parser.parse_args(argv)
    with _running(args):
        from albert_tf.inspection import models
        from albert_tf.inspection import similarity as similar

        paths = files.list_files(args.input_file)
        of_records = models.are_records(paths)
        lines = [] if of_records else models.sample(models.texts(paths), args.max_rows)
        prepared = []
        for stored in _stored(args):
            config = stored.config()
            models.check_extra_layers(config, args.extra_layers)
            length = _length(args, config)
            if of_records:
                rows = models.record_rows(paths, config, length, args.max_rows)
            else:
                rows = models.text_rows(lines, _tokenizer(stored), length)
            prepared.append((stored, rows))
        found = {}
        for stored, rows in prepared:
            model = models.lengthened(models.load_encoder(stored), args.extra_layers)
            found[stored.path] = similar.measure(model, rows)
        table = similar.table(found, args.extra_layers)
        _write(
            args.output_dir,
            {
                "similarity.csv": table.encode(),
                "similarity.png": similar.draw(found, args.extra_layers),
            },
        )
        print(table, end="")


def attention(argv: Sequence[str] | None = None) -> None:
    """Runs `python -m albert_tf.attention`."""
    parser = flags.create_parser(
        "attention", "Computes how much each piece of a text attends to each, in every head."
    )
    parser.add_argument("--text", required=True, help="The text.")
    parser.add_argument("--text_pair", help="A second text.")
    args = parser.parse_args(argv)
    with _running(args):
        from albert_tf.inspection import attention as attending
        from albert_tf.inspection import models

        (stored,) = _stored(args, most=1)
        tokenizer = _tokenizer(stored)
        model = models.load_encoder(stored)
        pieces, probabilities = attending.of_text(model, tokenizer, args.text, args.text_pair)
        _write(
            args.output_dir,
            {
                "attention.npz": attending.npz(pieces, probabilities),
                "attention.png": attending.draw(pieces, probabilities),
            },
        )
        layers, heads, length, _ = probabilities.shape
        print(f"{args.output_dir}: {layers} layers, {heads} heads, {length} pieces")


def agreement(argv: Sequence[str] | None = None) -> None:
    """Runs `python -m albert_tf.agreement`."""
    parser = flags.create_parser(
        "agreement",
        "Measures on English templates how often masked LM prefers the verb that agrees with its "
        "subject in number.",
    )
    args = parser.parse_args(argv)
    with _running(args, draws=False):
        from albert_tf.inspection import agreement as agreeing
        from albert_tf.inspection import models

        found = {}
        for stored, tokenizer in [(each, _tokenizer(each)) for each in _stored(args)]:
            model = models.load_masked_lm(stored)
            found[stored.path] = agreeing.measure(model, tokenizer)
        table = agreeing.table(found)
        _write(args.output_dir, {"agreement.csv": table.encode()})
        print(table, end="")


def probes(argv: Sequence[str] | None = None) -> None:
    """Runs `python -m albert_tf.probes`."""
    parser = flags.create_parser(
        "probes",
        "Trains a linear probe on each layer, and on those of a model with random weights.",
    )
    parser.add_argument(
        "--task",
        required=True,
        choices=_TASKS,
        help="What the probes predict: order, whether the segments of a record are swapped; "
        "neighbours, whether two adjacent pieces of a text are exchanged; table, the label of a "
        "text; conllu, a column of a word.",
    )
    flags.add_input(parser, "Records, text, a table or a CoNLL-U file, as the task needs.")
    parser.add_argument("--text_column", help="table: column of the text; by default text.")
    parser.add_argument("--label_column", help="table: column of the label; by default label.")
    parser.add_argument(
        "--group_column",
        help="table: column that tells which texts belong together, such as a document's name: "
        "all of one are held out, or none. By default each text is one.",
    )
    parser.add_argument("--column", choices=COLUMNS, help="conllu: column; by default upos.")
    parser.add_argument(
        "--max_examples",
        type=flags.positive,
        default=5000,
        help="Maximum number of rows or words, a sample; a fifth of the rows, or of their groups, "
        "is held out.",
    )
    parser.add_argument(
        "--seed", type=flags.not_negative, default=0, help="Seed of samples and random weights."
    )
    args = parser.parse_args(argv)
    with _running(args):
        from albert_tf.inspection import models, probes
        from albert_tf.inspection import probes as probing

        probes.check_installed()
        for name, task in _TASK_OF.items():
            if getattr(args, name) is not None and args.task != task:
                raise ValueError(f"--{name} applies only to --task={task}: leave it out")
        prepared = [(stored, _labelled(args, stored)) for stored in _stored(args)]
        data = {stored.path: labelled for stored, labelled in prepared}
        for labelled in data.values():
            probing.held_out(labelled, args.seed)  # Raises, before any model is loaded.
        found = {}
        for stored, labelled in prepared:
            model = models.load_encoder(stored)
            control = models.with_random_weights(model.config, args.seed)
            found[stored.path] = probing.measure(model, control, labelled, args.seed)
        table = probing.csv_table(found, data, args.seed)
        figure = probing.draw(found, data, args.seed)
        _write(args.output_dir, {"probes.csv": table.encode(), "probes.png": figure})
        print(table, end="")


def _labelled(args: argparse.Namespace, stored: Stored) -> Labelled:
    from albert_tf.inspection import models, probes
    from albert_tf.tasks.table import TableColumns

    config = stored.config()
    length, most = _length(args, config), args.max_examples
    if args.task == "order":
        return probes.of_order(_records(args), config, length, most, args.seed)
    how = (_tokenizer(stored), length, most, args.seed)
    if args.task == "neighbours":
        return probes.of_neighbours(models.texts(files.list_files(args.input_file)), *how)
    if args.task == "conllu":
        return probes.of_words(args.input_file, args.column or "upos", *how)
    columns = TableColumns(args.text_column or "text", label=args.label_column or "label")
    return probes.of_table(args.input_file, columns, *how, args.group_column)


def _records(args: argparse.Namespace) -> list[str]:
    from albert_tf.inspection import models

    paths = files.list_files(args.input_file)
    if not models.are_records(paths):
        raise ValueError("--task=order needs records of pre-training in --input_file, not text")
    return paths


@contextlib.contextmanager
def _running(args: argparse.Namespace, draws: bool = True) -> Iterator[None]:
    """Imports TensorFlow; a user error in the body ends the process with one line."""
    quiet.import_tensorflow()
    with errors.in_one_line(flags=vars(args)):
        if draws:
            figures.check_installed("the figure", _EXTRA)
        files.check_free(args.output_dir)
        yield


def _stored(args: argparse.Namespace, most: int | None = None) -> list[Stored]:
    paths = list(dict.fromkeys(args.model))
    if most and len(paths) > most:
        raise ValueError(f"--model: expected {most} model, got {len(paths)}")
    found = [arguments.stored(args, path) for path in paths]
    for stored in found:
        stored.config()  # Raises, before any model is loaded.
    return found


def _length(args: argparse.Namespace, config: AlbertConfig) -> int:
    longest = config.max_position_embeddings
    length = args.max_seq_length or min(_LENGTH, longest)
    if not 4 <= length <= longest:
        raise ValueError(
            f"`max_seq_length` must be from 4 to {longest} (the config's "
            f"max_position_embeddings), got {length}"
        )
    return length


def _tokenizer(stored: Stored) -> Tokenizer:
    words = stored.vocabulary()
    words.check(stored.config())
    return words.tokenizer


def _write(directory: str, contents: Mapping[str, bytes]) -> None:
    with files.whole_directory(directory) as temporary:
        for name, content in contents.items():
            files.replace(os.path.join(temporary, name), content)
